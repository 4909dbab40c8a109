"""The learner's program: add a chunk of steps to the buffer, then update.

`learn_from_chunk` is all that happens in one call, of one seed. `Transport` compiles it, lifts it
over all seeds, calls it beside the environments' steps and holds what it returns.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from understudy.algorithms.base import Algorithm
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.algorithms.optim import Index
from understudy.buffers import Buffer, Priorities
from understudy.training.rollout_updates import learn_from_rollout
from understudy.training.running_statistics import observe
from understudy.training.step_packing import extras_of
from understudy.training.update import LearnerState, ready, update
from understudy.types import Chunk, Tree


class Call(NamedTuple):
    """What one call of the learner's program is compiled for."""

    count: int  # updates
    phase: int | None  # a single update's place in the pattern of delayed parts, if worth it
    moving: tuple[str, ...]  # the hyper-parameters that follow a schedule
    steps: tuple[int, ...] = ()  # of a chunk of several steps: the one that each update follows


def learn_from_chunk(
    algorithm: Algorithm, buffer: Buffer, call: Call, learner: LearnerState, data: Any,
    chunk: Chunk | None, index: Array, values: Array,
) -> tuple[LearnerState, Any]:  # fmt: skip
    """Add a chunk of one seed to the buffer, take it into the statistics, then update.

    `data` is the buffer's state or, of a buffer that is fed, what the host has sampled. `index` is
    that of the next update. `values` [time, names] are those of scheduled hyper-parameters at each
    step of the chunk.

    Where the extras of acting are learned from, the statistics stay as they were while acting until
    the updates are done: only then is the first importance ratio 1."""
    frozen = bool(extras_of(algorithm))
    moved = {name: values[:, place] for place, name in enumerate(call.moving)}
    learner = move(learner, {name: value[0] for name, value in moved.items()})
    if chunk is not None and not buffer.fed:
        data = buffer.add(data, chunk)
    if chunk is not None and not frozen:
        learner = observe(learner, chunk)
    if call.count:
        first = index if call.phase is None else call.phase
        steps = np.array(call.steps, int)
        each = {name: value[steps] for name, value in moved.items()} if call.steps else None
        learner, priorities = updates(algorithm, buffer, learner, data, first, call.count, each)
        data = buffer.with_priorities(data, priorities)
    if chunk is not None and frozen:
        learner = observe(learner, chunk)
    return learner, None if buffer.fed else data


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
        return learn_from_rollout(algorithm, buffer, learner, data, first_index, count), None
    priorities, period = buffer.get_priorities(data), algorithm.delays.period
    given = data if buffer.fed else None  # otherwise each update samples from all of it
    one = partial(_update_from_replay, algorithm, buffer, data)
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


def _update_from_replay(
    algorithm: Algorithm, buffer: Buffer, stored: Any, carry: tuple[LearnerState, Any],
    index: Index, given: Any, moved: dict[str, Array],
) -> tuple[LearnerState, Priorities | None]:  # fmt: skip
    """One update of one seed, from a fresh batch or from what was drawn for it."""
    learner, priorities = carry
    learner = move(learner, moved)
    data = buffer.with_priorities(stored, priorities) if given is None else given
    now = ready(algorithm, buffer, learner.state, data)
    learner, aux, good = update(algorithm, learner, now, index)
    if priorities is None:
        return learner, None
    weight = now.batch.weight
    return learner, buffer.update_priorities(data, now.place, aux.priorities, weight, good)


def move(learner: LearnerState, moved: dict[str, Array]) -> LearnerState:
    """Set hyper-parameters to what their schedules say; NaN leaves one as it is."""
    if not moved:
        return learner
    hyper = dict(learner.state.hyper)
    for name, value in moved.items():
        hyper[name] = jnp.where(jnp.isnan(value), hyper[name], value)
    return learner._replace(state=learner.state._replace(hyper=hyper))
