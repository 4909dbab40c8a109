"""Hidden layers with residual blocks: SimBa (Lee et al., "SimBa: Simplicity Bias for Scaling Up
Parameters in Deep Reinforcement Learning", arXiv 2410.09754), SimBaV2 (Lee et al., "Hyperspherical
Normalization for Scalable Deep Reinforcement Learning", arXiv 2502.15280) and those of FlashSAC
(Kim et al., "FlashSAC: Fast and Stable Off-Policy Reinforcement Learning for High-Dimensional Robot
Control", arXiv 2604.04539).

`hidden_sizes` has the width of each block; the blocks of a network have the same width.
"""

import itertools
from collections.abc import Callable
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.batch_norm import BatchNorm, BatchNormalized
from understudy.networks.mlp import ACTIVATIONS, LayerNorm, Linear, RMSNorm, Weights, scaled
from understudy.networks.projection import UnitLinear, unit_norm
from understudy.types import ConfigError, Key

EXPANSION = 4  # a block's inner layer has so many times the units of the block
SHIFT = 3.0  # the constant beside SimBaV2's inputs: normalized without it, they lose their length


def he_normal(key: Key, inputs: int, outputs: int) -> Weights:
    """A truncated normal with a variance of 2/inputs (He et al., arXiv 1502.01852)."""
    return jax.nn.initializers.he_normal()(key, (inputs, outputs), jnp.float32)


@final
class SimBaBlock(eqx.Module):
    """x + W₂·σ(W₁·LayerNorm(x)), with biases."""

    norm: LayerNorm
    expand: Linear
    contract: Linear

    def __init__(self, size: int, key: Key):
        expand_key, contract_key = jax.random.split(key)
        self.norm = LayerNorm(size)
        self.expand = Linear(size, EXPANSION * size, expand_key, he_normal)
        self.contract = Linear(EXPANSION * size, size, contract_key, he_normal)

    def __call__(
        self, x: Float[Array, "*batch size"], activation: str
    ) -> Float[Array, "*batch size"]:
        inner = ACTIVATIONS[activation](self.expand(self.norm(x)))
        return x + self.contract(inner)


@final
class SimBa(eqx.Module):
    """A linear layer, residual blocks, and LayerNorm."""

    embedding: Linear
    blocks: tuple[SimBaBlock, ...]
    norm: LayerNorm
    activation: str = eqx.field(static=True)

    def __init__(
        self, inputs: int, hidden_sizes: tuple[int, ...], key: Key, *, activation: str = "relu"
    ):
        size = block_width(hidden_sizes)
        embedding_key, *keys = jax.random.split(key, 1 + len(hidden_sizes))
        self.embedding = Linear(inputs, size, embedding_key, scaled("orthogonal", 1.0))
        self.blocks = tuple(SimBaBlock(size, own) for own in keys)
        self.norm = LayerNorm(size)
        self.activation = activation

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x, self.activation)
        return self.norm(x)


@final
class SimBaV2Block(eqx.Module):
    """ℓ₂(x + α·(y − x)) with y = ℓ₂(W₂·σ(s·W₁·x)) (figure 3).

    α is learned in units of 1/√size, so that Adam's steps change it slowly."""

    expand: UnitLinear
    scale: Float[Array, " inner"]
    contract: UnitLinear
    rate: Float[Array, " size"]
    rate_unit: float = eqx.field(static=True)

    def __init__(self, size: int, key: Key, initial_rate: float):
        expand_key, contract_key = jax.random.split(key)
        inner = EXPANSION * size
        self.expand = UnitLinear(size, inner, expand_key)
        self.scale = jnp.full(inner, (2.0 / inner) ** 0.5)
        self.contract = UnitLinear(inner, size, contract_key)
        self.rate = jnp.full(size, size**-0.5)
        self.rate_unit = initial_rate * size**0.5

    @property
    def interpolation(self) -> Float[Array, " size"]:
        """α of each unit."""
        return self.rate_unit * self.rate

    def __call__(
        self, x: Float[Array, "*batch size"], activation: str
    ) -> Float[Array, "*batch size"]:
        inner = ACTIVATIONS[activation](self.scale * self.expand(x))
        target = unit_norm(self.contract(inner))
        return unit_norm(x + self.interpolation * (target - x))


@final
class SimBaV2(eqx.Module):
    """Residual blocks on the unit sphere, and a scaled linear layer.

    The paper also normalizes the inputs [x, 3]. This would change nothing: the embedding is linear
    in them, and its result is normalized."""

    embedding: UnitLinear  # of [x, 3]
    embedding_scale: Float[Array, " size"]
    blocks: tuple[SimBaV2Block, ...]
    output: UnitLinear
    output_scale: Float[Array, " size"]
    activation: str = eqx.field(static=True)

    def __init__(
        self, inputs: int, hidden_sizes: tuple[int, ...], key: Key, *, activation: str = "relu"
    ):
        size = block_width(hidden_sizes)
        embedding_key, output_key, *keys = jax.random.split(key, 2 + len(hidden_sizes))
        initial_rate = 1.0 / (len(hidden_sizes) + 1)
        self.embedding = UnitLinear(inputs + 1, size, embedding_key)
        self.embedding_scale = jnp.full(size, (2.0 / size) ** 0.5)
        self.blocks = tuple(SimBaV2Block(size, own, initial_rate) for own in keys)
        self.output = UnitLinear(size, size, output_key)
        self.output_scale = jnp.ones(size)
        self.activation = activation

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        weight = self.embedding.weight
        x = unit_norm(self.embedding_scale * (x @ weight[:-1] + SHIFT * weight[-1]))
        for block in self.blocks:
            x = block(x, self.activation)
        return self.output_scale * self.output(x)


def bounded_norm(size: int) -> BatchNorm:
    """Make a BatchNorm of FlashSAC. Its scale and offset together have length √size."""
    return BatchNorm(size, epsilon=1e-5, projected=True)


@final
class FlashSACBlock(eqx.Module):
    """x + σ(BatchNorm(W₂·σ(BatchNorm(W₁·x))))."""

    expand: UnitLinear
    inner_norm: BatchNorm
    contract: UnitLinear
    outer_norm: BatchNorm

    def __init__(self, size: int, key: Key):
        expand_key, contract_key = jax.random.split(key)
        inner = EXPANSION * size
        self.expand = UnitLinear(size, inner, expand_key)
        self.inner_norm = bounded_norm(inner)
        self.contract = UnitLinear(inner, size, contract_key)
        self.outer_norm = bounded_norm(size)


@final
class FlashSAC(BatchNormalized):
    """BatchNorm of the inputs, a linear layer without a bias, residual blocks, and RMSNorm."""

    sees_next = True

    input_norm: BatchNorm
    embedding: UnitLinear
    blocks: tuple[FlashSACBlock, ...]
    output_norm: RMSNorm
    activation: str = eqx.field(static=True)

    def __init__(
        self, inputs: int, hidden_sizes: tuple[int, ...], key: Key, *, activation: str = "relu"
    ):
        size = block_width(hidden_sizes)
        embedding_key, *keys = jax.random.split(key, 1 + len(hidden_sizes))
        self.input_norm = bounded_norm(inputs)
        self.embedding = UnitLinear(inputs, size, embedding_key)
        self.blocks = tuple(FlashSACBlock(size, own) for own in keys)
        self.output_norm = RMSNorm(size)
        self.activation = activation

    @property
    def norms(self) -> tuple[BatchNorm, ...]:
        pairs = [(block.inner_norm, block.outer_norm) for block in self.blocks]
        return (self.input_norm, *itertools.chain.from_iterable(pairs))

    def apply(self, x: Array, normalize: Callable[[BatchNorm, Array], Array]) -> Array:
        activation = ACTIVATIONS[self.activation]
        x = self.embedding(normalize(self.input_norm, x))
        for block in self.blocks:
            inner = activation(normalize(block.inner_norm, block.expand(x)))
            x = x + activation(normalize(block.outer_norm, block.contract(inner)))
        return self.output_norm(x)


RESIDUAL = {"simba": SimBa, "simbav2": SimBaV2, "flashsac": FlashSAC}


def block_width(hidden_sizes: tuple[int, ...]) -> int:
    """Return the width of the blocks, or raise ConfigError if there is not one width."""
    if len(set(hidden_sizes)) != 1:
        raise ConfigError(f"residual blocks, one or more, have equal widths: got {hidden_sizes}")
    return hidden_sizes[0]
