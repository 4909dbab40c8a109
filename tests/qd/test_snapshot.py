"""A repertoire comes back bit for bit, or a line says what differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.errors import CheckpointError
from understudy.qd import repertoire as qd
from understudy.qd.snapshot import (
    describe_cells,
    pack,
    read_cells,
    refuse_other_cells,
    unpack,
)
from understudy.qd.tessellation import Cvt, make_cvt, make_grid
from understudy.runs import checkpoint

add, empty = jax.jit(qd.add), jax.jit(qd.empty)
LOW, HIGH = (0.0, -1.0), (0.1, 1.0)
GRID = make_grid((4, 3), LOW, HIGH)
CVT = make_cvt(7, LOW, HIGH, samples=200)
TEMPLATE = {"layers": [{"weight": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}], "steps": jnp.int32(0)}


def save(place, repertoire):
    manifest = {"cells": describe_cells(repertoire.cells)}
    return checkpoint.write(place, {"learner": pack(repertoire)}, manifest)


def load(place, template=TEMPLATE, wanted=None):
    stored = checkpoint.read(place)
    arrays = stored.groups["learner"]
    cells = read_cells(place, stored.manifest.get("cells"), arrays)
    if wanted is not None:
        refuse_other_cells(place, cells, wanted)
    return unpack(arrays, empty(cells, template))


def grown(cells, count=5):
    random = np.random.default_rng(0)

    def some(leaf):
        return jnp.asarray(random.normal(size=(count, *leaf.shape)) * 100, leaf.dtype)

    descriptor = jnp.asarray(random.uniform(size=(count, 2)) * 0.2, jnp.float32)
    assert count == 0 or (descriptor > 0.1).any(), "some must be out of bounds"
    fitness = jnp.asarray(random.normal(size=count), jnp.float32)
    born = jnp.asarray(np.arange(count, dtype=np.int32))
    offered = jax.tree.map(some, TEMPLATE), fitness, descriptor, born
    return add(empty(cells, TEMPLATE), *offered)[0]


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert left.dtype == right.dtype
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


@pytest.mark.parametrize("cells", [GRID, CVT], ids=["grid", "cvt"])
@pytest.mark.parametrize("count", [0, 5])
def test_a_repertoire_comes_back_to_the_bit(tmp_path, cells, count):
    repertoire = grown(cells, count)
    place = save(tmp_path / "repertoire", repertoire)
    assert_same(load(place), repertoire)
    assert_same(load(place, wanted=cells), repertoire)


def test_only_what_is_filled_is_written():
    repertoire = grown(GRID)
    filled = int(repertoire.filled.sum())
    arrays = pack(repertoire)
    assert 0 < filled < GRID.count
    assert {len(array) for array in arrays.values()} == {filled}
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert_same(unpack(arrays, empty(GRID, TEMPLATE)), repertoire)


def test_what_comes_back_can_be_added_to(tmp_path):
    repertoire = grown(CVT)
    kept = load(save(tmp_path / "repertoire", repertoire))
    policies = jax.tree.map(lambda x: x[None] + 1, TEMPLATE)
    offered = policies, jnp.array([9.0]), jnp.array([[0.05, 0.5]]), jnp.array([70])
    assert_same(add(kept, *offered)[0], add(repertoire, *offered)[0])


@pytest.mark.fault(50, "another grid: an error that names both")
@pytest.mark.parametrize(
    ("stored", "wanted", "line"),
    [
        (GRID, make_grid((3, 4), LOW, HIGH), "a grid of 4×3 cells .* not a grid of 3×4 cells"),
        (GRID, make_grid((4, 3), LOW, (0.2, 1.0)), r"\[0, 0.1\] .* not .* \[0, 0.2\]"),
        (GRID, make_grid((4, 3), LOW, (0.10000001, 1.0)), "with other bounds"),
        (GRID, CVT, "a grid of 4×3 cells .* not a CVT of 7 cells"),
        (CVT, make_cvt(7, LOW, HIGH, seed=1, samples=200), "a CVT of 7 .* with other centroids"),
        (CVT, make_cvt(8, LOW, HIGH, samples=200), "a CVT of 7 cells .* not a CVT of 8 cells"),
    ],
)
def test_a_repertoire_of_other_cells_is_refused(tmp_path, stored, wanted, line):
    place = save(tmp_path / "repertoire", grown(stored))
    with pytest.raises(CheckpointError, match=line) as error:
        load(place, wanted=wanted)
    assert str(place) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.fault(50, "another genotype: an error that names what differs")
@pytest.mark.parametrize(
    ("template", "line"),
    [
        ({**TEMPLATE, "steps": jnp.zeros(())}, r"policies.steps is int32\[\d\], not float32"),
        ({**TEMPLATE, "more": jnp.zeros(2)}, "policies.more is missing"),
        ({"layers": TEMPLATE["layers"]}, "policies.steps is unknown"),
        (
            {**TEMPLATE, "layers": [{"weight": jnp.zeros((3, 4)), "bias": jnp.zeros(2)}]},
            r"policies.layers.0.weight is float32\[\d, 3, 2\], not float32\[\d, 3, 4\]",
        ),
    ],
)
def test_a_repertoire_of_other_policies_is_refused(tmp_path, template, line):
    place = save(tmp_path / "repertoire", grown(GRID))
    with pytest.raises(CheckpointError, match=line) as error:
        load(place, template, GRID)
    assert "\n" not in str(error.value)


def test_what_is_no_repertoire_is_refused(tmp_path):
    for name, cells in [
        ("nothing", None),
        ("backwards", {"kind": "grid", "shape": [2], "low": [1], "high": [0]}),
        ("bare", {"kind": "cvt", "low": [0], "high": [1]}),
    ]:
        groups = {"learner": {"a": np.zeros(2)}}
        place = checkpoint.write(tmp_path / name, groups, {"cells": cells})
        with pytest.raises(CheckpointError, match="which cells"):
            load(place)


@pytest.mark.parametrize("cell", [[0, 0, 1], [-1, 0, 1], [0, 1, 12], [2, 1, 0]])
def test_cells_that_are_not_there_are_refused(cell):
    arrays = pack(grown(GRID)) | {"cell": np.array(cell, np.int32)}
    with pytest.raises(CheckpointError, match="numbers of the filled cells"):
        unpack(arrays, empty(GRID, TEMPLATE))


def test_a_policy_that_is_not_finite_is_not_written(tmp_path):
    repertoire = grown(GRID)
    broken = jax.tree.map(lambda x: x * np.float32("nan"), repertoire.policies["layers"])
    policies = {**repertoire.policies, "layers": broken}
    repertoire = qd.Repertoire(
        policies, repertoire.fitness, repertoire.descriptor, repertoire.born, GRID
    )
    with pytest.raises(CheckpointError, match=r"policies.layers.0.* is not finite"):
        save(tmp_path / "repertoire", repertoire)


def test_cvt_centroids_are_kept_with_it(tmp_path):
    """Cells that nobody can compute again."""
    own = Cvt(jnp.array([[0.01, 0.0], [0.07, 0.3]]), LOW, HIGH)
    assert_same(load(save(tmp_path / "repertoire", grown(own))).cells, own)
