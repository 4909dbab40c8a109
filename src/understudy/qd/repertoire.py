"""A repertoire: for every cell of the space of behaviors the best policy found there.

All functions are pure and can be jitted; `add` returns a new repertoire.
"""

from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from understudy.qd.tessellation import Cells, is_inside
from understudy.types import Key, Scalar, Tree

NEVER = jnp.iinfo(jnp.int32).max


@final
class Repertoire(eqx.Module):
    policies: Tree  # [cells, ...]; zeros where empty
    fitness: Float[Array, " cells"]  # -inf where empty
    descriptor: Float[Array, "cells size"]  # as measured; the center of the cell where empty
    born: Int32[Array, " cells"]  # the evaluation that put it there; -1 where empty
    cells: Cells

    @property
    def filled(self) -> Bool[Array, " cells"]:
        return self.born >= 0


class Counts(NamedTuple):
    """Counts of policies that were offered to a repertoire, and of the steps that they took."""

    inserted: Int32[Array, ""]  # they took a cell
    not_finite: Int32[Array, ""]  # fitness or descriptor: not inserted
    clipped: Int32[Array, ""]  # out of bounds: they count for the cell at the edge
    steps: int | Int32[Array, ""] = 0  # of environments


def empty(cells: Cells, policy_template: Tree) -> Repertoire:
    """Return an empty repertoire for policies with the shapes and dtypes of `policy_template`, a
    single policy."""
    count = cells.count
    # The cells are copied, so that the repertoire can be donated to a program.
    return Repertoire(
        policies=jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), policy_template),
        fitness=jnp.full(count, -jnp.inf, jnp.float32),
        descriptor=jnp.copy(cells.centers),
        born=jnp.full(count, -1, jnp.int32),
        cells=jax.tree.map(jnp.copy, cells),
    )


def add(
    repertoire: Repertoire,
    policies: Tree,
    fitness: Float[Array, " batch"],
    descriptor: Float[Array, "batch size"],
    born: Int32[Array, " batch"],
) -> tuple[Repertoire, Counts]:
    """Add candidates. A candidate takes its cell if it is fitter than the policy there and than all
    other candidates for it; of equally fit ones the lowest `born` wins. The fitness of a cell never
    decreases. The result depends neither on the order of the candidates nor on how they are divided
    among calls, if the numbers `born` are unique."""
    finite = jnp.isfinite(fitness) & jnp.all(jnp.isfinite(descriptor), axis=-1)
    clipped = finite & ~is_inside(repertoire.cells, descriptor)
    cell = repertoire.cells.cell_of(descriptor)
    wins = _winners(repertoire, cell, jnp.where(finite, fitness, -jnp.inf), born)
    place = jnp.where(wins, cell, repertoire.cells.count)

    def put(stored: Array, offered: Array) -> Array:
        return stored.at[place].set(offered.astype(stored.dtype), mode="drop")

    grown = Repertoire(
        policies=jax.tree.map(put, repertoire.policies, policies),
        fitness=put(repertoire.fitness, fitness),
        descriptor=put(repertoire.descriptor, descriptor),
        born=put(repertoire.born, born),
        cells=repertoire.cells,
    )
    counts = (jnp.sum(x, dtype=jnp.int32) for x in (wins, ~finite, clipped))
    return grown, Counts(*counts)


def _winners(
    repertoire: Repertoire,
    cell: Int32[Array, " batch"],
    fitness: Float[Array, " batch"],
    born: Int32[Array, " batch"],
) -> Bool[Array, " batch"]:
    """Return which candidates take a cell: at most one for each cell."""
    present, since = repertoire.fitness[cell], repertoire.born[cell]
    better = (fitness > present) | ((fitness == present) & (born < since))

    def first(numbers: Int32[Array, " batch"], among: Bool[Array, " batch"]) -> Array:
        numbers = jnp.where(among, numbers, NEVER)
        least = jnp.full(repertoire.cells.count, NEVER).at[cell].min(numbers)
        return among & (numbers == least[cell])

    fittest = better & (fitness == repertoire.fitness.at[cell].max(fitness)[cell])
    # Two rows of one cell would mix two policies: if `born` is not unique, the row decides.
    return first(jnp.arange(len(cell), dtype=jnp.int32), first(born, fittest))


def sample(repertoire: Repertoire, key: Key, count: int) -> Tree:
    """Sample `count` policies [count, ...] uniformly with replacement. An empty repertoire gives
    zeros."""
    up_to = jnp.cumsum(repertoire.filled)
    drawn = jax.random.randint(key, (count,), 0, jnp.maximum(up_to[-1], 1))
    return policies_in(repertoire, jnp.searchsorted(up_to, drawn, side="right"))


def policies_in(repertoire: Repertoire, cell: Any) -> Tree:
    """Return the policy of a cell, or those of several."""
    return jax.tree.map(lambda stacked: stacked[cell], repertoire.policies)


def nearest(repertoire: Repertoire, descriptor: Float[Array, " size"]) -> Int32[Array, ""]:
    """Return the filled cell whose measured behavior is nearest to the `descriptor`, in units of
    each range. The repertoire must not be empty."""
    cells = repertoire.cells
    ranges = jnp.array(cells.high) - jnp.array(cells.low)
    away = jnp.sum(((repertoire.descriptor - descriptor) / ranges) ** 2, axis=-1)
    # A distance that overflows float32 is still nearer than an empty cell.
    away = jnp.minimum(away, jnp.finfo(jnp.float32).max)
    return jnp.argmin(jnp.where(repertoire.filled, away, jnp.inf)).astype(jnp.int32)


def corrected(
    repertoire: Repertoire, cells: np.ndarray, fitness: np.ndarray, descriptor: np.ndarray
) -> Repertoire:
    """Return the repertoire that results if the policies of these filled cells are scored by their
    means over episodes: some move to another cell, and some lose theirs.

    `fitness` is [cells, episodes], `descriptor` [cells, episodes, size]."""
    policies, born = policies_in(repertoire, cells), repertoire.born[cells]
    template = jax.tree.map(lambda x: x[0], repertoire.policies)
    scores, behavior = (jnp.asarray(np.mean(x, axis=1), jnp.float32) for x in (fitness, descriptor))
    return add(empty(repertoire.cells, template), policies, scores, behavior, born)[0]


def metrics(repertoire: Repertoire, offset: float | Scalar) -> dict[str, Scalar]:
    """Return the QD-score, the coverage and the best fitness (-inf if the repertoire is empty).

    The QD-score is the sum of `fitness - offset` over filled cells. A policy below the offset
    counts as zero, so that filling a cell never lowers the score. The coverage is the fraction of
    filled cells, in [0, 1]."""
    above = jnp.maximum(repertoire.fitness - offset, 0.0)
    return {
        "qd_score": jnp.sum(jnp.where(repertoire.filled, above, 0.0)),
        "coverage": jnp.mean(repertoire.filled, dtype=jnp.float32),
        "max_fitness": jnp.max(repertoire.fitness),
    }
