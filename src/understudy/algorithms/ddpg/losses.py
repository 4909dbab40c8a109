"""The two objectives of DDPG (Lillicrap et al., "Continuous control with deep reinforcement
learning", arXiv 1509.02971); equation numbers are that paper's."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks import evaluate_ensemble
from understudy.networks.ensembles import reduced_return
from understudy.ops.targets import Reduction, Target, bootstrapped, pessimistic
from understudy.types import Batch, Scalar


def critic_target(
    target_actor: Any, target_critic: Any, batch: Batch, reduction: Reduction = pessimistic
) -> Target:
    """Eq. 5 with the targets of Algorithm 1: r + γ·min Q̄(s', π̄(s')); the paper has one Q̄.
    `reduction` can replace the minimum."""
    next_action = target_actor(batch.next_observation)
    next_q = reduced_return(target_critic, batch.next_observation, next_action, reduction)
    return bootstrapped(batch.reward, batch.discount, next_q)


def critic_loss(
    critic: Any, batch: Batch, target: Float[Array, " batch"]
) -> tuple[Scalar, Float[Array, "critics batch"]]:
    """Eq. 4: (Q(s, a) − target)², summed over critics, averaged over the batch."""
    error = evaluate_ensemble(critic, batch.observation, batch.action) - target
    return jnp.sum(jnp.mean(batch.weight * error**2, axis=-1)), error


def actor_loss(actor: Any, first_critic: Any, batch: Batch) -> Scalar:
    """What eq. 6 is the gradient of, turned round: −Q₁(s, π(s)), with the bounded action."""
    q = first_critic(batch.observation, actor(batch.observation))
    return -jnp.mean(batch.weight * q)
