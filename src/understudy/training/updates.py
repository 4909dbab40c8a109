"""Take in a step, draw a batch, update, guarded: what both loops do between acting and acting
again."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import Algorithm, Aux, Index, Replay
from understudy.buffers import Film, Ring, Rollout
from understudy.buffers.frame_batch import Drawn
from understudy.buffers.replay import Priorities
from understudy.training.device_sharding import split_rows
from understudy.training.feeding import Experience, create, draw, revised
from understudy.training.program_cache import shared
from understudy.types import DivergedError, Key, Metrics, Spec, Transition, Tree

LONGEST_ROW_OF_DISCARDS = 10  # after which a member is frozen


class Meter(NamedTuple):
    """Sums of metrics since the last log, kept on the device; fetched once per log."""

    total: Float[Array, " metrics"]
    count: Float[Array, " metrics"]
    discarded: Int32[Array, ""]  # updates thrown away because they were not finite
    discarded_in_a_row: Int32[Array, ""]


class Learner(NamedTuple):
    """What learning changes: the algorithm's State and the record of how it went."""

    state: Any
    meter: Meter
    open_return: Float[Array, " envs"]  # discounted, of each environment's episode so far


@shared
def metric_names(algorithm: Algorithm, spec: Spec, num_envs: int) -> list[str]:
    """The names of the numbers in a Meter, in order; nothing is computed."""

    def metrics(key: Key) -> Metrics:
        state = algorithm.init(spec, key)
        batch, _ = draw(algorithm, state, create(algorithm.appetite, spec, num_envs), key)
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


def begin(algorithm: Algorithm, spec: Spec, num_envs: int, metrics: int, key: Key) -> Learner:
    meter = Meter(jnp.zeros(metrics), jnp.zeros(metrics), jnp.int32(0), jnp.int32(0))
    return Learner(algorithm.init(spec, key), meter, jnp.zeros(num_envs))


def finite(gradients: Tree) -> Bool[Array, ""]:
    """Whether every gradient is finite and its square too (Adam's second moment needs that)."""
    leaves = [x for x in jax.tree.leaves(gradients) if isinstance(x, jax.Array) and x.dtype != bool]
    return jnp.isfinite(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves))


def move(learner: Learner, moved: dict[str, Array]) -> Learner:
    """Set hyper-parameters to what their schedules say; NaN leaves one as it is."""
    if not moved:
        return learner
    hyper = dict(learner.state.hyper)
    for name, value in moved.items():
        hyper[name] = jnp.where(jnp.isnan(value), hyper[name], value)
    return learner._replace(state=learner.state._replace(hyper=hyper))


def observe(
    algorithm: Algorithm, learner: Learner, step: Transition, valid: Bool[Array, " envs"]
) -> Learner:
    """Take a step of every environment into the running statistics, where there are any."""
    state, _, open_return = learner
    if state.running.returns is not None:
        open_return = state.hyper["gamma"] * open_return + step.reward
    state = algorithm.observe(state, step.observation, open_return, valid)
    if state.running.returns is not None:
        open_return = jnp.where(step.last | ~valid, 0.0, open_return)
    return learner._replace(state=state, open_return=open_return)


def observe_all(
    algorithm: Algorithm, learner: Learner, steps: Transition, valid: Bool[Array, "time envs"]
) -> Learner:
    """The same for several steps, [time, envs, ...]."""
    if learner.state.running == (None, None):
        return learner

    def one(learner: Learner, now: tuple[Transition, Array]) -> tuple[Learner, None]:
        return observe(algorithm, learner, *now), None

    return jax.lax.scan(one, learner, (steps, valid))[0]


def updates(
    algorithm: Algorithm,
    learner: Learner,
    experience: Experience | Drawn,
    first_index: Index,
    count: Index,
) -> tuple[Learner, Priorities | None]:
    """`count` updates in one program, and the priorities that follow from them. The stored steps
    themselves never change here, and so are not among the results.

    What the host has drawn has an axis of `count`. Where the first index is known and whole periods
    of `due` follow it, the program holds no conditional."""
    if isinstance(experience, Rollout | Drawn):
        assert isinstance(count, int)
        learn = _learn_rollout if isinstance(experience, Rollout) else _learn_drawn
        return learn(algorithm, learner, experience, first_index, count), None  # type: ignore
    if isinstance(count, int) and count == 1:
        return _learn_batch(algorithm, learner, experience, first_index)

    def one(carry: Tree, index: Index) -> Tree:
        learner, priorities = carry
        now = experience._replace(priorities=priorities)
        return _learn_batch(algorithm, learner, now, index)

    start, period = (learner, experience.priorities), algorithm.due_period
    if not isinstance(count, int):  # the update schedule is irregular
        return jax.lax.fori_loop(0, count, lambda i, carry: one(carry, first_index + i), start)
    if isinstance(first_index, int) and count % period == 0:

        def block(carry: Tree, _: None) -> tuple[Tree, None]:
            for phase in range(period):
                carry = one(carry, (first_index + phase) % period)
            return carry, None

        return jax.lax.scan(block, start, None, count // period)[0]
    indices = first_index + jnp.arange(count, dtype=jnp.int32)
    return jax.lax.scan(lambda carry, index: (one(carry, index), None), start, indices)[0]


class Ready(NamedTuple):
    """What one update needs beside the learner."""

    batch: Any  # prepared
    place: Int32[Array, "*members batch"] | None  # of its rows in the ring, if it came from one
    key: Key  # of the update's noise
    next_key: Key  # the State's, after the update


def ready(algorithm: Algorithm, state: Any, experience: Experience | Drawn) -> Ready:
    """Draw what the next update of one member learns from."""
    next_key, draw_key, key = jax.random.split(state.key, 3)
    batch, place = draw(algorithm, state, experience, draw_key)
    return Ready(batch, place, key, next_key)


def shuffled(state: Any, whole: Ready, count: int) -> Int32[Array, "count rows"]:
    """The rows of each of `count` updates that share what is `ready`, at random."""
    shuffle_key = jax.random.split(state.key, 3)[1]
    return jax.random.permutation(shuffle_key, len(whole.batch.row)).reshape(count, -1)


def minibatch(whole: Ready, rows: Int32[Array, " rows"], index: Index) -> Ready:
    """What update `index` learns from, of what is `ready` for several."""
    part = jax.tree.map(lambda x: x[rows], whole.batch)
    return whole._replace(batch=part, key=jax.random.fold_in(whole.next_key, index))


def finish(algorithm: Algorithm, learner: Learner, now: Ready, gradients: Any, aux: Aux) -> Tree:
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


def reconsider(
    algorithm: Algorithm, experience: Experience | None, now: Ready, aux: Aux,
    good: Bool[Array, ""],
) -> Priorities | None:  # fmt: skip
    """The priorities that follow from an update, where there are any."""
    appetite = algorithm.appetite
    if now.place is None or not isinstance(experience, Ring | Film):
        return None
    assert isinstance(appetite, Replay)
    return revised(appetite, experience, now.place, aux.priorities, now.batch.weight, good)


def _learn_batch(
    algorithm: Algorithm, learner: Learner, experience: Ring | Film, index: Index
) -> tuple[Learner, Priorities | None]:
    """One update of one member from a fresh batch."""
    now = ready(algorithm, learner.state, experience)
    learner, aux, good = _update(algorithm, learner, now, index)
    return learner, reconsider(algorithm, experience, now, aux, good)


def _learn_drawn(
    algorithm: Algorithm, learner: Learner, drawn: Drawn, first_index: Index, count: int
) -> Learner:
    """`count` updates from what was drawn for each."""

    def one(learner: Learner, given: tuple[Drawn, Index]) -> tuple[Learner, None]:
        now = ready(algorithm, learner.state, given[0])
        return _update(algorithm, learner, now, given[1])[0], None

    if count == 1:
        return one(learner, (jax.tree.map(lambda x: x[0], drawn), first_index))[0]
    indices = first_index + jnp.arange(count, dtype=jnp.int32)
    return jax.lax.scan(one, learner, (drawn, indices))[0]


def _learn_rollout(
    algorithm: Algorithm, learner: Learner, rollout: Rollout, first_index: Index, count: int
) -> Learner:
    """One update from all rows of a rollout, or `count` from disjoint random shares of them."""
    whole = ready(algorithm, learner.state, rollout)
    if count == 1:
        return _update(algorithm, learner, whole, first_index)[0]

    def one(learner: Learner, share: tuple[Array, Array]) -> tuple[Learner, None]:
        return _update(algorithm, learner, minibatch(whole, *share), share[1])[0], None

    indices = first_index + jnp.arange(count, dtype=jnp.int32)
    order = shuffled(learner.state, whole, count)
    return jax.lax.scan(one, learner, (order, indices))[0]


def _update(
    algorithm: Algorithm, learner: Learner, now: Ready, index: Index
) -> tuple[Learner, Aux, Bool[Array, ""]]:
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
