"""The objective of A2C (Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning",
arXiv 1602.01783) with generalized advantages (Schulman et al., arXiv 1506.02438)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Shaped

from understudy.networks import StateDependentActor, state_dependent_std
from understudy.ops.distributions import Categorical, Gaussian, MultiCategorical
from understudy.ops.returns import gae
from understudy.types import History, Observation, Scalar, Trajectory

Distribution = Categorical | MultiCategorical | Gaussian


class Prepared(NamedTuple):
    """A rollout as its loss sees it: rows in any order, each with what it should learn."""

    observation: Observation
    action: Shaped[Array, "rows *action"]
    advantage: Float[Array, " rows"]
    value_target: Float[Array, " rows"]
    weight: Float[Array, " rows"]  # 0 where there was no step; a mean of 1 over the rollout
    row: Int32[Array, " rows"]


def distribution(actor: Any, observation: Observation) -> Distribution:
    """The policy π(·|s). Exploration that depends on the state is a Gaussian too, over draws of
    its matrix."""
    if isinstance(actor, StateDependentActor):
        mean, features = actor(observation)
        return Gaussian(mean, jnp.log(state_dependent_std(features, actor.log_std)))
    return actor(observation)


def only_valid(steps: Trajectory) -> Trajectory:
    """Rows without a step hold zeros and cut all traces: whatever lay there is gone, NaN too."""

    def blank(x: Array) -> Array:
        valid = steps.valid.reshape(*steps.valid.shape, *(1,) * (x.ndim - 2))
        return jnp.where(valid, x, jnp.zeros_like(x))

    facts = steps._replace(memory=None)
    blanked = jax.tree.map(blank, facts)
    return blanked._replace(last=steps.last | ~steps.valid, memory=steps.memory)


def rows(x: Shaped[Array, "time envs *each"]) -> Shaped[Array, "rows *each"]:
    """All steps one below the other."""
    return x.reshape(-1, *x.shape[2:])


def histories(steps: Trajectory) -> tuple[History, History]:
    """What was seen before and after each step, with the memory before it; rows are [envs · time].
    An episode begins after the last step of another."""
    seen, ahead, last = (
        jnp.swapaxes(x, 0, 1) for x in (steps.observation, steps.next_observation, steps.last)
    )
    # The stored memory is blank already where an episode begins with the first step.
    first = jnp.concatenate([jnp.zeros_like(last[:, :1]), last[:, :-1]], axis=1)
    at = jnp.broadcast_to(jnp.arange(last.shape[1], dtype=jnp.int32), last.shape)
    assert steps.memory is not None
    before = History(seen, first, steps.memory, at)
    return before, dataclasses.replace(before, ahead=ahead)


def advantages(
    steps: Trajectory,
    value: Float[Array, "time envs"],
    next_value: Float[Array, "time envs"],
    trace_decay: Scalar,
) -> Float[Array, "time envs"]:
    """Schulman's eq. 16, within the rollout. With λ = 1 it is the paper's R − V(s): the rewards
    up to the rollout's end (algorithm S3) or the episode's, then V of what was seen there. Zero
    where there was no step."""
    value = jnp.where(steps.valid, value, 0.0)
    return gae(steps.reward, steps.discount, steps.last, value, next_value, trace_decay)


def standardized(
    advantage: Float[Array, "time envs"], valid: Bool[Array, "time envs"]
) -> Float[Array, "time envs"]:
    """Zero mean and unit variance over the steps that were."""
    mean, std = (moment(advantage, where=valid) for moment in (jnp.mean, jnp.std))
    return jnp.where(valid, (advantage - mean) / (std + 1e-8), 0.0)


def weights(valid: Bool[Array, "time envs"]) -> Float[Array, "time envs"]:
    """Equal for all steps, 0 where there was none. A mean over all rows is one over steps, and so
    is the mean of the means over equal parts of the rows."""
    return valid * (valid.size / jnp.maximum(jnp.sum(valid), 1))


def actor_loss(policy: Distribution, batch: Prepared) -> Scalar:
    """−A·log π(a|s): its gradient is the paper's ∇ log π(a|s)·(R − V(s))."""
    return -jnp.mean(batch.weight * batch.advantage * policy.log_prob(batch.action))


def value_loss(value: Float[Array, " rows"], batch: Prepared) -> Scalar:
    """(R − V(s))²."""
    return jnp.mean(batch.weight * (batch.value_target - value) ** 2)


def entropy_loss(policy: Distribution, batch: Prepared) -> Scalar:
    """−H(π(·|s))."""
    return -jnp.mean(batch.weight * policy.entropy())


def explained_variance(value: Float[Array, " rows"], batch: Prepared) -> Scalar:
    """How much of the targets' variance the value network foresees: 1 is all of it, 0 none. NaN
    where they do not vary."""
    happened = batch.weight > 0
    spread = jnp.var(batch.value_target, where=happened)
    left = jnp.var(batch.value_target - value, where=happened)
    return jnp.where(spread > 0, 1.0 - left / spread, jnp.nan)
