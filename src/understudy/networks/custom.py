"""Users' own modules in place of an encoder.

An `eqx.Module` may carry leaves that are not arrays (`eqx.nn.MLP` keeps its activation as
one), which `jax.jit` refuses. `arrays_only` partitions such a module once: its arrays stay
leaves, everything else becomes static.
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
    """What replaces the standard networks.

    `actor_encoder` and `critic_encoder` take the place of hidden layers: functions
    `(inputs, key) -> eqx.Module` of a module that maps one flat vector to a feature vector. The
    vector is what was seen; a critic of continuous actions gets the action beside it.

    `encoder` takes the place of what sees: a function `(spec, key) -> eqx.Module` of a module that
    maps one observation (an array of `spec.shape`, or the dict of the entries where it has images)
    to a feature vector. A memory, if asked for, comes after it. Batching is done here.
    """

    actor_encoder: EncoderMaker | None = None
    critic_encoder: EncoderMaker | None = None
    encoder: Callable[[ArraySpec, Key], Any] | None = None


@final
class PerSample(eqx.Module):
    """A user's single-sample module applied to a batch, with arrays as its only leaves."""

    arrays: Any
    static: Any = eqx.field(static=True)
    rank: int = eqx.field(static=True)  # of the one sample (of its first entry, in a dict)

    def __call__(self, x: Any) -> Array:
        module = eqx.combine(self.arrays, self.static.tree)
        for _ in range(jax.tree.leaves(x)[0].ndim - self.rank):
            module = jax.vmap(module)
        return module(x)


@final
class StaticTree:
    """The array-free half of a module, comparable and hashable by structure and leaves."""

    def __init__(self, tree: Any):
        self.tree = tree
        leaves, structure = jax.tree.flatten(tree)
        self._identity = (structure, tuple(leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticTree) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


def arrays_only(module: Any, rank: int = 1) -> PerSample:
    arrays, static = eqx.partition(module, eqx.is_array)
    return PerSample(arrays, StaticTree(static), rank)


def build_encoder(
    make: EncoderMaker | None, standard: EncoderMaker, inputs: int, key: Key
) -> tuple[Any, int]:
    """The encoder for `inputs` numbers and the size of its features."""
    encoder = standard(inputs, key) if make is None else arrays_only(make(inputs, key))
    probe = jax.eval_shape(encoder, jax.ShapeDtypeStruct((1, inputs), jnp.float32))
    if len(probe.shape) != 2 or probe.shape[0] != 1:
        raise ConfigError(f"an encoder must map [{inputs}] to [features], got {probe.shape[1:]}")
    return encoder, probe.shape[1]
