"""Pure functions of arrays: returns, distributions, divergences, targets, schedules, statistics."""
