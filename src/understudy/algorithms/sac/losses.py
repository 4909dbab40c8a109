"""The three objectives of SAC.

For continuous actions they use one sample of the action (Haarnoja et al., "Soft Actor-Critic
Algorithms and Applications", arXiv 1812.05905). For discrete actions they are expectations over all
choices (Christodoulou, "Soft Actor-Critic for Discrete Action Settings", arXiv 1910.07207).
Equation numbers are the papers'."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.ensembles import evaluate_ensemble, q_of_action, reduced_return
from understudy.ops.densities import squashed_gaussian_sample
from understudy.ops.return_distributions import expected
from understudy.ops.targets import Reduction, Target, bootstrapped, pessimistic
from understudy.types import Batch, Scalar


def critic_target(
    actor: Any,
    target_critic: Any,
    batch: Batch,
    temperature: Scalar,
    noise: Float[Array, "batch action"],
    reduction: Reduction = pessimistic,
) -> Target:
    """Eq. 3 inside eq. 5: r + γ·(min Q̄(s', a') − α·log π(a'|s')), with a' ~ π(s').
    `reduction` can replace the minimum."""
    mean, log_std = actor(batch.next_observation)
    next_action, next_log_prob = squashed_gaussian_sample(mean, log_std, noise)
    next_q = reduced_return(target_critic, batch.next_observation, next_action, reduction)
    soft_value = next_q - temperature * next_log_prob
    return bootstrapped(batch.reward, batch.discount, soft_value)


def discrete_critic_target(
    actor: Any,
    target_critic: Any,
    batch: Batch,
    temperature: Scalar,
    reduction: Reduction = pessimistic,
) -> Target:
    """Christodoulou's eq. 10: r + γ·Σ_a π(a|s')·(min Q̄(s', a) − α·log π(a|s')).

    The minimum is taken for each choice, before the sum."""
    policy = actor(batch.next_observation)
    next_q = reduced_return(target_critic, batch.next_observation, None, reduction)
    soft_q = next_q - temperature * policy.log_probabilities
    soft_value = expected(policy.probabilities, soft_q)
    return bootstrapped(batch.reward, batch.discount, soft_value)


def critic_loss(
    critic: Any, batch: Batch, target: Float[Array, " batch"]
) -> tuple[Scalar, Float[Array, "critics batch"]]:
    """Eq. 5: ½·(Q(s, a) − target)², summed over critics, averaged over the batch."""
    error = q_of_action(critic, batch.observation, batch.action) - target
    return jnp.sum(jnp.mean(0.5 * batch.weight * error**2, axis=-1)), error


def actor_loss(
    actor: Any,
    critic: Any,
    batch: Batch,
    temperature: Scalar,
    noise: Float[Array, "batch action"],
    reduction: Reduction = pessimistic,
) -> tuple[Scalar, Float[Array, " batch"]]:
    """Eq. 9: α·log π(a|s) − min Q(s, a), with the action reparameterized through the noise.
    `reduction` can replace the minimum."""
    mean, log_std = actor(batch.observation)
    action, log_prob = squashed_gaussian_sample(mean, log_std, noise)
    q = reduction(evaluate_ensemble(critic, batch.observation, action))
    return jnp.mean(batch.weight * (temperature * log_prob - q)), log_prob


def discrete_actor_loss(
    actor: Any,
    critic: Any,
    batch: Batch,
    temperature: Scalar,
    reduction: Reduction = pessimistic,
) -> tuple[Scalar, Float[Array, " batch"]]:
    """Christodoulou's eq. 12: Σ_a π(a|s)·(α·log π(a|s) − min Q(s, a)). Also returns the expected
    log-probability, which is minus the entropy. Needs no reparameterization."""
    policy = actor(batch.observation)
    q = reduction(evaluate_ensemble(critic, batch.observation))
    log_prob = -policy.entropy()
    expected_q = jnp.sum(policy.probabilities * q, axis=-1)
    return jnp.mean(batch.weight * (temperature * log_prob - expected_q)), log_prob


def entropy_loss(
    temperature: Scalar,
    log_prob: Float[Array, " batch"],
    target_entropy: Scalar,
    weight: Float[Array, " batch"],
) -> Scalar:
    """Eq. 18 (Christodoulou's eq. 11): −τ·(log π(a|s) + H̄), where τ is α or, in log space, log α.

    Descending either raises α while the policy's entropy is below H̄, and lowers it above.
    """
    return -temperature * jnp.mean(weight * (log_prob + target_entropy))
