"""Pure functions of arrays: returns, distributions, divergences, targets, curves, statistics."""
