"""One update of one seed: sample a batch, compute gradients, apply them if they are finite."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import Algorithm, Aux
from understudy.algorithms.optim import Gradients, Index
from understudy.buffers import Buffer
from understudy.networks.augmentation import shift_images
from understudy.training.device_sharding import split_rows
from understudy.training.meter import Meter, is_frozen, record
from understudy.types import Key, Tree


class LearnerState(NamedTuple):
    """What learning changes: the algorithm's TrainState and the record of how it went."""

    state: Any
    meter: Meter
    open_return: Float[Array, " envs"]  # discounted, of each environment's episode so far


class Ready(NamedTuple):
    """What one update needs beside the learner's state."""

    batch: Any  # prepared
    place: Int32[Array, "*seeds batch"] | None  # of its rows in the ring, if it came from one
    key: Key  # of the update's noise
    next_key: Key  # the State's, after the update


def ready(algorithm: Algorithm, buffer: Buffer, state: Any, data: Any) -> Ready:
    """Sample what the next update of one seed learns from."""
    next_key, draw_key, key = jax.random.split(state.key, 3)
    batch, place = sample_batch(algorithm, buffer, state, data, draw_key)
    return Ready(batch, place, key, next_key)


def sample_batch(
    algorithm: Algorithm, buffer: Buffer, state: Any, data: Any, key: Key
) -> tuple[Any, Int32[Array, " batch"] | None]:
    """A batch, augmented and prepared, and where its rows lie in the buffer."""
    batch, place = buffer.sample(data, key, state.hyper)
    most = getattr(algorithm.needs, "random_shift", 0)
    if most:
        batch = shift_images(batch, buffer.spec.observation.frames, most, key)
    return algorithm.prepare(state, batch), place


def update(
    algorithm: Algorithm, learner: LearnerState, now: Ready, index: Index
) -> tuple[LearnerState, Aux, Bool[Array, ""]]:
    """Update number `index`: the new learner, what the algorithm says of it, and whether it was
    applied."""
    mask = algorithm.update_mask(index)
    gradients, aux = algorithm.gradients(learner.state, split_rows(now.batch), now.key, mask)
    learner, good = finish(algorithm, learner, now, gradients, aux)
    return learner, aux, good


def finish(
    algorithm: Algorithm, learner: LearnerState, now: Ready, gradients: Gradients, aux: Aux
) -> Tree:
    """Take the step, unless it is not finite: then it is discarded as a whole. Params, targets,
    optimizers and counters keep their values; only the random key moves on. After a row of such
    steps the seed is frozen: it takes no step any more. Gives the learner, and whether the step
    was taken."""
    state, good = learner.state, finite(gradients) & ~is_frozen(learner.meter)
    proposed = algorithm.apply(state, gradients)
    state = jax.tree.map(lambda new, old: jnp.where(good, new, old), proposed, state)
    meter = record(learner.meter, aux.metrics, good)
    return learner._replace(state=state._replace(key=now.next_key), meter=meter), good


def finite(gradients: Tree) -> Bool[Array, ""]:
    """Whether every gradient is finite and its square too (Adam's second moment needs that)."""
    leaves = [x for x in jax.tree.leaves(gradients) if isinstance(x, jax.Array) and x.dtype != bool]
    return jnp.isfinite(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves))
