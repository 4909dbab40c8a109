"""Dropout in the hidden layers of critics, as in DroQ (Hiraoka et al., "Dropout Q-Functions for
Doubly Efficient Reinforcement Learning", arXiv 2110.02034).

Randomness is passed in: losses put a `Dropout` into the critics. Critics that are stored, and those
that act, have none.
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.types import Key


@final
class Dropout(eqx.Module):
    """Sets random units to zero, and divides the others by the share that is left.

    The units of a row depend only on its place in the whole batch, so that shards drop the units
    that the whole batch does."""

    key: Key
    row: Int32[Array, " batch"]
    rate: float = eqx.field(static=True)

    def __call__(
        self, x: Float[Array, "batch *others"], layer: int
    ) -> Float[Array, "batch *others"]:
        key, left = jax.random.fold_in(self.key, layer), 1.0 - self.rate

        def draw(row: Array) -> Array:
            return jax.random.bernoulli(jax.random.fold_in(key, row), left, x.shape[1:])

        return jnp.where(jax.vmap(draw)(self.row), x / left, 0.0)
