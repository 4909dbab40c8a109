"""The outlines of a repertoire's cells: polygons in the plane of two numbers of the descriptor, or
strips over a single one."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.spatial import Voronoi

from understudy.qd.repertoire import Repertoire
from understudy.qd.tessellation import Cells, Cvt, Grid, make_grid, unit

MOST_BINS = 24  # along each axis of a projected CVT
NOTHING = -1
BOX = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


class Panel(NamedTuple):
    """The cells in the plane of one or two axes."""

    axes: tuple[int, ...]  # of the descriptor, the horizontal one first
    polygons: list[np.ndarray]  # [corners, 2] in the descriptor's units; a strip is from 0 to 1
    shown: np.ndarray  # [polygons], the cell that is shown there, or NOTHING


def panels(repertoire: Repertoire) -> list[Panel]:
    """One panel for one or two dimensions; for more, one for each pair of axes. Of all cells at one
    place of a panel the best is shown."""
    cells, filled = repertoire.cells, np.asarray(repertoire.filled)
    if cells.size <= 2:
        shown = np.where(filled, np.arange(cells.count), NOTHING)
        return [Panel(tuple(range(cells.size)), outlines(cells), shown)]
    return [_project(repertoire, pair) for pair in itertools.combinations(range(cells.size), 2)]


def bounds(cells: Cells, axes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The lower left and the upper right corner in the plane of these axes; a strip is from 0 to
    1."""
    low, high = ([bound[axis] for axis in axes] for bound in (cells.low, cells.high))
    return np.array([*low, 0.0][:2]), np.array([*high, 1.0][:2])


def outlines(cells: Cells) -> list[np.ndarray]:
    """A polygon for each cell of one or two dimensions."""
    if isinstance(cells, Grid):
        polygons = _boxes((*cells.shape, 1)[:2])
    else:
        centers = np.asarray(unit(cells, cells.centroids), float)
        polygons = _strips(centers[:, 0]) if cells.size == 1 else _nearest_regions(centers)
    low, high = bounds(cells, range(cells.size))
    return [low + polygon * (high - low) for polygon in polygons]


def _project(repertoire: Repertoire, pair: tuple[int, int]) -> Panel:
    cells, filled = repertoire.cells, np.asarray(repertoire.filled)
    if isinstance(cells, Cvt):  # its cells overlap in a projection: bin the policies instead
        bins = min(MOST_BINS, round((cells.count / 2) ** 0.5) + 1)
        shape = (bins,) * cells.size
        inside = np.asarray(unit(cells, repertoire.descriptor)) * bins
        places = np.minimum(inside.astype(int), bins - 1).T
    else:
        shape = cells.shape
        places = np.indices(shape).reshape(cells.size, -1)
    first, second = pair
    behind = places[first] * shape[second] + places[second]
    order = np.argsort(np.asarray(repertoire.fitness), kind="stable")
    order = order[filled[order]]
    shown = np.full(shape[first] * shape[second], NOTHING)
    shown[behind[order]] = order  # the last one, the best, stays
    low, high = bounds(cells, pair)
    boxes = outlines(make_grid((shape[first], shape[second]), low.tolist(), high.tolist()))
    return Panel(pair, boxes, shown)


def _boxes(shape: tuple[int, ...]) -> list[np.ndarray]:
    places = np.indices(shape).reshape(2, -1).T
    return list((places[:, None] + BOX) / np.array(shape))


def _strips(centers: np.ndarray) -> list[np.ndarray]:
    ordered, ranks = np.sort(centers), np.argsort(np.argsort(centers, kind="stable"))
    edges = np.concatenate([[0.0], (ordered[1:] + ordered[:-1]) / 2, [1.0]])
    starts, widths = edges[ranks], np.diff(edges)[ranks]
    return [BOX * (width, 1.0) + (start, 0.0) for start, width in zip(starts, widths, strict=True)]


def _nearest_regions(centers: np.ndarray) -> list[np.ndarray]:
    """The Voronoi cells of points in the unit box. Mirror images of the points at its four sides
    end the cells there; those of a point on a side are cut off."""
    first, second = np.eye(2)
    mirrored = [
        centers * (1 - 2 * axis) + 2 * side * axis for axis in (first, second) for side in (0, 1)
    ]
    found = Voronoi(np.concatenate([centers, *mirrored]))
    regions = (found.regions[number] for number in found.point_region[: len(centers)])
    return [np.clip(found.vertices[region], 0.0, 1.0) for region in regions]
