"""The learner's program: add a chunk of steps to the buffer, then update.

`learn_from_chunk` is all that happens in one call, of one seed. `Transport` compiles it, lifts it
over all seeds, calls it beside the environments' steps and holds what it returns.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from understudy.algorithms import normalization
from understudy.algorithms.base import Algorithm
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.algorithms.optim import Delays, Index
from understudy.buffers import Buffer, Priorities
from understudy.buffers.base import get_lanes, set_lanes
from understudy.training.update import (
    LearnerState,
    UpdateInputs,
    reset_networks,
    sample_inputs,
    update,
)
from understudy.types import Chunk, Step, Tree


class Call(NamedTuple):
    """The static arguments of the learner's program."""

    count: int  # updates
    moving: tuple[str, ...] = ()  # the hyper-parameters that follow a schedule
    steps: tuple[int, ...] = ()  # of a chunk of several steps: the one that each update follows
    phase: int | None = (
        None  # the first update's place in the pattern of delays, if worth a program
    )


def learn_from_chunk(
    algorithm: Algorithm, buffer: Buffer, call: Call, learner: LearnerState, data: Any,
    chunk: Chunk | None, index: Array, values: Array | None,
) -> tuple[LearnerState, Any]:  # fmt: skip
    """Add a chunk of one seed to the buffer, take it into the statistics, then update.

    `data` is the buffer's state or, of an external buffer, sampled steps. `index` is that of the
    next update. `values` [time, names] are those of scheduled hyper-parameters at each step of the
    chunk; None if nothing is scheduled.

    Some algorithms take a rollout into the statistics after its updates (`observed_last`)."""
    moved = {}
    if values is not None:
        moved = {name: values[:, place] for place, name in enumerate(call.moving)}
    learner = move(learner, {name: value[0] for name, value in moved.items()})
    if chunk is not None and not buffer.external:
        data = buffer.add(data, chunk)
    if chunk is not None and not observed_last(algorithm):
        learner = observe(learner, chunk)
    if call.count:
        first = index if call.phase is None else call.phase
        steps = np.array(call.steps, int)
        each = {name: value[steps] for name, value in moved.items()} if call.steps else None
        learner, priorities = updates(algorithm, buffer, learner, data, first, call.count, each)
        data = buffer.with_priorities(data, priorities)
    return learner, None if buffer.external else data


def updates(
    algorithm: Algorithm, buffer: Buffer, learner: LearnerState, data: Any, first_index: Index,
    count: Index, moved: dict[str, Array] | None = None,
) -> tuple[LearnerState, Priorities | None]:  # fmt: skip
    """Do `count` updates in one program; also return the priorities that follow from them. Stored
    steps never change here, and so are not among the results.

    `data` is the buffer's state or, of an external buffer, steps sampled for each of the updates.
    `moved` holds the values of scheduled hyper-parameters, one for each update. Where the first
    index is known, the program holds no conditional."""
    if isinstance(algorithm.needs, RolloutNeeds):
        assert isinstance(count, int)
        return learn_from_rollout(algorithm, buffer, learner, data, first_index, count), None
    priorities = buffer.get_priorities(data)
    given = data if buffer.external else None  # otherwise each update samples from all of it
    one = partial(_update_from_replay, algorithm, buffer, data)
    start, rows = (learner, priorities), (given, moved or {})
    if not isinstance(count, int):  # the update schedule is irregular
        return jax.lax.fori_loop(0, count, lambda i, c: one(c, first_index + i, None, {}), start)
    if count == 1:
        return _equal_updates(one, start, first_index, rows, 1)
    if isinstance(first_index, int):
        return _updates_at_known_places(algorithm.delays, one, start, first_index, rows, count)
    each = (first_index + jnp.arange(count, dtype=jnp.int32), *rows)
    return jax.lax.scan(lambda c, now: (one(c, *now), None), start, each)[0]


def _equal_updates(
    one: Callable[..., Tree], carry: Tree, index: Index, rows: Tree, count: int
) -> Tree:
    """Do updates with the mask of one index."""
    if count == 1:
        return one(carry, index, *jax.tree.map(lambda x: x[0], rows))
    return jax.lax.scan(lambda c, now: (one(c, index, *now), None), carry, rows, count)[0]


def _updates_at_known_places(
    delays: Delays, one: Callable[..., Tree], start: Tree, first: int, rows: Tree, count: int
) -> Tree:
    """Do updates without conditionals: whole periods of the delays, then a part of one."""

    def block(carry: Tree, rows: Tree, size: int) -> Tree:
        for index, run in delays.runs(first, size):
            at = slice(index - first, index - first + run)
            part = jax.tree.map(lambda x, at=at: x[at], rows)
            carry = _equal_updates(one, carry, index, part, run)
        return carry

    period = delays.period
    whole, rest = divmod(count, period)
    cut = count - rest
    if whole:
        periods = jax.tree.map(lambda x: x[:cut].reshape(whole, period, *x.shape[1:]), rows)
        start = jax.lax.scan(lambda c, now: (block(c, now, period), None), start, periods, whole)[0]
    return block(start, jax.tree.map(lambda x: x[cut:], rows), rest)


def _update_from_replay(
    algorithm: Algorithm, buffer: Buffer, stored: Any, carry: tuple[LearnerState, Any],
    index: Index, given: Any, moved: dict[str, Array],
) -> tuple[LearnerState, Priorities | None]:  # fmt: skip
    """Do one update of one seed, from a fresh batch or from steps sampled for it."""
    learner, priorities = carry
    learner = move(learner, moved)
    data = buffer.with_priorities(stored, priorities) if given is None else given
    now = sample_inputs(algorithm, buffer, learner.state, data)
    learner, aux, good = update(algorithm, learner, now, index)
    learner = reset_networks(algorithm, buffer.spec, learner, algorithm.update_mask(index).reset)
    errors, weight = aux.priorities, now.batch.weight
    return learner, buffer.update_priorities(data, now.place, errors, weight, good)


def move(learner: LearnerState, moved: dict[str, Array]) -> LearnerState:
    """Set hyper-parameters to scheduled values; NaN leaves one unchanged."""
    if not moved:
        return learner
    hyper = dict(learner.state.hyper)
    for name, value in moved.items():
        hyper[name] = jnp.where(jnp.isnan(value), hyper[name], value)
    return learner._replace(state=learner.state._replace(hyper=hyper))


def learn_from_rollout(
    algorithm: Algorithm, buffer: Buffer, learner: LearnerState, rollout: Any, first_index: Index,
    count: int,
) -> LearnerState:  # fmt: skip
    """Do one update from all rows of a rollout, or `count` updates in epochs of minibatches."""
    whole = sample_inputs(algorithm, buffer, learner.state, rollout)
    if count == 1:
        learner = update(algorithm, learner, whole, first_index)[0]
        return observe_rollout(algorithm, buffer, learner, rollout)

    def one(learner: LearnerState, now: tuple[Array, Array]) -> tuple[LearnerState, None]:
        return update(algorithm, learner, minibatch(whole, *now), now[1])[0], None

    indices = first_index + jnp.arange(count, dtype=jnp.int32)
    order = minibatch_rows(algorithm, learner.state, whole)
    learner, _ = jax.lax.scan(one, learner, (order, indices))
    return observe_rollout(algorithm, buffer, learner, rollout)


def observe_rollout(
    algorithm: Algorithm, buffer: Buffer, learner: LearnerState, rollout: Any
) -> LearnerState:
    """Add the steps of a rollout to the running statistics after its updates, if the algorithm is
    one of those."""
    if not observed_last(algorithm):
        return learner
    return observe(learner, buffer.newest(rollout))


def observed_last(algorithm: Algorithm) -> bool:
    """Whether steps change the running statistics after the updates from them."""
    return getattr(algorithm.needs, "observed_last", False)


def minibatch_rows(
    algorithm: Algorithm, state: Any, whole: UpdateInputs
) -> Int32[Array, "updates rows"]:
    """The rows of each of the updates that share one rollout."""
    needs = algorithm.needs
    assert isinstance(needs, RolloutNeeds)
    return needs.minibatch_rows(len(whole.batch.row), jax.random.split(state.key, 3)[1])


def minibatch(whole: UpdateInputs, rows: Int32[Array, " rows"], index: Index) -> UpdateInputs:
    """The inputs of update `index`, of those of a whole rollout."""
    part = jax.tree.map(lambda x: x[rows], whole.batch)
    return whole._replace(batch=part, key=jax.random.fold_in(whole.next_key, index))


def observe(learner: LearnerState, chunk: Chunk) -> LearnerState:
    """Add the steps of a chunk to the running statistics, one after the other, if there are any."""
    if all(part is None for part in learner.state.normalizer):
        return learner
    all_lanes = learner.open_return
    own = learner._replace(open_return=get_lanes(chunk, all_lanes))

    def one(learner: LearnerState, now: tuple[Step, Array]) -> tuple[LearnerState, None]:
        return _observe_step(learner, *now), None

    rows = (chunk.steps, chunk.valid)
    if len(chunk.valid) == 1:
        own, _ = one(own, jax.tree.map(lambda x: x[0], rows))
    else:
        own, _ = jax.lax.scan(one, own, rows)
    return own._replace(open_return=set_lanes(chunk, all_lanes, own.open_return))


def _observe_step(learner: LearnerState, step: Step, valid: Bool[Array, " envs"]) -> LearnerState:
    state, _, open_return = learner
    if state.normalizer.returns is not None:
        open_return = state.hyper["gamma"] * open_return + step.reward
    statistics = normalization.update_normalizer(
        state.normalizer, step.observation, open_return, valid
    )
    state = state._replace(normalizer=statistics)
    if statistics.returns is not None:
        open_return = jnp.where(step.last | ~valid, 0.0, open_return)
    return learner._replace(state=state, open_return=open_return)
