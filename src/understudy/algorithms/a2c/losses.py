"""The objective of A2C (Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning",
arXiv 1602.01783) with generalized advantages (Schulman et al., arXiv 1506.02438)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Shaped

from understudy.ops.distributions import Categorical, Gaussian, MultiCategorical
from understudy.ops.returns import gae
from understudy.types import History, Observation, Scalar, Trajectory

Distribution = Categorical | MultiCategorical | Gaussian


class Prepared(NamedTuple):
    """A rollout for the loss: rows in any order, each with its advantage and value target."""

    observation: Observation
    action: Shaped[Array, "rows *action"]
    advantage: Float[Array, " rows"]
    value_target: Float[Array, " rows"]
    weight: Float[Array, " rows"]  # 0 for rows without a step; its mean over the rollout is 1
    row: Int32[Array, " rows"]


def only_valid(steps: Trajectory) -> Trajectory:
    """Fill rows without a step with zeros, whatever they hold, and let them cut all traces."""

    def blank(x: Array) -> Array:
        valid = steps.valid.reshape(*steps.valid.shape, *(1,) * (x.ndim - 2))
        return jnp.where(valid, x, jnp.zeros_like(x))

    blanked = jax.tree.map(blank, steps._replace(memory=None))
    return blanked._replace(last=steps.last | ~steps.valid, memory=steps.memory)


def rows(x: Shaped[Array, "time envs *each"]) -> Shaped[Array, "rows *each"]:
    """Put all steps on one axis."""
    return x.reshape(-1, *x.shape[2:])


def histories(steps: Trajectory) -> tuple[History, History]:
    """Return the histories before and after each step, with the recurrent state at their begin;
    rows are [envs · time]. An episode begins after the last step of another."""
    observation, ahead, last = (
        jnp.swapaxes(x, 0, 1) for x in (steps.observation, steps.next_observation, steps.last)
    )
    # The stored state is zero already if an episode begins with the first step.
    first = jnp.concatenate([jnp.zeros_like(last[:, :1]), last[:, :-1]], axis=1)
    at = jnp.broadcast_to(jnp.arange(last.shape[1], dtype=jnp.int32), last.shape)
    assert steps.memory is not None
    before = History(observation, first, steps.memory, at)
    return before, dataclasses.replace(before, ahead=ahead)


def advantages(
    steps: Trajectory,
    value: Float[Array, "time envs"],
    next_value: Float[Array, "time envs"],
    trace_decay: Scalar,
) -> Float[Array, "time envs"]:
    """Schulman's eq. 16, within the rollout. With λ = 1 it is the paper's R − V(s): the rewards
    up to the end of the rollout (algorithm S3) or of the episode, then V of the observation there.
    Rows without a step are zero."""
    value = jnp.where(steps.valid, value, 0.0)
    return gae(steps.reward, steps.discount, steps.last, value, next_value, trace_decay)


def standardized(
    advantage: Float[Array, "time envs"], valid: Bool[Array, "time envs"]
) -> Float[Array, "time envs"]:
    """Give the advantages of all steps zero mean and unit variance."""
    mean, std = (moment(advantage, where=valid) for moment in (jnp.mean, jnp.std))
    return jnp.where(valid, (advantage - mean) / (std + 1e-8), 0.0)


def weights(valid: Bool[Array, "time envs"]) -> Float[Array, "time envs"]:
    """Return equal weights for all steps, 0 for rows without one. Means over rows are then means
    over steps, and so are means of the means over equal parts of the rows."""
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
    """Return the share of the targets' variance that the value network explains: 1 is all of it, 0
    none. NaN if they do not vary."""
    happened = batch.weight > 0
    spread = jnp.var(batch.value_target, where=happened)
    left = jnp.var(batch.value_target - value, where=happened)
    return jnp.where(spread > 0, 1.0 - left / spread, jnp.nan)
