"""Linear layers, the initializers of their weights, and the multi-layer perceptron.

The leaves of a module are exactly its weights. Everything else (an activation's name, a size) is a
static field, so that `jax.jit` accepts modules directly.
"""

from collections.abc import Callable
from functools import partial
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.dropout import Dropout
from understudy.types import Key

Weights = Float[Array, "inputs outputs"]
Initializer = Callable[[Key, int, int], Weights]  # (key, inputs, outputs) -> weights
NORM_EPSILON = 1e-6  # of LayerNorm and RMSNorm, added to the mean square

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
}


def kaiming(key: Key, inputs: int, outputs: int) -> Weights:
    """Uniform in ±1/√inputs: Kaiming's with a = √5, the default of PyTorch's linear layers."""
    bound = inputs**-0.5
    return jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)


def he(key: Key, inputs: int, outputs: int) -> Weights:
    """Uniform with a variance of 2/inputs (He et al., arXiv 1502.01852), which preserves the size
    of activations through relu."""
    bound = (6.0 / inputs) ** 0.5
    return jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)


def orthogonal(key: Key, inputs: int, outputs: int, gain: int | float = 2**0.5) -> Weights:
    """Orthonormal columns (or rows, if there are fewer of them) times `gain`.

    Seeds are initialized one after another: a batched QR decomposition can deadlock on few CPU
    cores (jaxlib 0.10.2)."""

    def draw(key: Key) -> Weights:
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


@final
class Linear(eqx.Module):
    """x·W + b on the last axis."""

    weight: Weights
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, key: Key, initializer: Initializer = kaiming):
        weight_key, bias_key = jax.random.split(key)
        self.weight = initializer(weight_key, inputs, outputs)
        random = initializer is kaiming
        self.bias = kaiming(bias_key, inputs, outputs)[0] if random else jnp.zeros(outputs)

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
        return centered * jax.lax.rsqrt(variance + NORM_EPSILON) * self.scale + self.offset


@final
class RMSNorm(eqx.Module):
    """Divide the last axis by its root mean square, then scale it (Zhang & Sennrich, "Root Mean
    Square Layer Normalization", arXiv 1910.07467)."""

    scale: Float[Array, " size"]

    def __init__(self, size: int):
        self.scale = jnp.ones(size)

    def __call__(self, x: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
        mean_square = jnp.mean(x**2, axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(mean_square + NORM_EPSILON) * self.scale


@final
class MLP(eqx.Module):
    """Hidden layers with an activation after each, and optionally dropout and LayerNorm before
    it."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]
    dropout: Dropout | None  # while a loss is computed, if at all
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
        self.dropout = None
        self.activation = activation

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        return self._continue(self.layers[0](x)) if self.layers else x

    def with_each(
        self, x: Float[Array, "*batch some"], rest: Float[Array, "*batch n others"]
    ) -> Float[Array, "*batch n features"]:
        """Return the features of the inputs [x, rest[i]] for each i. The first layer is linear: the
        product with x is computed once, not n times."""
        first, split = self.layers[0], x.shape[-1]
        shared = x @ first.weight[:split] + first.bias
        return self._continue(shared[..., None, :] + rest @ first.weight[split:])

    def _continue(self, x: Float[Array, "*batch hidden"]) -> Float[Array, "*batch features"]:
        """Return the features, given the output of the first layer before its activation."""
        activation = ACTIVATIONS[self.activation]
        for index in range(len(self.layers)):
            x = self.layers[index](x) if index else x
            x = x if self.dropout is None else self.dropout(x, index)
            x = activation(self.norms[index](x) if self.norms else x)
        return x
