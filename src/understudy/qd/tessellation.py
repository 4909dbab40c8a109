"""The cells of the space of behaviors: a grid, or a centroidal Voronoi tessellation (CVT), whose
cells hold the points nearest to their centers.

Distances are in units of each range, so that all dimensions have equal weight. A point out of
bounds belongs to the cell at the edge.
"""

import math
from collections.abc import Sequence
from typing import final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from understudy.errors import ConfigError

ROUNDS = 20  # of Lloyd's algorithm; from an even start twice as many gain 0.2 %
BUCKETS = 1_024


@final
class Grid(eqx.Module):
    """Boxes of one size in C order: the last axis varies fastest. A box includes its lower edges;
    the last box along an axis includes the upper edge too."""

    shape: tuple[int, ...] = eqx.field(static=True)
    low: tuple[float, ...] = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_bounds(self.low, self.high)
        if len(self.shape) != len(self.low):
            raise ConfigError(
                f"the grid {_times(self.shape)} has {len(self.shape)} axes, but the descriptor "
                f"{len(self.low)} numbers: give a number of cells for each"
            )
        if min(self.shape) < 1:
            raise ConfigError(f"a grid needs a cell or more along each axis, got {self}")

    def __str__(self) -> str:
        return f"a grid of {_times(self.shape)} cells over {_ranges(self.low, self.high)}"

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """How many numbers a descriptor has."""
        return len(self.low)

    @property
    def centers(self) -> Float[Array, "cells size"]:
        places = np.indices(self.shape).reshape(self.size, -1).T
        return _in_units((places + 0.5) / np.array(self.shape), self.low, self.high)

    def cell_of(self, descriptor: Float[Array, "*batch size"]) -> Int32[Array, "*batch"]:
        place = (unit(self, descriptor) * jnp.array(self.shape)).astype(jnp.int32)
        along = jnp.moveaxis(place, -1, 0)  # "clip" puts the upper edges into the last boxes
        return jnp.ravel_multi_index(tuple(along), self.shape, mode="clip").astype(jnp.int32)


@final
class Cvt(eqx.Module):
    """Each point belongs to the nearest centroid; of equally near ones to the first."""

    centroids: Float[Array, "cells size"]
    low: tuple[float, ...] = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_bounds(self.low, self.high)
        count, size = self.centroids.shape
        if size != len(self.low) or count < 1:
            raise ConfigError(
                f"centroids must be [cells, {len(self.low)}], got {[count, size]}: one row for "
                "each cell, with as many numbers as the descriptor"
            )

    def __str__(self) -> str:
        return f"a CVT of {self.count} cells over {_ranges(self.low, self.high)}"

    @property
    def count(self) -> int:
        return self.centroids.shape[0]

    @property
    def size(self) -> int:
        """How many numbers a descriptor has."""
        return len(self.low)

    @property
    def centers(self) -> Float[Array, "cells size"]:
        return self.centroids

    def cell_of(self, descriptor: Float[Array, "*batch size"]) -> Int32[Array, "*batch"]:
        here, centers = unit(self, descriptor), unit(self, self.centroids)
        # Axis by axis, which avoids an array [batch, cells, size].
        squares = [(here[..., None, axis] - centers[..., axis]) ** 2 for axis in range(self.size)]
        return jnp.argmin(sum(squares[1:], squares[0]), axis=-1).astype(jnp.int32)


Cells = Grid | Cvt


def unit(cells: Cells, descriptor: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
    """Scale a descriptor to the unit box and clip it: 0 is at or below `low`, 1 at or above `high`.
    NaN becomes 0."""
    low, high = jnp.array(cells.low), jnp.array(cells.high)
    known = jnp.where(jnp.isnan(descriptor), low, descriptor)
    return (jnp.clip(known, low, high) - low) / (high - low)


def is_inside(cells: Cells, descriptor: Float[Array, "*batch size"]) -> Bool[Array, "*batch"]:
    low, high = jnp.array(cells.low), jnp.array(cells.high)
    return jnp.all((low <= descriptor) & (descriptor <= high), axis=-1)


def make_grid(shape: Sequence[int], low: Sequence[float], high: Sequence[float]) -> Grid:
    """Make a grid with that many cells along each axis, between the bounds."""
    return Grid(tuple(map(int, shape)), tuple(map(float, low)), tuple(map(float, high)))


def make_cvt(
    count: int, low: Sequence[float], high: Sequence[float], seed: int = 0, samples: int = 50_000
) -> Cvt:
    """Make that many cells of about one size by Lloyd's algorithm on uniform `samples`: each
    centroid repeatedly moves to the mean of the samples nearest to it. The host computes it, so
    that a seed gives the same cells on every device."""
    from scipy.spatial import KDTree  # slow to import; agents do not need it

    bounds = tuple(map(float, low)), tuple(map(float, high))
    _check_bounds(*bounds)
    if count < 1:
        raise ConfigError(f"a CVT needs a cell or more, got {count}")
    if samples < count:
        raise ConfigError(f"{count} cells need as many samples or more, got {samples}")
    random, size = np.random.default_rng(seed), len(bounds[0])
    points = _sort_by_place(random.random((samples, size)))
    centroids = _spread_evenly(count, random.random(size))
    previous = None
    for _ in range(ROUNDS):
        _, nearest = KDTree(centroids).query(points)
        if previous is not None and np.array_equal(nearest, previous):
            break
        members = np.bincount(nearest, minlength=count)
        for axis in range(size):
            sums = np.bincount(nearest, points[:, axis], minlength=count)
            # A centroid without samples stays where it is.
            np.divide(sums, members, out=centroids[:, axis], where=members > 0)
        previous = nearest
    return Cvt(_in_units(centroids, *bounds), *bounds)


def _sort_by_place(points: np.ndarray) -> np.ndarray:
    """Sort points in the unit box by buckets, so that queries for neighbors follow each other."""
    samples, size = points.shape
    along = max(1, round(min(BUCKETS, samples) ** (1 / size)))
    places = np.minimum((points * along).astype(int), along - 1)
    bucket = np.ravel_multi_index(tuple(places.T), (along,) * size)
    return points[np.argsort(bucket, kind="stable")]


def _spread_evenly(count: int, start: np.ndarray) -> np.ndarray:
    """Return the first points of Roberts' sequence from `start`: multiples of powers of the number
    g that solves g^(size + 1) = g + 1, the golden ratio in one dimension."""
    size, ratio = len(start), 2.0
    for _ in range(60):
        ratio = (1 + ratio) ** (1 / (size + 1))
    steps = ratio ** -np.arange(1.0, size + 1)
    return (start + np.arange(count)[:, None] * steps) % 1.0


def _in_units(places: np.ndarray, low: tuple[float, ...], high: tuple[float, ...]) -> Array:
    """Scale from the unit box to the bounds."""
    return jnp.asarray(np.array(low) + places * (np.array(high) - np.array(low)), jnp.float32)


def _check_bounds(low: tuple[float, ...], high: tuple[float, ...]) -> None:
    if not low or len(low) != len(high):
        raise ConfigError(f"there must be as many low as high bounds, got {low} and {high}")
    with np.errstate(over="ignore"):
        ranges = np.array(high, np.float32) - np.array(low, np.float32)
    if not (np.isfinite(ranges).all() and (ranges > 0).all()):
        raise ConfigError(
            f"each low must be below its high, by a number that float32 can hold, got {low} and "
            f"{high}"
        )


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _ranges(low: tuple[float, ...], high: tuple[float, ...]) -> str:
    return " × ".join(f"[{a:g}, {b:g}]" for a, b in zip(low, high, strict=True))
