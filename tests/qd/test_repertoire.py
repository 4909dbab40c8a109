"""A cell keeps the best that was ever found for it, in whatever order things are found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.qd import repertoire as qd
from understudy.qd.tessellation import make_cvt, make_grid

GRID = make_grid((3, 2), (0.0, 0.0), (1.0, 1.0))
CVT = make_cvt(6, (0.0, 0.0), (1.0, 1.0), samples=500)
TEMPLATE = {"weight": jnp.zeros((2, 2)), "count": jnp.int32(0)}
BATCH = 8
UNKNOWN = (np.nan, np.inf, -np.inf)

add, empty_of = jax.jit(qd.add), jax.jit(qd.empty)


def candidates(fitness, descriptor, born):
    """Each with a policy that says who it is."""
    born = np.asarray(born, np.int32)
    weight = np.broadcast_to(born[:, None, None], (len(born), 2, 2))
    policies = {"weight": jnp.asarray(weight, jnp.float32), "count": jnp.asarray(born * 10)}
    fitness, descriptor = (jnp.asarray(np.float32(x)) for x in (fitness, descriptor))
    return policies, fitness, descriptor, jnp.asarray(born)


def added(cells, *batches):
    repertoire, counts = empty_of(cells, TEMPLATE), []
    for batch in batches:
        repertoire, count = add(repertoire, *candidates(*batch))
        counts.append(count)
    return repertoire, counts


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


# Few values, so that cells and fitnesses often coincide.
one_fitness = st.sampled_from([-1.0, -0.0, 0.0, 1e-45, 2.0, 3e38, *UNKNOWN])
one_number = st.sampled_from([-5.0, 0.0, 0.2, 0.5, 0.9, 1.0, 3e38, *UNKNOWN])
rows = st.lists(st.tuples(one_fitness, one_number, one_number), min_size=2 * BATCH, max_size=24)


def as_batches(rows, order):
    """Batches of one length, filled up with what is not taken."""
    lines = [(*rows[place], place) for place in order]
    lines += [(np.nan, 0.0, 0.0, 99)] * (-len(lines) % BATCH)
    for start in range(0, len(lines), BATCH):
        block = np.array(lines[start : start + BATCH])
        yield block[:, 0], block[:, 1:3], block[:, 3]


def elites(cells, rows):
    """What should be where, in plain Python."""
    best = {}
    for born, (fitness, *descriptor) in enumerate(rows):
        if np.isfinite([fitness, *descriptor]).all():
            cell = int(cells.cell_of(jnp.float32(descriptor)))
            best[cell] = max(best.get(cell, (-np.inf, 0)), (float(np.float32(fitness)), -born))
    return {cell: -born for cell, (_, born) in best.items()}


@pytest.mark.fault(49, "any order, any split into batches, equal fitness too: the same bits")
@pytest.mark.parametrize("cells", [GRID, CVT], ids=["grid", "cvt"])
@settings(max_examples=40)
@given(rows, st.randoms(use_true_random=False))
def test_neither_order_nor_batches_matter(cells, rows, random):
    order = list(range(len(rows)))
    expected, _ = added(cells, *as_batches(rows, order))
    random.shuffle(order)
    shuffled, _ = added(cells, *as_batches(rows, order))
    cut = random.randrange(len(order))
    split, _ = added(cells, *as_batches(rows, order[:cut]), *as_batches(rows, order[cut:]))
    assert bits(expected) == bits(shuffled) == bits(split)


@settings(max_examples=25)
@given(rows)
def test_each_cell_holds_the_fittest_of_the_first_born(rows):
    rows = [row for row in rows if row[0] != np.float32(1e-45)]  # Python tells it from zero
    repertoire, _ = added(GRID, *as_batches(rows, range(len(rows))))
    held = {int(cell): int(repertoire.born[cell]) for cell in np.flatnonzero(repertoire.filled)}
    assert held == elites(GRID, rows)


@pytest.mark.fault(49, "a cell is never lowered")
@settings(max_examples=25)
@given(rows)
def test_a_cell_is_never_lowered(rows):
    repertoire = empty_of(GRID, TEMPLATE)
    for batch in as_batches(rows, range(len(rows))):
        grown, count = add(repertoire, *candidates(*batch))
        assert (grown.fitness >= repertoire.fitness).all()
        assert (grown.filled | ~repertoire.filled).all()
        changed = np.sum(np.asarray(grown.born != repertoire.born))
        assert changed == int(count.inserted)
        repertoire = grown


def test_every_part_of_a_cell_is_of_one_candidate():
    """Also where two claim to be born at once: never the policy of one, the fitness of another."""
    repertoire, [count] = added(GRID, ([1.0, 2.0, 2.0], [[0.1, 0.1]] * 3, [5, 7, 6]))
    assert count[:3] == (1, 0, 0)
    assert repertoire.born[0] == 6 and repertoire.policies["count"][0] == 60
    assert (repertoire.policies["weight"][0] == 6).all() and repertoire.fitness[0] == 2
    twins = candidates([1.0, 1.0], [[0.9, 0.9], [0.8, 0.8]], [4, 4])
    twins[0]["count"] = jnp.array([1, 2])
    repertoire, count = add(qd.empty(GRID, TEMPLATE), *twins)
    assert int(count.inserted) == 1 and repertoire.policies["count"][5] == 1
    np.testing.assert_allclose(repertoire.descriptor[5], 0.9)


def test_what_an_empty_cell_holds():
    empty = qd.empty(CVT, TEMPLATE)
    assert not empty.filled.any() and (empty.fitness == -jnp.inf).all() and (empty.born == -1).all()
    np.testing.assert_array_equal(empty.descriptor, CVT.centroids)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(empty.policies))
    assert empty.policies["weight"].shape == (6, 2, 2)
    assert empty.policies["count"].dtype == jnp.int32


def test_a_repertoire_can_be_carried_through_a_scan():
    """Types and shapes are the same before and after."""
    batch = candidates([1.0], [[0.5, 0.5]], [0])

    def generation(repertoire, _):
        return qd.add(repertoire, *batch)

    grown, count = jax.lax.scan(generation, qd.empty(CVT, TEMPLATE), length=2)
    assert count.inserted.tolist() == [1, 0] and grown.filled.sum() == 1


@pytest.mark.fault(46, "not inserted, but counted")
@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize("cells", [GRID, CVT], ids=["grid", "cvt"])
def test_what_is_no_number_is_not_inserted(cells, unknown):
    good, bad = [0.5, 0.5], [0.5, unknown]
    repertoire, [count] = added(cells, ([unknown, 1.0, 0.0], [good, bad, good], [0, 1, 2]))
    assert count[:3] == (1, 2, 0)
    assert np.asarray(repertoire.born).tolist().count(-1) == 5 and repertoire.born.max() == 2
    assert np.isfinite(repertoire.descriptor).all()


@pytest.mark.fault(47, "assigned to the cell at the edge and counted; stored as measured")
@pytest.mark.parametrize("cells", [GRID, CVT], ids=["grid", "cvt"])
def test_what_is_out_of_bounds_goes_to_the_edge(cells):
    corners = jnp.array([[1.0, 1.0], [0.0, 0.0]])
    edge, opposite = np.asarray(cells.cell_of(corners))
    repertoire, [count] = added(cells, ([1.0, 2.0], [[3.0, 1.5], [-1.0, 0.0]], [0, 1]))
    assert count[:3] == (2, 0, 2)
    assert repertoire.fitness[edge] == 1 and repertoire.fitness[opposite] == 2
    np.testing.assert_array_equal(repertoire.descriptor[edge], [3.0, 1.5])
    # Whether it wins or not.
    _, count = add(repertoire, *candidates([0.0, 0.0], [[3.0, 1.0], [1.0, 1.0]], [2, 3]))
    assert count[:3] == (0, 0, 1)


def test_sampling_is_uniform_over_what_is_filled():
    places = [[0.1, 0.1], [0.5, 0.9], [0.9, 0.9]]
    repertoire, _ = added(GRID, ([0.0, 1.0, 2.0], places, [3, 5, 7]))
    drawn = jax.jit(qd.sample, static_argnums=2)(repertoire, jax.random.PRNGKey(0), 6_000)
    assert drawn["weight"].shape == (6_000, 2, 2)
    counts = np.bincount(np.asarray(drawn["count"]), minlength=71)
    assert counts[[30, 50, 70]].sum() == 6_000
    # Four standard deviations of a binomial.
    assert (abs(counts[[30, 50, 70]] - 2_000) < 4 * np.sqrt(6_000 * 2 / 9)).all()


@pytest.mark.parametrize("place", [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]])
def test_the_only_one_is_always_drawn(place):
    repertoire, _ = added(GRID, ([0.0], [place], [4]))
    drawn = qd.sample(repertoire, jax.random.PRNGKey(1), 50)
    assert (drawn["count"] == 40).all()


def test_the_nearest_is_that_of_what_was_measured():
    """In units of each range, and not by the cells: 0.1 of the first range is 10 of the second."""
    cells = make_grid((10, 10), (0.0, 0.0), (1.0, 100.0))
    places = [[0.1, 50.0], [0.3, 45.0], [0.95, 99.0]]
    repertoire, _ = added(cells, ([0.0, 0.0, 0.0], places, [0, 1, 2]))
    for asked, born in [((0.18, 50.0), 0), ((0.22, 50.0), 1), ((0.1, 75.0), 0), ((9.0, 900.0), 2)]:
        cell = jax.jit(qd.nearest)(repertoire, jnp.array(asked))
        assert repertoire.born[cell] == born
        assert qd.policies_in(repertoire, cell)["count"] == born * 10


def test_the_nearest_is_filled_however_far_it_is():
    repertoire, _ = added(GRID, ([0.0], [[3e38, 0.9]], [0]))
    assert qd.nearest(repertoire, jnp.array([-3e38, 0.0])) == 5


def test_metrics_by_hand():
    places = [[0.1, 0.1], [0.5, 0.9], [0.9, 0.9]]
    repertoire, _ = added(GRID, ([-3.0, 1.0, -20.0], places, [0, 1, 2]))
    numbers = jax.jit(qd.metrics)(repertoire, -10.0)
    # -20 is below the bound and counts nothing.
    expected = {"qd_score": 7.0 + 11.0, "coverage": 0.5, "max_fitness": 1.0}
    assert {name: float(number) for name, number in numbers.items()} == expected
    nothing = qd.metrics(qd.empty(GRID, TEMPLATE), -10.0)
    assert [float(number) for number in nothing.values()] == [0.0, 0.0, -np.inf]


def test_a_repertoire_can_be_given_away_and_its_cells_stay():
    repertoire = qd.empty(CVT, TEMPLATE)
    jax.jit(qd.add, donate_argnums=0)(repertoire, *candidates([1.0], [[0.5, 0.5]], [0]))
    assert repertoire.fitness.is_deleted() and not CVT.centroids.is_deleted()


def test_repertoires_of_several_seeds_in_one_program():
    """The leading axis is the member's."""
    members = [candidates([seed * 1.0, 3.0], [[0.1, 0.1], [0.9, 0.9]], [0, 1]) for seed in (1, 2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *members)
    empty = jax.tree.map(lambda x: jnp.stack([x, x]), qd.empty(CVT, TEMPLATE))
    both, count = jax.jit(jax.vmap(qd.add))(empty, *stacked)
    for member, offered in enumerate(members):
        alone, _ = add(qd.empty(CVT, TEMPLATE), *offered)
        assert bits(jax.tree.map(lambda x, member=member: x[member], both)) == bits(alone)
    assert count.inserted.tolist() == [2, 2]
