"""Several networks of one shape as one pytree with a leading axis."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

from understudy.types import Key, Tree


def ensemble(make: Callable[[Key], Any], size: int, key: Key) -> Tree:
    """`size` networks, each initialised from a key of its own (never clones of one another)."""
    return jax.vmap(make)(jax.random.split(key, size))


def evaluate_ensemble(members: Tree, *inputs: Array) -> Float[Array, "members *batch"]:
    """Every member's answer to the same inputs."""
    return jax.vmap(lambda member: member(*inputs))(members)
