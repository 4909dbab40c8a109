"""Every point belongs to one cell: by hand on a grid, by brute force on a CVT."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from understudy.errors import ConfigError
from understudy.qd.tessellation import Cvt, Grid, is_inside, make_cvt, make_grid

LOW, HIGH = (0.0, -100.0), (1.0, 100.0)  # ranges as unlike as these must weigh alike
CVT = make_cvt(12, LOW, HIGH, seed=1, samples=2_000)
numbers = st.floats(-1e6, 1e6, width=32)
points = hnp.arrays(np.float32, (16, 2), elements=numbers)


@jax.jit
def cell_of(cells, descriptor):
    return cells.cell_of(descriptor)


@pytest.mark.parametrize(
    ("point", "cell"),
    [
        ((0.0, -100.0), 0),
        ((0.0, 99.0), 1),
        ((0.49, -1.0), 2),  # the second of four columns, the lower of two rows
        ((0.5, 0.0), 5),  # an edge belongs to the cell above it
        ((1.0, 100.0), 7),  # but the last one to the last cell
        ((7.0, -3e38), 6),  # out of bounds: the cell at the edge
        ((-1.0, 1e9), 1),
    ],
)
def test_a_grid_by_hand(point, cell):
    assert int(Grid((4, 2), LOW, HIGH).cell_of(jnp.array(point))) == cell


def test_the_centers_of_a_grid_by_hand():
    centers = make_grid([2, 2], LOW, HIGH).centers
    np.testing.assert_allclose(centers, [[0.25, -50], [0.25, 50], [0.75, -50], [0.75, 50]])


@given(points)
def test_each_point_lies_in_the_box_of_its_cell(points):
    shape = np.array([7, 3])
    grid = make_grid((7, 3), LOW, HIGH)
    cell = np.asarray(cell_of(grid, jnp.asarray(points)))
    assert ((cell >= 0) & (cell < grid.count)).all()
    inside = (np.clip(points, LOW, HIGH) - LOW) / (np.array(HIGH) - LOW) * shape
    place = np.stack(np.unravel_index(cell, (7, 3)), axis=-1)
    assert (place - 1e-4 <= inside).all() and (inside <= place + 1 + 1e-4).all()


@given(points)
def test_each_point_belongs_to_the_nearest_centroid(points):
    cell = np.asarray(cell_of(CVT, jnp.asarray(points)))
    ranges = np.array(HIGH) - LOW
    apart = (np.clip(points, LOW, HIGH)[:, None] - np.asarray(CVT.centroids, float)) / ranges
    away = np.sqrt(np.sum(apart**2, axis=-1))
    np.testing.assert_allclose(away[np.arange(16), cell], away.min(axis=1), atol=1e-5)


@pytest.mark.parametrize("cells", [Grid((5, 4), LOW, HIGH), CVT], ids=["grid", "cvt"])
def test_a_center_belongs_to_its_own_cell(cells):
    np.testing.assert_array_equal(cells.cell_of(cells.centers), np.arange(cells.count))
    assert is_inside(cells, cells.centers).all()
    assert not is_inside(cells, jnp.array([0.5, 101.0]))
    assert not is_inside(cells, jnp.array([jnp.nan, 0.0]))


def test_a_seed_gives_the_same_cells_and_another_seed_others():
    again, other = (make_cvt(12, LOW, HIGH, seed=seed, samples=2_000) for seed in (1, 2))
    np.testing.assert_array_equal(again.centroids, CVT.centroids)
    assert not np.array_equal(other.centroids, CVT.centroids)


@pytest.mark.parametrize(("count", "size"), [(20, 1), (25, 2), (30, 3)])
def test_the_cells_of_a_cvt_are_of_about_one_size(count, size):
    cvt = make_cvt(count, (-1.0,) * size, (1.0,) * size, samples=5_000)
    points = np.random.default_rng(5).uniform(-1, 1, (20_000, size)).astype(np.float32)
    shares = np.bincount(cell_of(cvt, jnp.asarray(points)), minlength=count) / 20_000 * count
    assert shares.min() > 0.5 and shares.max() < 1.6


def test_lloyd_leaves_each_centroid_in_the_middle_of_its_samples():
    """That is what makes it centroidal; the start alone is not."""
    points = np.random.default_rng(6).random((50_000, 2)).astype(np.float32)
    cvt = make_cvt(16, (0.0, 0.0), (1.0, 1.0))
    cell = np.asarray(cell_of(cvt, jnp.asarray(points)))
    means = np.stack([points[cell == number].mean(axis=0) for number in range(16)])
    np.testing.assert_allclose(means, cvt.centroids, atol=0.02)


def test_one_cell_and_as_many_samples_as_cells():
    assert make_cvt(1, (0.0,), (1.0,), samples=1).count == 1
    assert np.isfinite(make_cvt(50, (0.0, 0.0), (1.0, 1.0), samples=50).centroids).all()


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: make_grid((4,), LOW, HIGH), "1 axes, but the descriptor 2 numbers"),
        (lambda: make_grid((4, 0), LOW, HIGH), "a cell or more along each axis"),
        (lambda: make_grid((), (), ()), "as many low as high"),
        (lambda: make_grid((4, 4), LOW, (1.0,)), "as many low as high"),
        (lambda: make_grid((4, 4), (0.0, np.nan), HIGH), "below its high"),
        (lambda: make_grid((4, 4), LOW, (np.inf, 1.0)), "below its high"),
        (lambda: make_grid((4,), (1.0,), (1.0 + 1e-12,)), "float32"),
        (lambda: make_grid((4,), (-3e38,), (3e38,)), "float32"),
        (lambda: make_cvt(0, LOW, HIGH), "a CVT needs a cell or more"),
        (lambda: make_cvt(10, (np.nan, 0.0), HIGH), "below its high"),
        (lambda: make_cvt(10, LOW, HIGH, samples=9), "10 cells need as many samples"),
        (lambda: Cvt(jnp.zeros((3, 1)), LOW, HIGH), r"\[cells, 2\]"),
    ],
)
def test_what_is_no_tessellation_is_refused_in_one_line(make, line):
    with pytest.raises(ConfigError, match=line) as error:
        make()
    assert "\n" not in str(error.value)
