"""Initializers of weights."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.types import Key

Initializer = Callable[[Key, int, int], Float[Array, "inputs outputs"]]


def kaiming(key: Key, inputs: int, outputs: int) -> Float[Array, "inputs outputs"]:
    """Uniform in ±1/√inputs: Kaiming's with a = √5, the default of PyTorch's linear layers."""
    bound = inputs**-0.5
    return jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)


def he(key: Key, inputs: int, outputs: int) -> Float[Array, "inputs outputs"]:
    """Uniform with a variance of 2/inputs (He et al., arXiv 1502.01852), which preserves the size
    of activations through relu."""
    bound = (6.0 / inputs) ** 0.5
    return jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)


def orthogonal(
    key: Key, inputs: int, outputs: int, gain: int | float = 2**0.5
) -> Float[Array, "inputs outputs"]:
    """Orthonormal columns (or rows, if there are fewer of them) times `gain`.

    Seeds are initialized one after another: a batched QR decomposition can deadlock on few CPU
    cores (jaxlib 0.10.2)."""

    def draw(key: Key) -> Float[Array, "inputs outputs"]:
        return jax.nn.initializers.orthogonal()(key, (inputs, outputs), jnp.float32)

    return gain * jax.custom_batching.sequential_vmap(draw)(key)


INITIALIZERS: dict[str, Initializer] = {
    "he": he,
    "kaiming": kaiming,
    "orthogonal": orthogonal,
}


def scaled(initialization: str, gain: int | float | None) -> Initializer:
    """Return the named initializer with a gain; None changes nothing.

    For orthogonal weights the gain replaces √2. Others are multiplied by it: their variance already
    depends on the number of inputs. A layer with a gain starts with a bias of zero: otherwise the
    outputs of a head that should start small would start at its bias.
    """
    plain = INITIALIZERS[initialization]
    if gain is None:
        return plain
    if plain is orthogonal:
        return partial(orthogonal, gain=gain)
    return lambda key, inputs, outputs: gain * plain(key, inputs, outputs)
