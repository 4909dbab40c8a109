"""The objective of PQN (Gallici et al., "Simplifying Deep Temporal Difference Learning",
arXiv 2407.04811). Its targets, Peng's Q(λ), are in algorithms/rollouts.py."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.networks.ensembles import evaluate_ensemble, q_of_action
from understudy.types import Observation, Scalar


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


def critic_loss(critic: Any, batch: Prepared) -> tuple[Scalar, Float[Array, " rows"]]:
    """Half the squared error of Q(s, a), and the errors. The targets have no gradient."""
    error = q_of_action(critic, batch.observation, batch.action)[0] - batch.target
    return jnp.mean(batch.weight * 0.5 * error**2), error
