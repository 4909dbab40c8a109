"""Updates: sample a batch, compute gradients, apply them unless they are not finite."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import Algorithm, Aux
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.algorithms.optim import Gradients, Index
from understudy.buffers import Buffer, Priorities
from understudy.networks.augmentation import shift_images
from understudy.training.device_sharding import split_rows
from understudy.training.meter import Meter, empty_meter, is_frozen, record
from understudy.training.program_cache import shared
from understudy.training.setup import make_buffer
from understudy.types import Key, Metrics, Spec, Tree


class LearnerState(NamedTuple):
    """What learning changes: the algorithm's State and the record of how it went."""

    state: Any
    meter: Meter
    open_return: Float[Array, " envs"]  # discounted, of each environment's episode so far


def begin(algorithm: Algorithm, spec: Spec, num_envs: int, metrics: int, key: Key) -> LearnerState:
    return LearnerState(algorithm.init(spec, key), empty_meter(metrics), jnp.zeros(num_envs))


@shared
def metric_names(algorithm: Algorithm, spec: Spec, num_envs: int) -> list[str]:
    """The names of the numbers in a Meter, in order; nothing is computed."""

    def metrics(key: Key) -> Metrics:
        state = algorithm.init(spec, key)
        buffer = make_buffer(algorithm, spec, num_envs)
        batch, _ = sample_batch(algorithm, buffer, state, buffer.init(), key)
        _, aux = algorithm.gradients(state, batch, key, algorithm.update_mask(jnp.int32(0)))
        return aux.metrics

    return sorted(jax.eval_shape(metrics, jax.random.PRNGKey(0)))


def finite(gradients: Tree) -> Bool[Array, ""]:
    """Whether every gradient is finite and its square too (Adam's second moment needs that)."""
    leaves = [x for x in jax.tree.leaves(gradients) if isinstance(x, jax.Array) and x.dtype != bool]
    return jnp.isfinite(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves))


def move(learner: LearnerState, moved: dict[str, Array]) -> LearnerState:
    """Set hyper-parameters to what their schedules say; NaN leaves one as it is."""
    if not moved:
        return learner
    hyper = dict(learner.state.hyper)
    for name, value in moved.items():
        hyper[name] = jnp.where(jnp.isnan(value), hyper[name], value)
    return learner._replace(state=learner.state._replace(hyper=hyper))


def updates(
    algorithm: Algorithm, buffer: Buffer, learner: LearnerState, data: Any, first_index: Index,
    count: Index, moved: dict[str, Array] | None = None,
) -> tuple[LearnerState, Priorities | None]:  # fmt: skip
    """`count` updates in one program, and the priorities that follow from them. The stored steps
    themselves never change here, and so are not among the results.

    `data` is the buffer's state or, of a buffer that is `fed`, what the host has drawn, with an
    axis of `count`. `moved` holds the values of scheduled hyper-parameters, one for each update.
    Where the first index is known and whole periods of the delays follow it, the program holds no
    conditional."""
    if isinstance(algorithm.needs, RolloutNeeds):
        assert isinstance(count, int)
        return _learn_rollout(algorithm, buffer, learner, data, first_index, count), None
    priorities, period = buffer.get_priorities(data), algorithm.delays.period
    given = data if buffer.fed else None  # otherwise each update samples from all of it
    one = partial(_learn_batch, algorithm, buffer, data)
    start = (learner, priorities)
    if not isinstance(count, int):  # the update schedule is irregular
        return jax.lax.fori_loop(
            0, count, lambda i, carry: one(carry, first_index + i, None, {}), start
        )
    moved = moved or {}
    if count == 1:
        first = jax.tree.map(lambda x: x[0], (given, moved))
        return one(start, first_index, *first)
    if isinstance(first_index, int) and count % period == 0:
        shape = (count // period, period)
        given, moved = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), (given, moved))

        def block(carry: Tree, rows: Tree) -> tuple[Tree, None]:
            for phase in range(period):
                now = jax.tree.map(lambda x, phase=phase: x[phase], rows)
                carry = one(carry, (first_index + phase) % period, *now)
            return carry, None

        return jax.lax.scan(block, start, (given, moved), count // period)[0]
    indices = first_index + jnp.arange(count, dtype=jnp.int32)

    def step(carry: Tree, now: Tree) -> tuple[Tree, None]:
        return one(carry, *now), None

    return jax.lax.scan(step, start, (indices, given, moved))[0]


class Ready(NamedTuple):
    """What one update needs beside the learner."""

    batch: Any  # prepared
    place: Int32[Array, "*members batch"] | None  # of its rows in the ring, if it came from one
    key: Key  # of the update's noise
    next_key: Key  # the State's, after the update


def ready(algorithm: Algorithm, buffer: Buffer, state: Any, data: Any) -> Ready:
    """Sample what the next update of one member learns from."""
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


def minibatch_rows(algorithm: Algorithm, state: Any, whole: Ready) -> Int32[Array, "updates rows"]:
    """The rows of each of the updates that share what is `ready`."""
    needs = algorithm.needs
    assert isinstance(needs, RolloutNeeds)
    return needs.minibatch_rows(len(whole.batch.row), jax.random.split(state.key, 3)[1])


def minibatch(whole: Ready, rows: Int32[Array, " rows"], index: Index) -> Ready:
    """What update `index` learns from, of what is `ready` for several."""
    part = jax.tree.map(lambda x: x[rows], whole.batch)
    return whole._replace(batch=part, key=jax.random.fold_in(whole.next_key, index))


def finish(
    algorithm: Algorithm, learner: LearnerState, now: Ready, gradients: Gradients, aux: Aux
) -> Tree:
    """Take the step, unless it is not finite: then it is discarded as a whole. Params, targets,
    optimizers and counters keep their values; only the random key moves on. After a row of such
    steps the member is frozen: it takes no step any more. Gives the learner, and whether the step
    was taken."""
    state, good = learner.state, finite(gradients) & ~is_frozen(learner.meter)
    proposed = algorithm.apply(state, gradients)
    state = jax.tree.map(lambda new, old: jnp.where(good, new, old), proposed, state)
    meter = record(learner.meter, aux.metrics, good)
    return learner._replace(state=state._replace(key=now.next_key), meter=meter), good


def _learn_batch(
    algorithm: Algorithm, buffer: Buffer, stored: Any, carry: tuple[LearnerState, Any],
    index: Index, given: Any, moved: dict[str, Array],
) -> tuple[LearnerState, Priorities | None]:  # fmt: skip
    """One update of one member, from a fresh batch or from what was drawn for it."""
    learner, priorities = carry
    learner = move(learner, moved)
    data = buffer.with_priorities(stored, priorities) if given is None else given
    now = ready(algorithm, buffer, learner.state, data)
    learner, aux, good = _update(algorithm, learner, now, index)
    if priorities is None:
        return learner, None
    weight = now.batch.weight
    return learner, buffer.update_priorities(data, now.place, aux.priorities, weight, good)


def _learn_rollout(
    algorithm: Algorithm, buffer: Buffer, learner: LearnerState, rollout: Any, first_index: Index,
    count: int,
) -> LearnerState:  # fmt: skip
    """One update from all rows of a rollout, or `count` in epochs of disjoint random shares."""
    whole = ready(algorithm, buffer, learner.state, rollout)
    if count == 1:
        return _update(algorithm, learner, whole, first_index)[0]

    def one(learner: LearnerState, share: tuple[Array, Array]) -> tuple[LearnerState, None]:
        return _update(algorithm, learner, minibatch(whole, *share), share[1])[0], None

    indices = first_index + jnp.arange(count, dtype=jnp.int32)
    order = minibatch_rows(algorithm, learner.state, whole)
    return jax.lax.scan(one, learner, (order, indices))[0]


def _update(
    algorithm: Algorithm, learner: LearnerState, now: Ready, index: Index
) -> tuple[LearnerState, Aux, Bool[Array, ""]]:
    mask = algorithm.update_mask(index)
    gradients, aux = algorithm.gradients(learner.state, split_rows(now.batch), now.key, mask)
    learner, good = finish(algorithm, learner, now, gradients, aux)
    return learner, aux, good
