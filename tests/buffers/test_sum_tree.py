"""The sum tree against a plain list of priorities, and that writing to it does not copy it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.buffers import sum_tree
from understudy.buffers.sum_tree import SumTree, create, find, read, sample, total, write

SIZES = [1, 7, 8, 9, 70, 600]  # one level, two, three and four; full blocks and broken ones
BIG = 54_321  # a number that no other array has

put, look = jax.jit(write), jax.jit(read)
seek = jax.jit(lambda tree, mass: find(tree, mass, jnp.zeros_like(mass))[0])
empty, whole_of = jax.jit(create, static_argnums=0), jax.jit(total)
draw = jax.jit(sample, static_argnums=2)


def tree_of(values) -> SumTree:
    values = np.asarray(values, np.float32)
    return put(empty(len(values)), jnp.asarray(np.arange(len(values))), jnp.asarray(values))


def assert_sums(tree: SumTree) -> None:
    """Every node is the sum of its block, and none is left over."""
    assert len(tree.levels[0]) <= sum_tree.FAN_OUT
    for above, below in zip(tree.levels, tree.levels[1:], strict=False):
        starts = np.arange(0, len(below), sum_tree.FAN_OUT)
        want = np.add.reduceat(np.asarray(below, np.float64), starts)
        np.testing.assert_allclose(above, want, rtol=1e-6)


# Exact in float32, sums included: then the list and the tree must agree to the bit.
whole = st.integers(0, 5).map(float)


@pytest.mark.parametrize("leaves", SIZES)
@given(data=st.data())
@settings(max_examples=25)
def test_writes_and_finds_are_those_of_a_list(leaves, data):
    """Places outside, duplicates and negative values included."""
    listed, tree = np.zeros(leaves), empty(leaves)
    # Four a write, so that one program serves all examples.
    places = st.lists(st.integers(-2, leaves + 9), min_size=4, max_size=4)
    values = st.lists(whole | st.just(-1.0), min_size=4, max_size=4)
    for place, value in data.draw(st.lists(st.tuples(places, values), min_size=1, max_size=8)):
        tree = put(tree, jnp.array(place, jnp.int32), jnp.array(value, jnp.float32))
        for at in set(place) & set(range(leaves)):
            listed[at] = max(0.0, *(v for p, v in zip(place, value, strict=True) if p == at))
        np.testing.assert_array_equal(tree.levels[-1], listed)
        assert float(whole_of(tree)) == listed.sum()
    assert_sums(tree)
    if listed.sum() > 0:
        mass = np.linspace(0, listed.sum(), 64, endpoint=False).astype(np.float32)
        mass[-1] = np.floor(mass[-1])  # a seam between two leaves, perhaps
        want = np.searchsorted(np.cumsum(listed), mass, side="right")
        np.testing.assert_array_equal(seek(tree, jnp.asarray(mass)), want)


def test_find_by_hand():
    """Leaves 0, 2, 0, 3, 0: the second holds [0, 2), the fourth [2, 5) and all beyond."""
    tree = tree_of([0, 2, 0, 3, 0])
    mass = jnp.array([-1, 0, 1.9, 2, 4.9, 5, 1e9, jnp.inf, jnp.nan])
    assert seek(tree, mass).tolist() == [1, 1, 1, 3, 3, 3, 3, 3, 3]


def test_of_several_values_for_one_leaf_the_largest_counts():
    tree = put(tree_of([9] * 20), jnp.array([3, 3, 4, 3, 4]), jnp.array([1.0, 5, 2, 3, 0]))
    assert look(tree, jnp.array([2, 3, 4, 5])).tolist() == [9, 5, 2, 9]
    assert float(total(tree)) == 18 * 9 + 5 + 2
    assert_sums(tree)


@pytest.mark.parametrize("places", [[-1], [20], [23], [24, 1000], [2**31 - 1, -(2**31)]])
def test_leaves_that_do_not_exist(places):
    """Also those that would still fit into the last block."""
    before, place = tree_of([1] * 20), jnp.array(places, jnp.int32)
    after = put(before, place, jnp.full(len(places), 7.0))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert look(after, place).tolist() == [0] * len(places)


def test_one_leaf_and_none_at_all():
    tree = put(empty(100), jnp.array([42]), jnp.array([2.0]))
    assert float(total(tree)) == 2.0 and look(tree, jnp.array([42])).tolist() == [2.0]
    jax.tree.map(
        np.testing.assert_array_equal, tree, put(tree, jnp.zeros(0, jnp.int32), jnp.zeros(0))
    )
    assert seek(empty(100), jnp.array([0.0, 1.0])).tolist() == [0, 0]  # empty: the first


def test_nothing_drifts():
    """Large values come and go; what they were rounded to does not stay behind."""
    tree = tree_of([0.1] * 600)
    before = jax.tree.map(np.asarray, tree)
    place = jnp.arange(256)
    for seed in range(50):
        tree = put(tree, place, 1e6 * jax.random.uniform(jax.random.PRNGKey(seed), (256,)))
    tree = put(tree, place, jnp.full(256, 0.1))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), before, tree)


@given(seed=st.integers(0, 2**31), empty=st.sampled_from([0.1, 0.9, 0.99]))
@settings(max_examples=40)
def test_an_empty_leaf_is_never_found(seed, empty):
    """Values over 16 orders of magnitude, and masses on, beside and beyond every seam."""
    rng = np.random.default_rng(seed)
    values = np.where(rng.random(600) < empty, 0, 10.0 ** rng.uniform(-8, 8, 600))
    values[rng.integers(600)] = 1.0
    tree = tree_of(values)
    seams = np.cumsum(np.asarray(tree.levels[-1]))  # float32
    beside = [np.nextafter(seams, np.float32(side)) for side in (0, np.inf)]
    mass = np.concatenate([seams, *beside, seams * 1.001, [0, float(total(tree))]])
    found = seek(tree, jnp.asarray(mass, jnp.float32))
    assert np.all(np.asarray(look(tree, found)) > 0)
    place, probability = draw(tree, jax.random.PRNGKey(seed), 256)
    assert np.all(np.asarray(look(tree, place)) > 0) and np.all(np.asarray(probability) > 0)


PRIORITIES = {
    "equal": np.ones(600),
    "linear": np.arange(600.0),
    "skewed": np.arange(1, 601.0) ** -1.5,
    "one giant": np.where(np.arange(600) == 77, 1e5, 1.0),
    "mostly empty": np.where(np.arange(600) % 37 == 5, np.arange(600.0), 0),
}


@jax.jit
def many_draws(tree):
    keys = jax.random.split(jax.random.PRNGKey(3), 400)
    return jax.vmap(lambda key: sample(tree, key, 250))(keys)


@pytest.mark.parametrize("name", PRIORITIES)
def test_leaves_are_drawn_as_often_as_they_should_be(name):
    values = PRIORITIES[name]
    place, probability = jax.device_get(many_draws(tree_of(values)))
    exact = values / values.sum()
    np.testing.assert_allclose(probability, exact[place], rtol=1e-5)
    counts, expected = np.bincount(np.ravel(place), minlength=len(values)), exact * place.size
    assert not counts[values == 0].any()
    common = expected > 20
    # Slices make the counts more even than independent draws would be, never less.
    observed = [*counts[common], counts[~common].sum()]
    wanted = [*expected[common], expected[~common].sum()]
    if wanted[-1] < 20:
        assert abs(observed.pop() - wanted.pop()) < 30
    statistic = np.sum((np.array(observed) - wanted) ** 2 / np.array(wanted))
    assert scipy.stats.chi2.sf(statistic, len(wanted)) > 1e-3


def test_one_draw_from_each_slice():
    """100 equal leaves, 50 slices: each pair of leaves is drawn from exactly once."""
    place, _ = draw(tree_of([1] * 100), jax.random.PRNGKey(0), 50)
    np.testing.assert_array_equal(np.asarray(place) // 2, np.arange(50))
    assert len(set(np.asarray(place) % 2)) == 2
    assert draw(tree_of([1] * 100), jax.random.PRNGKey(0), 50)[0].tolist() == place.tolist()
    assert draw(tree_of([1] * 100), jax.random.PRNGKey(1), 50)[0].tolist() != place.tolist()


def test_small_leaves_behind_a_large_one_are_all_drawn():
    """Beyond 2^24 float32 counts in twos; eight leaves of ¼ lie between two such numbers."""
    values = np.full(2**16 + 8, 0.25, np.float32)
    values[:8] = 2.0**21
    tree = tree_of(values)
    keys = jax.random.split(jax.random.PRNGKey(0), 30)
    draws = jax.jit(lambda tree: jax.lax.map(lambda key: sample(tree, key, 2**15)[0], keys))
    place = np.ravel(draws(tree))
    counts = np.bincount(place[place >= 8] % 8, minlength=8)
    assert counts.sum() == pytest.approx(30 * 2**15 * 2**14 / (2**24 + 2**14), rel=0.1)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_seeds_have_trees_of_their_own():
    values = np.random.default_rng(0).uniform(0, 9, (3, 100)).astype(np.float32)
    singles = [tree_of(row) for row in values]
    trees = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *singles)
    places = np.array([[1, 1, 200], [5, 6, 7], [99, -1, 0]], np.int32)
    new = np.arange(9, dtype=np.float32).reshape(3, 3)
    keys = np.stack([jax.random.PRNGKey(seed) for seed in range(3)])

    @jax.jit
    @jax.vmap
    def write_and_draw(tree, places, new, key):
        tree = write(tree, places, new)
        return tree, *sample(tree, key, 16)

    trees, drawn, probability = jax.device_get(write_and_draw(trees, places, new, keys))
    for seed, single in enumerate(singles):
        single = put(single, jnp.asarray(places[seed]), jnp.asarray(new[seed]))
        for a, b in zip(trees.levels, single.levels, strict=True):
            np.testing.assert_allclose(a[seed], b, rtol=1e-6)
        place, chance = draw(single, jnp.asarray(keys[seed]), 16)
        np.testing.assert_array_equal(drawn[seed], place)
        np.testing.assert_allclose(probability[seed], chance, rtol=1e-6)


@pytest.mark.parametrize("leaves", [*SIZES, BIG])
def test_a_tree_takes_little_more_than_its_leaves(leaves):
    levels = jax.eval_shape(lambda: create(leaves)).levels
    allocated = sum(level.size * level.dtype.itemsize for level in levels)
    assert levels[-1].shape == (leaves,)
    if leaves == BIG:  # an eighth and an eighth of that and so on: a seventh on top
        assert allocated == pytest.approx(4 * leaves * 8 / 7, rel=1e-3)


def use(tree: SumTree, key, added: int) -> tuple[SumTree, jax.Array]:
    """What a learner does: new leaves, a draw, the drawn leaves anew; then new ones again."""
    one, two, three = jax.random.split(key, 3)
    fresh = jax.random.randint(one, (added,), 0, BIG)
    tree = write(tree, fresh, jnp.ones(added))
    place, probability = sample(tree, two, 256)
    tree = write(tree, place, jax.random.uniform(three, (256,)))
    return write(tree, fresh + 1, jnp.ones(added)), jnp.sum(1 / probability)


@pytest.mark.parametrize(
    "seeds, added, looped", [(0, 1, False), (0, 2, True), (2, 1, True), (2, 2, False)]
)
def test_a_donated_tree_is_updated_in_place(seeds, added, looped):
    """No instruction of the compiled program copies an array as large as one of the levels."""
    step, trees, keys = partial(use, added=added), empty(BIG), jax.random.PRNGKey(0)
    if seeds:
        # A copy: memory that NumPy shares cannot be donated.
        trees = jax.tree.map(lambda x: jnp.array(np.stack([x] * seeds)), trees)
        step, keys = jax.vmap(step), jax.random.split(keys, seeds)

    def program(trees, keys):
        if not looped:
            return step(trees, keys)
        return jax.lax.scan(lambda trees, _: step(trees, keys), trees, length=3)

    compiled = jax.jit(program, donate_argnums=0).lower(trees, keys).compile()
    lines = compiled.as_text().splitlines()
    large = [str(level.shape[-1]) for level in trees.levels if level.shape[-1] > 256]
    assert large == ["849", "6791", "54321"]
    for size in large:
        assert any(f"{size}]" in line.split(" = ")[-1] for line in lines)
        copies = [line for line in lines if f"{size}]" in line.split(" copy(")[0]]
        assert not [line for line in copies if " copy(" in line]
    before = [level.unsafe_buffer_pointer() for level in trees.levels]
    after, _ = compiled(trees, keys)
    assert before[-3:] == [level.unsafe_buffer_pointer() for level in after.levels][-3:]
