"""The updates that follow a rollout: one of all its rows, or epochs of minibatches."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from understudy.algorithms.base import Algorithm
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.algorithms.optim import Index
from understudy.buffers import Buffer
from understudy.training.update import LearnerState, Ready, ready, update


def learn_from_rollout(
    algorithm: Algorithm, buffer: Buffer, learner: LearnerState, rollout: Any, first_index: Index,
    count: int,
) -> LearnerState:  # fmt: skip
    """One update from all rows of a rollout, or `count` in epochs of disjoint random shares."""
    whole = ready(algorithm, buffer, learner.state, rollout)
    if count == 1:
        return update(algorithm, learner, whole, first_index)[0]

    def one(learner: LearnerState, share: tuple[Array, Array]) -> tuple[LearnerState, None]:
        return update(algorithm, learner, minibatch(whole, *share), share[1])[0], None

    indices = first_index + jnp.arange(count, dtype=jnp.int32)
    order = minibatch_rows(algorithm, learner.state, whole)
    return jax.lax.scan(one, learner, (order, indices))[0]


def minibatch_rows(algorithm: Algorithm, state: Any, whole: Ready) -> Int32[Array, "updates rows"]:
    """The rows of each of the updates that share what is `ready`."""
    needs = algorithm.needs
    assert isinstance(needs, RolloutNeeds)
    return needs.minibatch_rows(len(whole.batch.row), jax.random.split(state.key, 3)[1])


def minibatch(whole: Ready, rows: Int32[Array, " rows"], index: Index) -> Ready:
    """What update `index` learns from, of what is `ready` for several."""
    part = jax.tree.map(lambda x: x[rows], whole.batch)
    return whole._replace(batch=part, key=jax.random.fold_in(whole.next_key, index))
