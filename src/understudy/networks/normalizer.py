"""Running mean and variance, and inputs brought to zero mean and unit variance by them.

Everything is float32, so nothing here subtracts large sums from each other: rows are centered
before they are squared, and two sets of rows are merged by the difference of their means (Chan
et al., 1983).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Shaped

# Beyond this many rows the count stands still and old rows fade; int32 would overflow next.
MAX_COUNT = 2**30


class Statistics(NamedTuple):
    """Of all rows seen so far, per entry of a row."""

    count: Int32[Array, ""]
    mean: Float[Array, "*shape"]
    variance: Float[Array, "*shape"]  # divided by the count itself
    compensation: Float[Array, "*shape"]  # of the mean, too small for its float32


def initial_statistics(shape: tuple[int, ...]) -> Statistics:
    """Of no rows at all: mean zero and variance one, so that `normalize` changes nothing."""
    # No array is there twice: a program that is given its state for good takes each only once.
    return Statistics(jnp.int32(0), jnp.zeros(shape), jnp.ones(shape), jnp.zeros(shape))


def update_statistics(
    statistics: Statistics, rows: Shaped[Array, "rows *shape"], valid: Bool[Array, " rows"]
) -> Statistics:
    """The statistics of the rows seen so far and of the new ones that are `valid`; to the bit what
    they were if none is."""
    count, rough, correction, variance = _statistics_of(rows, valid)
    total = jnp.minimum(statistics.count, MAX_COUNT - count) + count
    share = count / jnp.maximum(total, 1)
    mean = jnp.where(statistics.count > 0, statistics.mean, rough)
    apart = (rough - mean) + (
        correction - statistics.compensation
    )  # large with large, small with small
    # One row among millions moves the mean by less than float32 can add to it. What the
    # addition loses is kept and added with the next rows.
    step = share * apart + statistics.compensation
    moved = mean + step
    spread = (1 - share) * statistics.variance + share * variance
    merged = Statistics(
        count=total,
        mean=moved,
        variance=spread + share * (1 - share) * apart**2,
        compensation=step - (moved - mean),
    )
    return jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), merged, statistics)


def normalize(
    statistics: Statistics, x: Shaped[Array, "..."], clip: int | float = 10.0
) -> Float[Array, "..."]:
    """Zero mean and unit variance, and never further than `clip` from zero."""
    standardized = (x - statistics.mean) / jnp.sqrt(statistics.variance + 1e-8)
    return jnp.clip(standardized, -clip, clip)


def _statistics_of(
    rows: Shaped[Array, "rows *shape"], valid: Bool[Array, " rows"]
) -> tuple[Int32[Array, ""], Array, Array, Array]:
    """Of the valid rows: count, mean in two parts (what a sum of large numbers gives, and what
    it lost), variance. Zeros where there are none."""
    mask = valid.reshape(-1, *(1,) * (rows.ndim - 1))
    count = jnp.sum(valid, dtype=jnp.int32)
    divisor = jnp.maximum(count, 1).astype(jnp.float32)

    def mean_of(values: Array) -> Array:
        # `where` and not a product: an invalid row may hold anything, NaN too.
        return jnp.sum(jnp.where(mask, values, 0.0), axis=0) / divisor

    rough = mean_of(rows)
    centered = rows - rough
    correction = mean_of(centered)
    return count, rough, correction, mean_of((centered - correction) ** 2)
