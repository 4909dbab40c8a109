"""Variation without gradients: noise on every weight, and a step along the line between two
parents (Vassiliades and Mouret, "Discovering the Elite Hypervolume by Leveraging Interspecies
Correlation", arXiv 1804.03906)."""

from typing import Any, final

import jax
from jaxtyping import Array

from understudy.buffers import ReplayState
from understudy.qd.emitters.base import Emitter
from understudy.qd.repertoire import Repertoire, sample
from understudy.types import Key, Tree


@final
class IsoLine(Emitter):
    """offspring = x + σ₁·N(0, I) + σ₂·N(0, 1)·(y − x), for two parents x and y."""

    def __init__(self, size: int, iso_sigma: float, line_sigma: float):
        self.size, self._iso, self._line = size, iso_sigma, line_sigma

    def ask(
        self, state: Any, repertoire: Repertoire, experience: ReplayState | None, key: Key
    ) -> Tree:
        x_key, y_key, noise_key = jax.random.split(key, 3)
        x, y = (sample(repertoire, parents_key, self.size) for parents_key in (x_key, y_key))
        return vary(x, y, self._iso, self._line, noise_key)


def vary(x: Tree, y: Tree, iso_sigma: float, line_sigma: float, key: Key) -> Tree:
    """Return the offspring of the parents `x` and `y`, [size, ...] each. A policy has one step
    along the line; each weight has its own noise."""
    leaves, structure = jax.tree.flatten(x)
    line_key, *keys = jax.random.split(key, len(leaves) + 1)
    along = line_sigma * jax.random.normal(line_key, (len(leaves[0]),))

    def move(one: Array, other: Array, key: Key) -> Array:
        share = along.reshape(-1, *[1] * (one.ndim - 1))
        return one + share * (other - one) + iso_sigma * jax.random.normal(key, one.shape)

    moved = map(move, leaves, jax.tree.leaves(y), keys)
    return jax.tree.unflatten(structure, list(moved))
