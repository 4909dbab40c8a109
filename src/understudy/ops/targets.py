"""Targets of critics, and updates of target networks."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.ops.return_distributions import Returns
from understudy.types import Tree

Target = Float[Array, " batch"] | Returns  # of scalar critics, and of distributional ones
# From the values of all critics, [critics, ...], to one value
Reduction = Callable[[Float[Array, "critics *batch"]], Float[Array, "*batch"]]


def polyak(target: Tree, online: Tree, tau: Float[Array, ""]) -> Tree:
    """Move `target` by the fraction `tau` towards `online`; tau = 1 is an exact copy."""
    return jax.tree.map(lambda old, new: new + (1.0 - tau) * (old - new), target, online)


def bootstrapped(
    reward: Float[Array, " batch"], discount: Float[Array, " batch"], next_value: Target
) -> Target:
    """reward + discount · V(s'). The discount is zero where the episode terminated."""
    if isinstance(next_value, Returns):
        value = reward[:, None] + discount[:, None] * next_value.value
        return Returns(value, next_value.probability)
    return reward + discount * next_value


def mean_target(target: Target) -> Float[Array, " batch"]:
    """Return the mean of a target, which is itself for a scalar critic."""
    return target.mean if isinstance(target, Returns) else target


def pessimistic(q: Float[Array, "critics *batch"]) -> Float[Array, "*batch"]:
    """Return the minimum over critics (clipped double Q-learning)."""
    return jnp.min(q, axis=0)


def average(q: Float[Array, "critics *batch"]) -> Float[Array, "*batch"]:
    """Return the mean over critics."""
    return jnp.mean(q, axis=0)


REDUCTIONS: dict[str, Reduction] = {"minimum": pessimistic, "mean": average}
