"""One update of one seed: sample a batch, compute gradients, apply them if they are finite."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import Algorithm, Aux
from understudy.algorithms.optim import Gradients, Index
from understudy.buffers import Buffer
from understudy.networks.augmentation import shift_images
from understudy.training.devices import split_rows
from understudy.training.meter import Meter, is_frozen, record
from understudy.types import Key, Tree


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
    learner, good = apply_update(algorithm, learner, now, gradients, aux)
    return learner, aux, good


def apply_update(
    algorithm: Algorithm, learner: LearnerState, now: UpdateInputs, gradients: Gradients, aux: Aux
) -> Tree:
    """Apply gradients if they are finite; returns the learner, and whether they were applied.

    Otherwise the update is discarded as a whole: params, targets, optimizers and counters keep
    their values, and only the random key changes. After several discarded updates in a row the seed
    is frozen: no update is applied any more."""
    state, good = learner.state, finite(gradients) & ~is_frozen(learner.meter)
    proposed = algorithm.apply(state, gradients)
    state = jax.tree.map(lambda new, old: jnp.where(good, new, old), proposed, state)
    meter = record(learner.meter, aux.metrics, good)
    return learner._replace(state=state._replace(key=now.next_key), meter=meter), good


def finite(gradients: Tree) -> Bool[Array, ""]:
    """Whether every gradient is finite and its square too (Adam's second moment needs that)."""
    leaves = [x for x in jax.tree.leaves(gradients) if isinstance(x, jax.Array) and x.dtype != bool]
    return jnp.isfinite(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves))
