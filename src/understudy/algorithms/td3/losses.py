"""The two objectives of TD3 (Fujimoto et al., "Addressing Function Approximation Error in
Actor-Critic Methods", arXiv 1802.09477); equation numbers are that paper's."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks import evaluate_ensemble
from understudy.networks.ensembles import reduced_return
from understudy.ops.targets import Reduction, Target, bootstrapped, pessimistic
from understudy.types import Batch, Scalar


def smoothed_action(
    target_actor: Any,
    batch: Batch,
    policy_noise: Scalar,
    noise_clip: Scalar,
    noise: Float[Array, "batch action"],
) -> Float[Array, "batch action"]:
    """Eq. 14: π̄(s') + ε, ε ~ clip(N(0, σ), −c, c).

    Every row and dimension has noise of its own, and the smoothed action stays in its bounds.
    """
    smoothing = jnp.clip(policy_noise * noise, -noise_clip, noise_clip)
    return jnp.clip(target_actor(batch.next_observation) + smoothing, -1.0, 1.0)


def critic_target(
    target_actor: Any,
    target_critic: Any,
    batch: Batch,
    policy_noise: Scalar,
    noise_clip: Scalar,
    noise: Float[Array, "batch action"],
    reduction: Reduction = pessimistic,
) -> Target:
    """Eq. 14 with eq. 10: r + γ·min Q̄(s', a'), with the smoothed action a'. `reduction` can replace
    the minimum."""
    next_action = smoothed_action(target_actor, batch, policy_noise, noise_clip, noise)
    next_q = reduced_return(target_critic, batch.next_observation, next_action, reduction)
    return bootstrapped(batch.reward, batch.discount, next_q)


def critic_loss(
    critic: Any, batch: Batch, target: Float[Array, " batch"]
) -> tuple[Scalar, Float[Array, "critics batch"]]:
    """(Q(s, a) − target)², summed over critics, averaged over the batch."""
    error = evaluate_ensemble(critic, batch.observation, batch.action) - target
    return jnp.sum(jnp.mean(batch.weight * error**2, axis=-1)), error


def actor_loss(actor: Any, critic: Any, batch: Batch, reduction: Reduction | None = None) -> Scalar:
    """The deterministic policy gradient's objective: −Q₁(s, π(s)), with the bounded action. With a
    `reduction`, it replaces Q₁ by that of all critics."""
    inputs = batch.observation, actor(batch.observation)
    q = critic(*inputs) if reduction is None else reduction(evaluate_ensemble(critic, *inputs))
    return -jnp.mean(batch.weight * q)
