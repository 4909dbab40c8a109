"""The objective of DDQN (van Hasselt et al., "Deep Reinforcement Learning with Double
Q-learning", arXiv 1509.06461); equation numbers are that paper's."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.ensembles import evaluate_ensemble, q_of_action, reduced_return
from understudy.ops.return_distributions import huber
from understudy.ops.targets import Reduction, Target, bootstrapped, pessimistic
from understudy.types import Batch, Observation, Scalar


def critic_target(
    critic: Any, target_critic: Any, batch: Batch, reduction: Reduction = pessimistic
) -> Target:
    """Eq. 4 with the target network as the second one: r + γ·Q̄(s', argmax_a Q(s', a)).

    With several critics, their mean selects the action, and the minimum of the targets values it.
    `reduction` can replace the minimum. A distributional critic selects by its mean; the target is
    then a distribution.
    """
    next_action = jnp.argmax(mean_q(critic, batch.next_observation), axis=-1)
    next_q = reduced_return(target_critic, batch.next_observation, next_action, reduction)
    return bootstrapped(batch.reward, batch.discount, next_q)


def critic_loss(
    critic: Any,
    batch: Batch,
    target: Float[Array, " batch"],
    cost: Callable[[Array], Array],
) -> tuple[Scalar, Float[Array, "critics batch"]]:
    """The cost of Q(s, a) − target, summed over critics, averaged over the batch. With half a
    square as the cost, its gradient descent is eq. 1."""
    error = q_of_action(critic, batch.observation, batch.action) - target
    return jnp.sum(jnp.mean(batch.weight * cost(error), axis=-1)), error


def squared(error: Float[Array, "..."]) -> Float[Array, "..."]:
    return 0.5 * error**2


COSTS = {"huber": huber, "squared": squared}


def mean_q(critic: Any, observation: Observation) -> Float[Array, "batch choices"]:
    """Return the mean of the critics for each choice."""
    return jnp.mean(evaluate_ensemble(critic, observation), axis=0)
