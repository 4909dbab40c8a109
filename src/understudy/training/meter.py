"""The meter of learning: sums of metrics, and updates that were not finite."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from understudy.types import DivergedError, Metrics

LONGEST_ROW_OF_DISCARDS = 10  # after which a seed is frozen


class Meter(NamedTuple):
    """Sums of metrics since the last log, on the device; fetched once per log."""

    total: Float[Array, " metrics"]
    count: Float[Array, " metrics"]
    discarded: Int32[Array, ""]  # updates thrown away because they were not finite
    discarded_in_a_row: Int32[Array, ""]


def empty_meter(metrics: int) -> Meter:
    return Meter(jnp.zeros(metrics), jnp.zeros(metrics), jnp.int32(0), jnp.int32(0))


def record(meter: Meter, metrics: Metrics, good: Bool[Array, ""]) -> Meter:
    """Add the metrics of an update, unless it was discarded."""
    values = jnp.stack([metrics[name] for name in sorted(metrics)])
    counted = jnp.isfinite(values) & good  # NaN marks a part that was delayed
    return Meter(
        total=meter.total + jnp.where(counted, values, 0.0),
        count=meter.count + counted,
        discarded=meter.discarded + ~good,
        discarded_in_a_row=jnp.where(good, 0, meter.discarded_in_a_row + 1),
    )


def is_frozen(meter: Meter) -> Any:
    """Whether the last updates in a row were not finite, so that no more are done. For the meters
    of all seeds, [seeds]."""
    return meter.discarded_in_a_row >= LONGEST_ROW_OF_DISCARDS


def read_meter(meter: Meter, names: list[str]) -> tuple[dict[str, np.ndarray], Meter]:
    """The means per seed of a meter [seeds, ...] on the host, and the meter for what follows.
    Metrics that were not computed are absent; those of seeds that have diverged are NaN."""
    frozen = np.asarray(is_frozen(meter))
    if frozen.all():
        of = f" of all {len(frozen)} seeds" if len(frozen) > 1 else ""
        raise DivergedError(
            f"training diverged: the last {LONGEST_ROW_OF_DISCARDS} updates{of} were not finite "
            "and were discarded; lower the learning rate or the reward scale"
        )
    means = {}
    for place, name in enumerate(names):
        total, count = np.asarray(meter.total)[:, place], np.asarray(meter.count)[:, place]
        if (count[~frozen] > 0).all():
            means[name] = np.where(frozen, np.nan, total / np.maximum(count, 1))
    if meter.discarded.any():
        means["discarded_updates"] = np.asarray(meter.discarded, np.float32)
    return means, meter._replace(total=meter.total * 0, count=meter.count * 0)
