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

from understudy.types import ConfigError, Key

EncoderMaker = Callable[[int, Key], Any]  # (inputs, key) -> module of one flat input vector


@final
@dataclass(frozen=True)
class Networks:
    """What replaces the standard MLP encoders: functions `(inputs, key) -> eqx.Module`.

    The module maps one flat vector to a feature vector; batching is done here. The vector is the
    observation; a critic of continuous actions gets observation and action side by side.
    """

    actor_encoder: EncoderMaker | None = None
    critic_encoder: EncoderMaker | None = None


@final
class PerSample(eqx.Module):
    """A user's single-sample module applied to a batch, with arrays as its only leaves."""

    arrays: Any
    static: Any = eqx.field(static=True)

    def __call__(self, x: Array) -> Array:
        module = eqx.combine(self.arrays, self.static.tree)
        if x.ndim == 1:
            return module(x)
        features = jax.vmap(module)(x.reshape(-1, x.shape[-1]))
        return features.reshape(*x.shape[:-1], *features.shape[1:])


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


def arrays_only(module: Any) -> PerSample:
    arrays, static = eqx.partition(module, eqx.is_array)
    return PerSample(arrays, StaticTree(static))


def build_encoder(
    make: EncoderMaker | None, standard: EncoderMaker, inputs: int, key: Key
) -> tuple[Any, int]:
    """The encoder for `inputs` numbers and the size of its features."""
    encoder = standard(inputs, key) if make is None else arrays_only(make(inputs, key))
    probe = jax.eval_shape(encoder, jax.ShapeDtypeStruct((1, inputs), jnp.float32))
    if len(probe.shape) != 2 or probe.shape[0] != 1:
        raise ConfigError(f"an encoder must map [{inputs}] to [features], got {probe.shape[1:]}")
    return encoder, probe.shape[1]
