"""The objective of PQN (Gallici et al., "Simplifying Deep Temporal Difference Learning",
arXiv 2407.04811) with Peng's Q(λ)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.networks.ensembles import evaluate_ensemble, q_of_action
from understudy.types import Observation, Scalar, Trajectory


class Prepared(NamedTuple):
    """A rollout for the loss: rows in any order, each with its target."""

    observation: Observation
    action: Int32[Array, " rows"]
    target: Float[Array, " rows"]
    weight: Float[Array, " rows"]  # 0 for rows without a step; its mean over the rollout is 1
    row: Int32[Array, " rows"]


def q_values(critic: Any, observation: Observation) -> Float[Array, "rows choices"]:
    """Return Q(s, ·). The network is stacked like the critics of other algorithms."""
    return evaluate_ensemble(critic, observation)[0]


def critic_target(
    steps: Trajectory, next_value: Float[Array, "time envs"], trace_decay: Scalar
) -> Float[Array, "time envs"]:
    """Q(λ) within the rollout, with V = max_a Q: Gₜ = r + γ·V(s') + γλ·(Gₜ₊₁ − V(s')), where the
    last term is absent at the last step of the rollout and of an episode.

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


def critic_loss(critic: Any, batch: Prepared) -> tuple[Scalar, Float[Array, " rows"]]:
    """Half the squared error of Q(s, a), and the errors. The targets have no gradient."""
    error = q_of_action(critic, batch.observation, batch.action)[0] - batch.target
    return jnp.mean(batch.weight * 0.5 * error**2), error
