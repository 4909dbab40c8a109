"""Pure functions of arrays: returns, densities, targets, statistics."""
