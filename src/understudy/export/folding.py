"""BatchNorm of an actor as a part of its linear layers: with running statistics it is one product
and one sum per feature, so that a policy file needs no operation for it."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from understudy.networks.batch_norm import BatchNorm, BatchNormMLP
from understudy.networks.ensembles import with_hidden_layers
from understudy.networks.mlp import MLP

Affine = tuple[Any, Any]  # factors and offsets of features; or weights and a bias


def fold_batch_norm(actor: Any) -> Any:
    """Return an actor with plain hidden layers that acts as this one. One without BatchNorm stays
    as it is. The products are computed in float64 and rounded once."""
    hidden = getattr(actor, "encoder", None)
    if not isinstance(hidden, BatchNormMLP):
        return actor
    layers, pending = [], affine_map(hidden.norms[0])
    for layer, norm in zip(hidden.layers, hidden.norms[1:], strict=True):
        weight, bias = absorbed(pending, layer)
        pending = affine_map(norm)
        if hidden.normalizes_first:
            factor, offset = pending
            weight, bias = weight * factor, bias * factor + offset
            pending = (np.ones_like(factor), np.zeros_like(offset))
        layers += [weight, bias]
    inputs, *sizes = (norm.scale.shape[0] for norm in hidden.norms)
    plain = jax.eval_shape(
        lambda key: MLP(inputs, tuple(sizes), key, activation=hidden.activation),
        jax.ShapeDtypeStruct((2,), np.uint32),
    )
    rounded = [array.astype(np.float32) for array in (*layers, *absorbed(pending, actor.head))]
    *layers, weight, bias = rounded
    plain = jax.tree.unflatten(jax.tree.structure(plain), layers)
    actor = with_hidden_layers(actor, plain)
    return eqx.tree_at(lambda actor: (actor.head.weight, actor.head.bias), actor, (weight, bias))


def affine_map(norm: BatchNorm) -> Affine:
    """Return a and b of a·x + b, which BatchNorm computes with its running statistics."""
    arrays = (norm.scale, norm.offset, norm.statistics.mean, norm.statistics.variance)
    scale, offset, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    factor = scale / np.sqrt(variance + norm.epsilon)
    return factor, offset - mean * factor


def absorbed(before: Affine, layer: Any) -> Affine:
    """Return the weights and bias of a linear layer with an affine map of its inputs."""
    factor, offset = before
    weight = np.asarray(layer.weight, np.float64)
    return factor[:, None] * weight, offset @ weight + np.asarray(getattr(layer, "bias", 0.0))
