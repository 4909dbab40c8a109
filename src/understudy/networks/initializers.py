"""How weights begin."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.types import Key

Initializer = Callable[[Key, int, int], Float[Array, "inputs outputs"]]


def kaiming(key: Key, inputs: int, outputs: int) -> Float[Array, "inputs outputs"]:
    """Uniform in ±1/√inputs: Kaiming's with a = √5, the habit of the reference codes."""
    bound = inputs**-0.5
    return jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)


def he(key: Key, inputs: int, outputs: int) -> Float[Array, "inputs outputs"]:
    """Uniform with a variance of 2/inputs (He et al., arXiv 1502.01852): what goes through relu
    keeps its size."""
    bound = (6.0 / inputs) ** 0.5
    return jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)


def orthogonal(
    key: Key, inputs: int, outputs: int, gain: int | float = 2**0.5
) -> Float[Array, "inputs outputs"]:
    """Orthonormal columns (or rows, where there are fewer of them) times `gain`.

    Seeds are initialized one after another: a QR decomposition of several matrices at once can
    wait for itself for ever on few CPU cores (jaxlib 0.10.2)."""

    def draw(key: Key) -> Float[Array, "inputs outputs"]:
        return jax.nn.initializers.orthogonal()(key, (inputs, outputs), jnp.float32)

    return gain * jax.custom_batching.sequential_vmap(draw)(key)


INITIALIZERS: dict[str, Initializer] = {
    "he": he,
    "kaiming": kaiming,
    "orthogonal": orthogonal,
}


def scaled(initialization: str, gain: int | float | None) -> Initializer:
    """The named initializer with a gain of its own; without one (None) it stays as it is.

    For orthogonal weights the gain replaces √2. Others are multiplied by it: their spread is
    already set by the number of inputs. A layer with a gain starts with a bias of zero, or a
    head that is meant to start small would start at its bias instead.
    """
    plain = INITIALIZERS[initialization]
    if gain is None:
        return plain
    if plain is orthogonal:
        return partial(orthogonal, gain=gain)
    return lambda key, inputs, outputs: gain * plain(key, inputs, outputs)
