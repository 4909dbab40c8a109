"""The outlines of a repertoire's cells: polygons in the plane of two numbers of the descriptor, or
strips over a single one."""

import itertools
from typing import NamedTuple

import numpy as np

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


def outlines(cells: Cells) -> list[np.ndarray]:
    """A polygon for each cell of one or two dimensions."""
    low, high = np.array(cells.low), np.array(cells.high)
    if cells.size == 1:
        low, high = np.append(low, 0.0), np.append(high, 1.0)
    if isinstance(cells, Grid):
        polygons = _boxes((*cells.shape, 1)[:2])
    else:
        centers = np.asarray(unit(cells, cells.centroids), float)
        polygons = _strips(centers[:, 0]) if cells.size == 1 else _nearest_regions(centers)
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
    low, high = ([bound[axis] for axis in pair] for bound in (cells.low, cells.high))
    return Panel(pair, outlines(make_grid((shape[first], shape[second]), low, high)), shown)


def _boxes(shape: tuple[int, ...]) -> list[np.ndarray]:
    places = np.indices(shape).reshape(2, -1).T
    return list((places[:, None] + BOX) / np.array(shape))


def _strips(centers: np.ndarray) -> list[np.ndarray]:
    order = np.argsort(centers, kind="stable")
    middles = (centers[order][1:] + centers[order][:-1]) / 2
    edges = np.concatenate([[0.0], middles, [1.0]])
    strips = [BOX] * len(centers)
    for place, number in enumerate(order):
        start, end = edges[place], edges[place + 1]
        strips[number] = np.array([start, 0.0]) + BOX * np.array([end - start, 1.0])
    return strips


def _nearest_regions(centers: np.ndarray) -> list[np.ndarray]:
    """The Voronoi cells of points in the unit box. Start with the box and cut it by the bisector to
    each neighbor, from the nearest until one is too far away to cut anything."""
    regions = []
    for number, center in enumerate(centers):
        away = np.sum((centers - center) ** 2, axis=1)
        region = BOX
        for other in np.argsort(away, kind="stable"):
            if away[other] > 4 * np.max(np.sum((region - center) ** 2, axis=1)):
                break
            if other != number:
                region = _nearer_half(region, center, centers[other])
        regions.append(region)
    return regions


def _nearer_half(polygon: np.ndarray, center: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The part of a convex polygon that is nearer to `center` than to `other`."""
    beyond = (polygon - (center + other) / 2) @ (other - center)  # negative on this side
    if (beyond <= 0).all():
        return polygon
    corners = []
    for place in range(len(polygon)):
        here, there = beyond[place - 1], beyond[place]
        if (here <= 0) != (there <= 0):
            share = here / (here - there)
            corners.append(polygon[place - 1] + share * (polygon[place] - polygon[place - 1]))
        if there <= 0:
            corners.append(polygon[place])
    return np.array(corners)
