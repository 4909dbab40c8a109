"""The objective of A2C (Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning",
arXiv 1602.01783). Advantages and entropy are in algorithms/rollouts.py."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, Shaped

from understudy.algorithms.rollouts import Distribution
from understudy.types import Observation, Scalar


class Prepared(NamedTuple):
    """A rollout for the loss: rows in any order, each with its advantage and value target."""

    observation: Observation
    action: Shaped[Array, "rows *action"]
    advantage: Float[Array, " rows"]
    value_target: Float[Array, " rows"]
    weight: Float[Array, " rows"]  # 0 for rows without a step; its mean over the rollout is 1
    row: Int32[Array, " rows"]


def actor_loss(policy: Distribution, batch: Prepared) -> Scalar:
    """−A·log π(a|s): its gradient is the paper's ∇ log π(a|s)·(R − V(s))."""
    return -jnp.mean(batch.weight * batch.advantage * policy.log_prob(batch.action))


def value_loss(value: Float[Array, " rows"], batch: Prepared) -> Scalar:
    """(R − V(s))²."""
    return jnp.mean(batch.weight * (batch.value_target - value) ** 2)
