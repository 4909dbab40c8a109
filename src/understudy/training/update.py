"""One update of one seed: sample a batch, compute gradients, apply them if they are finite. The
meter sums metrics, and counts updates that were not finite."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import Algorithm, Aux
from understudy.algorithms.optim import Flag, Gradients, Index, when
from understudy.buffers import Buffer
from understudy.networks.augmentation import shift_images
from understudy.training.devices import split_rows
from understudy.types import DivergedError, Key, Metrics, Spec, Tree

MOST_DISCARDS = 10  # updates discarded in a row, after which a seed is frozen


class Meter(NamedTuple):
    """Sums of metrics since the last log, on the device; fetched once per log."""

    total: Float[Array, " metrics"]
    count: Float[Array, " metrics"]
    discarded: Int32[Array, ""]  # updates thrown away because they were not finite
    discarded_in_a_row: Int32[Array, ""]


class LearnerState(NamedTuple):
    """What learning changes: the algorithm's TrainState and the record of how it went."""

    state: Any
    meter: Meter
    open_return: Float[Array, " envs"]  # discounted, of each environment's episode so far


class UpdateInputs(NamedTuple):
    """What one update needs, besides the learner's state."""

    batch: Any  # prepared
    place: Int32[Array, "*seeds batch"] | None  # of its rows in the ring, if it came from one
    key: Key  # of the update's noise
    next_key: Key  # the State's, after the update


def sample_inputs(algorithm: Algorithm, buffer: Buffer, state: Any, data: Any) -> UpdateInputs:
    """Sample the inputs of the next update of one seed."""
    next_key, draw_key, key = jax.random.split(state.key, 3)
    batch, place = sample_batch(algorithm, buffer, state, data, draw_key)
    return UpdateInputs(batch, place, key, next_key)


def sample_batch(
    algorithm: Algorithm, buffer: Buffer, state: Any, data: Any, key: Key
) -> tuple[Any, Int32[Array, " batch"] | None]:
    """Sample a batch, augmented and prepared; also return where its rows lie in the buffer."""
    batch, place = buffer.sample(data, key, state.hyper)
    most = getattr(algorithm.needs, "random_shift", 0)
    if most:
        batch = shift_images(batch, buffer.spec.observation.frames, most, key)
    return algorithm.prepare(state, batch), place


def update(
    algorithm: Algorithm, learner: LearnerState, now: UpdateInputs, index: Index
) -> tuple[LearnerState, Aux, Bool[Array, ""]]:
    """Do update number `index`: returns the new learner, the algorithm's metrics and errors, and
    whether the update was applied."""
    mask = algorithm.update_mask(index)
    gradients, aux = algorithm.gradients(learner.state, split_rows(now.batch), now.key, mask)
    learner, good = apply_update(algorithm, learner, gradients, aux.metrics, now.next_key)
    return learner, aux, good


def apply_update(
    algorithm: Algorithm, learner: LearnerState, gradients: Gradients, metrics: Metrics, key: Key
) -> Tree:
    """Apply gradients if they are finite; returns the learner, and whether they were applied.

    Otherwise the update is discarded as a whole: params, targets, optimizers and counters keep
    their values, and only the random key changes (`key` is the next one). After several discarded
    updates in a row the seed is frozen: no update is applied any more."""
    state, good = learner.state, finite(gradients) & ~is_frozen(learner.meter)
    proposed = algorithm.apply(state, gradients)
    state = jax.tree.map(lambda new, old: jnp.where(good, new, old), proposed, state)
    meter = record(learner.meter, metrics, good)
    return learner._replace(state=state._replace(key=key), meter=meter), good


def reset_networks(
    algorithm: Algorithm, spec: Spec, learner: LearnerState, flag: Flag
) -> LearnerState:
    """Initialize networks, learned numbers, targets and optimizers anew if the flag is set (primacy
    bias: Nikishin et al., 2022, arXiv 2205.07802). Statistics, counters and replay stay. A frozen
    seed keeps all, because it would not learn again."""

    def reset() -> LearnerState:
        key, init_key = jax.random.split(learner.state.key)
        names, frozen = ("params", "targets", "opt_state"), is_frozen(learner.meter)
        new, old = (
            {name: getattr(state, name) for name in names}
            for state in (algorithm.init(spec, init_key), learner.state)
        )
        parts = jax.tree.map(lambda new, old: jnp.where(frozen, old, new), new, old)
        return learner._replace(state=learner.state._replace(**parts, key=key))

    return when(flag, reset, lambda: learner)


def finite(gradients: Tree) -> Bool[Array, ""]:
    """Whether every gradient is finite and its square too (Adam's second moment needs that)."""
    leaves = [x for x in jax.tree.leaves(gradients) if isinstance(x, jax.Array) and x.dtype != bool]
    return jnp.isfinite(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves))


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
    return meter.discarded_in_a_row >= MOST_DISCARDS


def read_meter(meter: Meter, names: list[str]) -> tuple[dict[str, np.ndarray], Meter]:
    """The means per seed of a meter [seeds, ...] on the host, and the meter for what follows.
    Metrics that were not computed are absent; those of seeds that have diverged are NaN."""
    frozen = np.asarray(is_frozen(meter))
    if frozen.all():
        of = f" of all {len(frozen)} seeds" if len(frozen) > 1 else ""
        raise DivergedError(
            f"training diverged: the last {MOST_DISCARDS} updates{of} were not finite "
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
