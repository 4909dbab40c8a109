"""Running mean and variance, and the normalization of inputs by them.

Everything is float32, so no large sums are subtracted from each other: rows are centered before
they are squared, and two sets of rows are merged by the difference of their means (Chan et al.,
1983).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Shaped

# The count stops here, because int32 would overflow; old rows then lose weight.
MAX_COUNT = 2**30


class Statistics(NamedTuple):
    """Statistics of all rows so far, per entry of a row."""

    count: Int32[Array, ""]
    mean: Float[Array, "*shape"]
    variance: Float[Array, "*shape"]  # divided by the count itself
    compensation: Float[Array, "*shape"]  # the part of the mean below float32's precision


def initial_statistics(shape: tuple[int, ...]) -> Statistics:
    """Make the statistics of no rows: mean 0, variance 1; `normalize` then changes nothing."""
    # No array is used twice: a donated buffer must not be shared.
    return Statistics(jnp.int32(0), jnp.zeros(shape), jnp.ones(shape), jnp.zeros(shape))


def update_statistics(
    statistics: Statistics, rows: Shaped[Array, "rows *shape"], valid: Bool[Array, " rows"]
) -> Statistics:
    """Return the statistics with the new rows that are `valid`; bit-equal to before if none is."""
    count, rough, correction, variance = _statistics_of(rows, valid)
    total = jnp.minimum(statistics.count, MAX_COUNT - count) + count
    share = count / jnp.maximum(total, 1)
    mean = jnp.where(statistics.count > 0, statistics.mean, rough)
    # Large with large, small with small.
    apart = (rough - mean) + (correction - statistics.compensation)
    # One row among millions moves the mean by less than float32 can add to it. The lost part is
    # added with the next rows (compensated summation).
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
    """Normalize to zero mean and unit variance, and clip to ±`clip`."""
    standardized = (x - statistics.mean) / jnp.sqrt(statistics.variance + 1e-8)
    return jnp.clip(standardized, -clip, clip)


def _statistics_of(
    rows: Shaped[Array, "rows *shape"], valid: Bool[Array, " rows"]
) -> tuple[Int32[Array, ""], Array, Array, Array]:
    """Return count, mean in two parts (the float32 sum's and its error) and variance of the valid
    rows; zeros if there are none."""
    mask = valid.reshape(-1, *(1,) * (rows.ndim - 1))
    count = jnp.sum(valid, dtype=jnp.int32)
    divisor = jnp.maximum(count, 1).astype(jnp.float32)

    def mean_of(values: Array) -> Array:
        # `where` and not a product: an invalid row may contain NaN.
        return jnp.sum(jnp.where(mask, values, 0.0), axis=0) / divisor

    rough = mean_of(rows)
    centered = rows - rough
    correction = mean_of(centered)
    return count, rough, correction, mean_of((centered - correction) ** 2)
