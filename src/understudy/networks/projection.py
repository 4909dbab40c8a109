"""Weights on the unit sphere: the weights of each output unit have length 1.

The optimizer moves them away from it; `project_weights` puts them back after each of its steps
(Lee et al., "Hyperspherical Normalization for Scalable Deep Reinforcement Learning", arXiv
2502.15280). The scales of norms on a sphere are those of FlashSAC (arXiv 2604.04539).
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.batch_norm import BatchNorm, Projection
from understudy.networks.encoders import ObservationEncoder
from understudy.networks.mlp import Linear, RMSNorm, Weights, orthogonal
from understudy.types import Key, Tree

SMALLEST_SQUARE = 1e-12  # of the length by which a vector is divided


def unit_norm(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Scale the vectors along an axis to length 1. A vector of zeros stays one."""
    square = jnp.sum(x**2, axis=axis, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(square, SMALLEST_SQUARE))


@final
class UnitLinear(eqx.Module):
    """x·W without a bias. The weights of each output unit have length 1."""

    weight: Weights

    def __init__(self, inputs: int, outputs: int, key: Key):
        self.weight = unit_norm(orthogonal(key, inputs, outputs), axis=0)

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        return x @ self.weight


LAYERS = Linear | UnitLinear | Projection


def project_weights(network: Tree) -> Tree:
    """Scale the weights of each output unit to length 1, in all linear layers of a network or of
    stacked ones; and the scale of an RMSNorm, or scale and offset together of a BatchNorm that is
    `projected`, to length √size. All else and the encoder of observations stay as they are."""

    def project(part: Tree) -> Tree:
        if isinstance(part, LAYERS):
            return eqx.tree_at(lambda layer: layer.weight, part, unit_norm(part.weight, axis=-2))
        if isinstance(part, RMSNorm):
            scale = part.scale.shape[-1] ** 0.5 * unit_norm(part.scale)
            return eqx.tree_at(lambda norm: norm.scale, part, scale)
        if isinstance(part, BatchNorm) and part.projected:
            both = unit_norm(jnp.concatenate([part.scale, part.offset], axis=-1))
            moved = tuple(jnp.split(part.scale.shape[-1] ** 0.5 * both, 2, axis=-1))
            return eqx.tree_at(lambda norm: (norm.scale, norm.offset), part, moved)
        return part

    kinds = LAYERS | RMSNorm | BatchNorm | ObservationEncoder
    return jax.tree.map(project, network, is_leaf=lambda part: isinstance(part, kinds))
