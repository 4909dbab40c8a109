"""Users' own modules in place of an encoder.

An `eqx.Module` may have leaves that are not arrays (such as the activation of `eqx.nn.MLP`), which
`jax.jit` refuses. `arrays_only` partitions such a module once: its arrays stay leaves, everything
else becomes static.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from understudy.types import ArraySpec, ConfigError, Key

EncoderMaker = Callable[[int, Key], Any]  # (inputs, key) -> module of one flat input vector


@final
@dataclass(frozen=True)
class Networks:
    """Replacements of the standard networks.

    `actor_encoder` and `critic_encoder` replace the hidden layers. They are functions
    `(inputs, key) -> eqx.Module`, and the module maps one flat vector to a feature vector. The
    input of a critic of continuous actions is the observation with the action beside it.

    `encoder` replaces the encoder of observations. It is a function `(spec, key) -> eqx.Module`,
    and the module maps one observation (an array of `spec.shape`, or a dict of the entries if it
    has images) to a feature vector. A recurrent cell, if configured, comes after it. The library
    does the batching.
    """

    actor_encoder: EncoderMaker | None = None
    critic_encoder: EncoderMaker | None = None
    encoder: Callable[[ArraySpec, Key], Any] | None = None


@final
class PerSample(eqx.Module):
    """A user's single-sample module applied to a batch, with arrays as its only leaves."""

    arrays: Any
    static: Any = eqx.field(static=True)
    rank: int = eqx.field(static=True)  # of one sample (of its first entry, if it is a dict)

    def __call__(self, x: Any) -> Array:
        module = eqx.combine(self.arrays, self.static.tree)
        for _ in range(jax.tree.leaves(x)[0].ndim - self.rank):
            module = jax.vmap(module)
        return module(x)


@final
class StaticTree:
    """The part of a module that has no arrays, comparable and hashable by structure and leaves."""

    def __init__(self, tree: Any):
        self.tree = tree
        leaves, structure = jax.tree.flatten(tree)
        self._identity = (structure, tuple(leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticTree) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


def arrays_only(module: Any, rank: int = 1) -> PerSample:
    """Return a single-sample module for batches, with arrays as its only leaves."""
    arrays, static = eqx.partition(module, eqx.is_array)
    return PerSample(arrays, StaticTree(static), rank)


def build_encoder(
    make: EncoderMaker | None, standard: EncoderMaker, inputs: int, key: Key
) -> tuple[Any, int]:
    """Make the hidden layers for `inputs` numbers; also return the number of features."""
    encoder = standard(inputs, key) if make is None else arrays_only(make(inputs, key))
    probe = jax.eval_shape(encoder, jax.ShapeDtypeStruct((1, inputs), jnp.float32))
    if len(probe.shape) != 2 or probe.shape[0] != 1:
        raise ConfigError(f"an encoder must map [{inputs}] to [features], got {probe.shape[1:]}")
    return encoder, probe.shape[1]
