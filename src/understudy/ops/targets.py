"""What a critic is pulled towards, and how its target follows it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.types import Tree


def polyak(target: Tree, online: Tree, tau: Float[Array, ""]) -> Tree:
    """Move `target` a fraction `tau` towards `online`; tau = 1 is a hard copy, to the bit."""
    return jax.tree.map(lambda old, new: new + (1.0 - tau) * (old - new), target, online)


def bootstrapped(
    reward: Float[Array, " batch"],
    discount: Float[Array, " batch"],
    next_value: Float[Array, " batch"],
) -> Float[Array, " batch"]:
    """reward + discount · V(s'). Whether the episode terminated is in the discount already."""
    return reward + discount * next_value


def pessimistic(q: Float[Array, "critics *batch"]) -> Float[Array, "*batch"]:
    """The smallest of the critics' opinions (clipped double Q-learning)."""
    return jnp.min(q, axis=0)
