"""The running statistics of observations and returns."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from understudy.algorithms import normalization
from understudy.buffers.base import get_lanes, set_lanes
from understudy.training.update import LearnerState
from understudy.types import Chunk, Step


def observe(learner: LearnerState, chunk: Chunk) -> LearnerState:
    """Add the steps of a chunk to the running statistics, one after the other, if there are any."""
    if learner.state.normalizer == (None, None):
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
