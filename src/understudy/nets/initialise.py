"""How weights begin."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.types import Key

Initialiser = Callable[[Key, int, int], Float[Array, "inputs outputs"]]


def kaiming(key: Key, inputs: int, outputs: int) -> Float[Array, "inputs outputs"]:
    """Uniform in ±1/√inputs: Kaiming's with a = √5, the habit of the reference codes."""
    bound = inputs**-0.5
    return jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)


def orthogonal(
    key: Key, inputs: int, outputs: int, gain: float = 2**0.5
) -> Float[Array, "inputs outputs"]:
    """Orthonormal columns (or rows, where there are fewer of them) times `gain`."""
    return gain * jax.nn.initializers.orthogonal()(key, (inputs, outputs), jnp.float32)


INITIALISERS: dict[str, Initialiser] = {"kaiming": kaiming, "orthogonal": orthogonal}
