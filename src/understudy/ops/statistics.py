"""Summaries of a few noisy returns: interquartile mean and bootstrap intervals.

The protocol is the one that Agarwal et al. (2021, "Deep Reinforcement Learning at the Edge of
the Statistical Precipice") propose. NumPy only: this runs on the host.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Values = Any  # anything that NumPy can convert to an array of numbers
Statistic = Callable[[np.ndarray], float]  # of a flat array


def mean(values: Values) -> float:
    return float(np.mean(_numbers(values)))


def iqm(values: Values) -> float:
    """Return the mean of the middle half: more robust than a mean, more efficient than a median.

    A quarter of the values, rounded down, is left out at either end. With fewer than four values
    this is the mean.
    """
    flat = np.sort(_numbers(values), axis=None)
    if np.isnan(flat[-1]):
        return float("nan")  # otherwise a diverged run, sorted to the end, would be left out
    cut = flat.size // 4
    return float(np.mean(flat[cut : flat.size - cut]))


def stratified_bootstrap_interval(
    scores: Values,
    statistic: Statistic = iqm,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of `statistic` under resampling with replacement.

    `scores` is [seeds], [seeds, episodes] or [tasks, seeds, episodes]. Tasks are the strata: all
    of them are in every resample, and seeds are drawn within each. A seed is drawn with all its
    episodes, because episodes of one agent are not independent: drawing them separately would make
    the interval too narrow. If there is a single seed, its episodes are drawn, and the interval is
    about that one agent.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    strata = _strata(scores)
    tasks, units = strata.shape[:2]
    rng = np.random.default_rng(seed)
    each_task = np.arange(tasks)[:, None]
    estimates = np.empty(resamples)
    for i in range(resamples):
        drawn = rng.integers(units, size=(tasks, units))
        estimates[i] = statistic(strata[each_task, drawn].reshape(-1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(estimates, [tail, 1 - tail])
    return float(low), float(high)


def mean_with_band(
    curves: np.ndarray, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean of `curves` [seeds, points] and its bootstrap interval at every point.

    Whole curves are drawn, the same for all points, so the band is as smooth as its curves. Seeds
    without a value (NaN) at a point are left out there; if none has one, the result is NaN.
    """
    present = np.isfinite(curves)
    filled = np.where(present, curves, 0.0)
    seeds = curves.shape[0]
    drawn = np.random.default_rng(seed).integers(seeds, size=(resamples, seeds))
    times_drawn = (drawn[:, :, None] == np.arange(seeds)).sum(axis=1)  # [resamples, seeds]
    with np.errstate(invalid="ignore", divide="ignore"):
        center = filled.sum(axis=0) / present.sum(axis=0)
        means = (times_drawn @ filled) / (times_drawn @ present)  # [resamples, points]
    # A resample may miss every seed that has a value at a point; use the center there.
    means = np.where(np.isfinite(means), means, center)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return center, low, high


def summary(returns: Values) -> dict[str, Any]:
    """Return mean, standard deviation of all episodes, IQM and the 95 % interval of the mean, for
    JSON.

    `returns` is [episodes] of one agent or [seeds, episodes]. The IQM is that of the seeds' means,
    or, for a single seed, of its episodes; so is the interval. With a single number the interval
    has zero width.
    """
    values = _numbers(returns)
    units = values.mean(axis=1) if values.ndim > 1 and len(values) > 1 else values
    return {
        "mean": mean(values),
        "std": float(np.std(values)),
        "iqm": iqm(units),
        "ci95": stratified_bootstrap_interval(values, mean),
        "returns": values.tolist(),
    }


def _numbers(values: Values) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.size == 0:
        raise ValueError("there are no values to summarize")
    return np.atleast_1d(numbers)


def _strata(scores: Values) -> np.ndarray:
    """Return [tasks, units, values of a unit]; resampling draws units."""
    values = _numbers(scores)
    if values.ndim > 3:
        raise ValueError(
            f"scores must be [seeds], [seeds, episodes] or [tasks, seeds, episodes], "
            f"got {values.ndim} axes"
        )
    if values.ndim == 1:
        return values[None, :, None]
    by_task = values[None] if values.ndim == 2 else values
    one_seed = by_task.shape[1] == 1
    return by_task.swapaxes(1, 2) if one_seed else by_task
