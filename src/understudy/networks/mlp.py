"""Linear layers and the multi-layer perceptron.

The leaves of a module are exactly its weights. Everything else (an activation's name, a size) is a
static field, so that `jax.jit` accepts modules directly.
"""

from collections.abc import Callable
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.initializers import INITIALIZERS, Initializer
from understudy.types import Key

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
}


@final
class Linear(eqx.Module):
    """x·W + b on the last axis."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, key: Key, initializer: Initializer | None = None):
        weight_key, bias_key = jax.random.split(key)
        if initializer is None or initializer is INITIALIZERS["kaiming"]:
            self.weight = INITIALIZERS["kaiming"](weight_key, inputs, outputs)
            self.bias = INITIALIZERS["kaiming"](bias_key, inputs, outputs)[0]
        else:
            self.weight = initializer(weight_key, inputs, outputs)
            self.bias = jnp.zeros(outputs)

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        return x @ self.weight + self.bias


@final
class LayerNorm(eqx.Module):
    """Normalize the last axis to zero mean and unit variance, then scale and shift it."""

    scale: Float[Array, " size"]
    offset: Float[Array, " size"]

    def __init__(self, size: int):
        self.scale = jnp.ones(size)
        self.offset = jnp.zeros(size)

    def __call__(self, x: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
        centered = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centered**2, axis=-1, keepdims=True)
        return centered * jax.lax.rsqrt(variance + 1e-6) * self.scale + self.offset


@final
class MLP(eqx.Module):
    """Hidden layers with an activation after each, and optionally LayerNorm before it."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]
    activation: str = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        hidden_sizes: tuple[int, ...],
        key: Key,
        *,
        activation: str = "relu",
        layer_norm: bool = False,
        initialization: str = "kaiming",
    ):
        sizes = (inputs, *hidden_sizes)
        keys = jax.random.split(key, len(hidden_sizes))
        initializer = INITIALIZERS[initialization]
        self.layers = tuple(
            Linear(sizes[i], sizes[i + 1], keys[i], initializer) for i in range(len(hidden_sizes))
        )
        self.norms = tuple(LayerNorm(size) for size in hidden_sizes) if layer_norm else ()
        self.activation = activation

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        activation = ACTIVATIONS[self.activation]
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if self.norms:
                x = self.norms[index](x)
            x = activation(x)
        return x
