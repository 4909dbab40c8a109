"""Targets of critics, and updates of target networks."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.types import Tree


def polyak(target: Tree, online: Tree, tau: Float[Array, ""]) -> Tree:
    """Move `target` by the fraction `tau` towards `online`; tau = 1 is an exact copy."""
    return jax.tree.map(lambda old, new: new + (1.0 - tau) * (old - new), target, online)


def bootstrapped(
    reward: Float[Array, " batch"],
    discount: Float[Array, " batch"],
    next_value: Float[Array, " batch"],
) -> Float[Array, " batch"]:
    """reward + discount · V(s'). The discount is zero where the episode terminated."""
    return reward + discount * next_value


def pessimistic(q: Float[Array, "critics *batch"]) -> Float[Array, "*batch"]:
    """Return the minimum over critics (clipped double Q-learning)."""
    return jnp.min(q, axis=0)
