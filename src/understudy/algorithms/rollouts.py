"""What losses need of a rollout: advantages (Schulman et al., arXiv 1506.02438), targets of Q(λ),
weights of its steps, histories for recurrent networks, and terms that on-policy losses share."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from understudy.ops.distributions import Categorical, Gaussian, MultiCategorical
from understudy.ops.returns import gae
from understudy.types import History, Scalar, Trajectory

Distribution = Categorical | MultiCategorical | Gaussian


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
    """Schulman's eq. 16, within the rollout. With λ = 1 it is R − V(s) of A2C's paper: the rewards
    up to the end of the rollout (algorithm S3) or of the episode, then V of the observation there.
    Rows without a step are zero."""
    value = jnp.where(steps.valid, value, 0.0)
    return gae(steps.reward, steps.discount, steps.last, value, next_value, trace_decay)


def q_lambda_target(
    steps: Trajectory, next_value: Float[Array, "time envs"], trace_decay: Scalar
) -> Float[Array, "time envs"]:
    """Peng's Q(λ) within the rollout: Gₜ = r + γ·V(s') + γλ·(Gₜ₊₁ − V(s')), where the last term is
    absent at the last step of the rollout and of an episode.

    `discount` is γ, and 0 where the task terminated. A truncated episode bootstraps from V of its
    true last observation. `trace_decay` is γ·λ.
    """
    one_step = steps.reward + steps.discount * next_value
    following = jnp.concatenate([steps.valid[1:], jnp.zeros_like(steps.valid[:1])])
    ends = steps.last | ~following

    def step(later: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        target, value, end = now
        # `where`, not a product with zero: NaN × 0 would spread to the episode before.
        target = target + jnp.where(end, 0.0, trace_decay * (later - value))
        return target, target

    nothing = jnp.zeros_like(one_step[0])
    return jax.lax.scan(step, nothing, (one_step, next_value, ends), reverse=True)[1]


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


def entropy_loss(policy: Distribution, weight: Float[Array, " rows"]) -> Scalar:
    """−H(π(·|s))."""
    return -jnp.mean(weight * policy.entropy())


def explained_variance(
    value: Float[Array, " rows"], target: Float[Array, " rows"], weight: Float[Array, " rows"]
) -> Scalar:
    """Return the share of the targets' variance that the value network explains: 1 is all of it, 0
    none. NaN if they do not vary."""
    happened = weight > 0
    spread = jnp.var(target, where=happened)
    left = jnp.var(target - value, where=happened)
    return jnp.where(spread > 0, 1.0 - left / spread, jnp.nan)
