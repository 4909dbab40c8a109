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
from jaxtyping import Array

from understudy.types import ArraySpec, Key

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
    others: tuple[Any, ...] = eqx.field(static=True)  # the leaves that are no arrays
    structure: Any = eqx.field(static=True)  # of these
    rank: int = eqx.field(static=True)  # of one sample (of its first entry, if it is a dict)

    @property
    def module(self) -> Any:
        """The user's module."""
        return eqx.combine(self.arrays, jax.tree.unflatten(self.structure, self.others))

    def __call__(self, x: Any) -> Array:
        module = self.module
        for _ in range(jax.tree.leaves(x)[0].ndim - self.rank):
            module = jax.vmap(module)
        return module(x)


def arrays_only(module: Any, rank: int = 1) -> PerSample:
    """Return a single-sample module for batches, with arrays as its only leaves."""
    arrays, static = eqx.partition(module, eqx.is_array)
    others, structure = jax.tree.flatten(static)
    return PerSample(arrays, tuple(others), structure, rank)
