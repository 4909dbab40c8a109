"""A sum tree: sample leaves in proportion to their values.

Every node is the sum of its block of children. So one descent samples a leaf, and a changed leaf
changes its ancestors only. Ancestors are summed anew, never corrected by a difference: rounding
errors do not accumulate.

A block is stored as a column [fan-out, batch]: a search is then a product with a triangular matrix
and reductions over rows as long as the batch. A fan-out of 8 was the fastest of 4 to 128, with two
written, 256 sampled and 256 written of a million leaves on a CPU.

XLA updates a donated tree in place if no later operation reads the old version: each read must feed
the write that follows. Samples that decide the places of the next write do; a `read` whose result
the next write does not depend on costs a copy of all leaves.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.types import Key, Scalar

FAN_OUT = 8
Places = Int32[Array, " k"]
Values = Float[Array, " k"]


class SumTree(NamedTuple):
    levels: tuple[Float[Array, " _nodes"], ...]  # the root's children first, the leaves last


def create(leaves: int) -> SumTree:
    """A tree of zeros: nothing can be sampled from it yet."""
    sizes = [leaves]
    while sizes[0] > FAN_OUT:
        sizes.insert(0, math.ceil(sizes[0] / FAN_OUT))
    return SumTree(tuple(jnp.zeros(size) for size in sizes))


def total(tree: SumTree) -> Scalar:
    return jnp.sum(tree.levels[0])


def _get(level: Float[Array, " nodes"], node: Int32[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Nodes that do not exist are empty: so the last block of a level needs no padding."""
    return level.at[node].get(mode="fill", fill_value=0.0, wrap_negative_indices=False)


def _children(level: Float[Array, " nodes"], parent: Places) -> Float[Array, "fan k"]:
    return _get(level, parent * FAN_OUT + jnp.arange(FAN_OUT)[:, None])


def read(tree: SumTree, place: Places) -> Values:
    """The values of leaves; 0 where there is none."""
    return _get(tree.levels[-1], place)


def write(tree: SumTree, place: Places, value: Values) -> SumTree:
    """Set leaves to finite values. Of several for one leaf the largest counts, a negative one
    counts as 0, and one for a leaf that does not exist is dropped."""
    if len(place) == 1:  # must stay a scatter, see `replay`
        nowhere = jnp.full(1, len(tree.levels[-1]), jnp.int32)
        place, value = jnp.concatenate([place, nowhere]), jnp.concatenate([value, value])
    # Adds nothing, as no total is negative. But XLA does not know, and so waits for the total,
    # hence for all that an earlier write has read: without this, two writes in a row copy the tree.
    place = place + (total(tree) < 0).astype(jnp.int32)

    def put(level: Array) -> Array:
        # 0 first and the largest then: which of several comes last is chance on a GPU.
        empty = level.at[place].set(0.0, mode="drop", wrap_negative_indices=False)
        return empty.at[place].max(value, mode="drop", wrap_negative_indices=False)

    levels = [put(tree.levels[-1])]
    for level in tree.levels[-2::-1]:
        place = place // FAN_OUT
        sums = jnp.sum(_children(levels[0], place), axis=0)  # brothers write the same sum
        level = level.at[place].set(sums, mode="drop", wrap_negative_indices=False)
        levels.insert(0, level)
    return SumTree(tuple(levels))


def find(tree: SumTree, mass: Values, rest: Values) -> tuple[Places, Values]:
    """Find the leaf in whose interval `mass + rest` falls, and its value; `rest` is what mass was
    rounded by. The intervals follow one another from 0 to the total. A leaf of value 0 is found
    only if all values are 0: the first one.

    A child is taken only if it is not empty itself, and the last such one where the mass exceeds
    them all: however the sums were rounded, no empty leaf is ever reached.
    """
    rank = jnp.arange(FAN_OUT, dtype=jnp.int32)[:, None]
    triangle = jnp.tril(jnp.ones((FAN_OUT, FAN_OUT)))
    node, value = jnp.zeros(mass.shape, jnp.int32), mass
    for level in tree.levels:
        block = _children(level, node)
        upto = jnp.dot(triangle, block, precision=jax.lax.Precision.HIGHEST)
        last = jnp.max(jnp.where(block > 0, rank, 0), axis=0)
        child = jnp.min(jnp.where((block > 0) & (upto > mass), rank, last), axis=0)
        left = mass - jnp.sum(jnp.where(rank < child, block, 0.0), axis=0)
        mass = jnp.maximum(left + rest, 0.0)
        rest = rest - (mass - left)
        # From the block, not by another read, which the next write would not wait for.
        value = jnp.sum(jnp.where(rank == child, block, 0.0), axis=0)
        node = node * FAN_OUT + child
    return node, value


def sample(tree: SumTree, key: Key, count: int) -> tuple[Places, Values]:
    """Sample leaves in proportion to their values, one from each of `count` equal slices of the
    total; also return the probability of each. The tree must not be empty.

    A slice and the place in it are separate numbers, because one float32 has too few digits for
    both: of a million leaves, those of small value would never be sampled.
    """
    whole = total(tree)
    begin = jnp.arange(count) * (whole / count)
    within = jax.random.uniform(key, (count,)) * (whole / count)
    mass = begin + within
    place, value = find(tree, mass, within - (mass - begin))
    return place, value / whole
