"""Updates: sample a batch, compute gradients, apply them unless they are not finite."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import Algorithm, Aux, Index
from understudy.buffers import Buffer, Priorities
from understudy.buffers.base import own_lanes, put_lanes
from understudy.networks.augmentation import random_shift
from understudy.training.device_sharding import split_rows
from understudy.training.program_cache import shared
from understudy.training.setup import make_buffer
from understudy.types import (
    Batch,
    Chunk,
    DivergedError,
    History,
    Key,
    Metrics,
    Spec,
    Step,
    Tree,
)

LONGEST_ROW_OF_DISCARDS = 10  # after which a member is frozen


class Meter(NamedTuple):
    """Sums of metrics since the last log, kept on the device; fetched once per log."""

    total: Float[Array, " metrics"]
    count: Float[Array, " metrics"]
    discarded: Int32[Array, ""]  # updates thrown away because they were not finite
    discarded_in_a_row: Int32[Array, ""]


class LearnerState(NamedTuple):
    """What learning changes: the algorithm's State and the record of how it went."""

    state: Any
    meter: Meter
    open_return: Float[Array, " envs"]  # discounted, of each environment's episode so far


@shared
def metric_names(algorithm: Algorithm, spec: Spec, num_envs: int) -> list[str]:
    """The names of the numbers in a Meter, in order; nothing is computed."""

    def metrics(key: Key) -> Metrics:
        state = algorithm.init(spec, key)
        buffer = make_buffer(algorithm, spec, num_envs)
        batch, _ = sample_batch(algorithm, buffer, state, buffer.init(), key)
        _, aux = algorithm.gradients(state, batch, key, algorithm.due(jnp.int32(0)))
        return aux.metrics

    return sorted(jax.eval_shape(metrics, jax.random.PRNGKey(0)))


def read_meter(meter: Meter, names: list[str]) -> tuple[dict[str, np.ndarray], Meter]:
    """Means per member of a meter [members, ...] on the host, and the meter to go on with. What was
    not computed since the last time is absent; of members that have diverged it is NaN."""
    frozen = diverged(meter)
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


def diverged(meter: Meter) -> np.ndarray:
    """[members]: whether a member's updates were not finite so often in a row that it is frozen."""
    return np.asarray(meter.discarded_in_a_row) >= LONGEST_ROW_OF_DISCARDS


def begin(algorithm: Algorithm, spec: Spec, num_envs: int, metrics: int, key: Key) -> LearnerState:
    meter = Meter(jnp.zeros(metrics), jnp.zeros(metrics), jnp.int32(0), jnp.int32(0))
    return LearnerState(algorithm.init(spec, key), meter, jnp.zeros(num_envs))


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


def observe(algorithm: Algorithm, learner: LearnerState, chunk: Chunk) -> LearnerState:
    """Take the steps of a chunk into the running statistics, one after the other, where there are
    any."""
    if learner.state.normalizer == (None, None):
        return learner
    everyone = learner.open_return
    own = learner._replace(open_return=own_lanes(chunk, everyone))

    def one(learner: LearnerState, now: tuple[Step, Array]) -> tuple[LearnerState, None]:
        return _observe_step(algorithm, learner, *now), None

    rows = (chunk.steps, chunk.valid)
    if len(chunk.valid) == 1:
        own, _ = one(own, jax.tree.map(lambda x: x[0], rows))
    else:
        own, _ = jax.lax.scan(one, own, rows)
    return own._replace(open_return=put_lanes(chunk, everyone, own.open_return))


def _observe_step(
    algorithm: Algorithm, learner: LearnerState, step: Step, valid: Bool[Array, " envs"]
) -> LearnerState:
    state, _, open_return = learner
    if state.normalizer.returns is not None:
        open_return = state.hyper["gamma"] * open_return + step.reward
    state = algorithm.observe(state, step.observation, open_return, valid)
    if state.normalizer.returns is not None:
        open_return = jnp.where(step.last | ~valid, 0.0, open_return)
    return learner._replace(state=state, open_return=open_return)


def updates(
    algorithm: Algorithm, buffer: Buffer, learner: LearnerState, data: Any, first_index: Index,
    count: Index, moved: dict[str, Array] | None = None,
) -> tuple[LearnerState, Priorities | None]:  # fmt: skip
    """`count` updates in one program, and the priorities that follow from them. The stored steps
    themselves never change here, and so are not among the results.

    `data` is the buffer's state or, of a buffer that is `fed`, what the host has drawn, with an
    axis of `count`. `moved` holds the values of scheduled hyper-parameters, one for each update.
    Where the first index is known and whole periods of `due` follow it, the program holds no
    conditional."""
    if algorithm.needs.on_policy:
        assert isinstance(count, int)
        return _learn_rollout(algorithm, buffer, learner, data, first_index, count), None
    priorities, period = buffer.get_priorities(data), algorithm.due_period
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


def shift_images(batch: Batch, frames: int, most: int, key: Key) -> Batch:
    """Images moved by a few pixels, each row's by its own (each sequence's all alike)."""
    here, there = jax.random.split(jax.random.fold_in(key, 1))
    seen, then = batch.observation, batch.next_observation

    def move(images: Array, key: Key) -> Array:
        rows = jnp.arange(len(images), dtype=jnp.int32)
        return random_shift(images, images.shape[1:], most, key, rows, frames)

    if isinstance(seen, History):  # one sequence, asked about at two times
        moved = jax.vmap(move, (1, None), 1)(seen.observation, here)
        seen, then = (dataclasses.replace(one, observation=moved) for one in (seen, then))
        return batch._replace(observation=seen, next_observation=then)
    return batch._replace(observation=move(seen, here), next_observation=move(then, there))


def shuffled(state: Any, whole: Ready, count: int, epochs: int = 1) -> Int32[Array, "count rows"]:
    """The rows of each of `count` updates that share what is `ready`, at random: every epoch goes
    through all rows once."""
    rows, shuffle_key = len(whole.batch.row), jax.random.split(state.key, 3)[1]
    if count == epochs:  # whole rollouts, whose rows need not be shuffled
        return jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (count, rows))
    if epochs == 1:
        return jax.random.permutation(shuffle_key, rows).reshape(count, -1)
    keys = jax.random.split(shuffle_key, epochs)
    orders = jax.vmap(partial(jax.random.permutation, x=rows))(keys)
    return orders.reshape(count, -1)


def minibatch(whole: Ready, rows: Int32[Array, " rows"], index: Index) -> Ready:
    """What update `index` learns from, of what is `ready` for several."""
    part = jax.tree.map(lambda x: x[rows], whole.batch)
    return whole._replace(batch=part, key=jax.random.fold_in(whole.next_key, index))


def finish(
    algorithm: Algorithm, learner: LearnerState, now: Ready, gradients: Any, aux: Aux
) -> Tree:
    """Take the step, unless it is not finite: then it is discarded as a whole. Weights, moments,
    targets and counters keep their values; only the random key moves on. After a row of such steps
    the member is frozen: it takes no step any more. Gives the learner, and whether the step was
    taken."""
    frozen = learner.meter.discarded_in_a_row >= LONGEST_ROW_OF_DISCARDS
    state, good = learner.state, finite(gradients) & ~frozen
    proposed = algorithm.apply(state, gradients)
    state = jax.tree.map(lambda new, old: jnp.where(good, new, old), proposed, state)
    meter = _record(learner.meter, aux.metrics, good)
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
    epochs = getattr(algorithm.needs, "epochs", 1)
    order = shuffled(learner.state, whole, count, epochs)
    return jax.lax.scan(one, learner, (order, indices))[0]


def _update(
    algorithm: Algorithm, learner: LearnerState, now: Ready, index: Index
) -> tuple[LearnerState, Aux, Bool[Array, ""]]:
    due = algorithm.due(index)
    gradients, aux = algorithm.gradients(learner.state, split_rows(now.batch), now.key, due)
    learner, good = finish(algorithm, learner, now, gradients, aux)
    return learner, aux, good


def _record(meter: Meter, metrics: dict[str, Array], good: Bool[Array, ""]) -> Meter:
    values = jnp.stack([metrics[name] for name in sorted(metrics)])
    counted = jnp.isfinite(values) & good  # NaN marks a part that was not due
    return Meter(
        total=meter.total + jnp.where(counted, values, 0.0),
        count=meter.count + counted,
        discarded=meter.discarded + ~good,
        discarded_in_a_row=jnp.where(good, 0, meter.discarded_in_a_row + 1),
    )
