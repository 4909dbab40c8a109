"""Running moments against NumPy's, in float64, over everything that was taken in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.networks.normalizer import (
    MAX_COUNT,
    Statistics,
    initial_statistics,
    normalize,
    update_statistics,
)

# All chunks are padded to one length with invalid rows, so that one program serves them all.
LONGEST = 16
take = jax.jit(update_statistics)


def everything_valid(rows):
    return jnp.ones(len(rows), bool)


def padded(rows, seed):
    """Rows spread over a chunk, the holes filled with what must leave no trace."""
    rng = np.random.default_rng(seed)
    chunk = rng.choice([np.nan, np.inf, 1e30, -7.0], size=(LONGEST, *rows.shape[1:]))
    valid = np.zeros(LONGEST, bool)
    valid[rng.choice(LONGEST, len(rows), replace=False)] = True
    chunk[valid] = rows
    return jnp.asarray(chunk, jnp.float32), jnp.asarray(valid)


@given(
    sizes=st.lists(st.integers(0, LONGEST), min_size=1, max_size=12),
    offset=st.sampled_from([0.0, 1.0, -300.0, 1e4, -1e5]),
    scale=st.sampled_from([1e-2, 1.0, 50.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_moments_are_numpys_over_the_concatenation(sizes, offset, scale, seed):
    rng = np.random.default_rng(seed)
    # what is compared is what float32 can hold of the data
    chunks = [(offset + scale * rng.normal(size=(n, 2, 3))).astype(np.float32) for n in sizes]
    statistics = initial_statistics((2, 3))
    for place, chunk in enumerate(chunks):
        statistics = take(statistics, *padded(chunk, seed + place))
    seen = np.concatenate(chunks).astype(np.float64)
    assert int(statistics.count) == len(seen)
    if not len(seen):
        np.testing.assert_array_equal(statistics.mean, np.zeros((2, 3)))
        np.testing.assert_array_equal(statistics.variance, np.ones((2, 3)))
        return
    mean, variance = seen.mean(0), seen.var(0)
    # the mean is rounded once (half a unit in its last place); nothing else may know the offset
    np.testing.assert_allclose(statistics.mean, mean, rtol=6e-8, atol=1e-6 * scale)
    exact = np.asarray(statistics.mean, np.float64) + np.asarray(statistics.compensation)
    np.testing.assert_allclose(exact, mean, rtol=1e-12, atol=1e-6 * scale)
    np.testing.assert_allclose(statistics.variance, variance, rtol=1e-5, atol=1e-6 * scale**2)


@given(cuts=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 2**32 - 1))
def test_how_rows_are_cut_into_chunks_does_not_matter(cuts, seed):
    rows = np.random.default_rng(seed).normal(3.0, 2.0, size=(40, 1))
    statistics = initial_statistics((1,))
    for chunk in np.split(rows, sorted(cuts)):
        for part in np.split(chunk, range(LONGEST, len(chunk), LONGEST)):
            statistics = take(statistics, *padded(part, seed))
    at_once = update_statistics(
        initial_statistics((1,)), jnp.asarray(rows, jnp.float32), everything_valid(rows)
    )
    assert int(statistics.count) == int(at_once.count) == 40
    np.testing.assert_allclose(statistics.mean, at_once.mean, rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, at_once.variance, rtol=1e-4)


def test_worked_by_hand():
    """1, 3 and then 8: mean 4, variance (9 + 1 + 16)/3. The row between them is no row."""
    rows, valid = jnp.array([1.0, 99.0, 3.0]), jnp.array([True, False, True])
    statistics = update_statistics(initial_statistics(()), rows, valid)
    assert (int(statistics.count), float(statistics.mean), float(statistics.variance)) == (
        2,
        2.0,
        1.0,
    )
    statistics = update_statistics(statistics, jnp.array([8.0]), jnp.array([True]))
    assert int(statistics.count) == 3
    assert float(statistics.mean) == pytest.approx(4.0, rel=1e-6)
    assert float(statistics.variance) == pytest.approx(26 / 3, rel=1e-6)


@pytest.mark.parametrize("rows", [0, 3])
def test_no_valid_rows_change_nothing(rows):
    data = jnp.asarray(np.random.default_rng(0).normal(5.0, size=(7, 2)), jnp.float32)
    some = update_statistics(initial_statistics((2,)), data, everything_valid(data))
    huge = some._replace(mean=jnp.full(2, 1e25))  # whose square is no float32
    for statistics in (initial_statistics((2,)), some, huge):
        after = update_statistics(statistics, jnp.full((rows, 2), jnp.nan), jnp.zeros(rows, bool))
        for new, old in zip(after, statistics, strict=True):
            np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
def test_one_row_at_a_time_does_not_get_stuck(offset):
    """The trap: after many rows the next one moves a float32 mean by less than its last digit.
    With an offset of 1e4 and without the rest that is kept, the mean ends half a standard
    deviation from where this drift leads."""
    rng = np.random.default_rng(0)
    data = (offset + rng.normal(size=100_000) + np.linspace(0.0, 2.0, 100_000)).astype(np.float32)

    def step(statistics, row):
        return update_statistics(statistics, row[None], jnp.ones(1, bool)), None

    statistics, _ = jax.jit(lambda data: jax.lax.scan(step, initial_statistics(()), data))(data)
    seen = data.astype(np.float64)
    assert int(statistics.count) == 100_000
    assert np.float64(statistics.mean) == pytest.approx(seen.mean(), abs=1e-4 + 1.2e-7 * offset)
    assert float(statistics.variance) == pytest.approx(seen.var(), rel=2e-3)


def test_the_count_stops_before_it_overflows():
    many = Statistics(jnp.int32(MAX_COUNT - 1), jnp.zeros(()), jnp.ones(()), jnp.zeros(()))
    for _ in range(3):
        many = update_statistics(many, jnp.ones(4), jnp.ones(4, bool))
        assert int(many.count) == MAX_COUNT
        assert np.isfinite(many.mean) and float(many.variance) == pytest.approx(1.0, rel=1e-5)


def test_normalize_is_its_formula():
    rng = np.random.default_rng(0)
    rows = rng.normal([-3.0, 100.0], [0.1, 20.0], size=(500, 2))
    statistics = update_statistics(
        initial_statistics((2,)), jnp.asarray(rows, jnp.float32), everything_valid(rows)
    )
    got = np.asarray(normalize(statistics, jnp.asarray(rows, jnp.float32)))
    want = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-8)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got.mean(0), [0.0, 0.0], atol=1e-4)
    np.testing.assert_allclose(got.std(0), [1.0, 1.0], rtol=1e-4)
    shaped = jnp.asarray(rows.reshape(5, 50, 2, 2), jnp.float32)  # any leading axes
    np.testing.assert_allclose(normalize(statistics, shaped).reshape(500, 2), got, rtol=1e-5)


def test_normalize_clips():
    statistics = Statistics(jnp.int32(5), jnp.float32(1.0), jnp.float32(4.0), jnp.float32(0.0))
    x = jnp.array([-1e9, -19.0, -3.0, 1.0, 21.0, 22.0, jnp.inf])
    np.testing.assert_allclose(normalize(statistics, x), [-10, -10, -2, 0, 10, 10, 10])
    np.testing.assert_allclose(normalize(statistics, x, clip=1), [-1, -1, -1, 0, 1, 1, 1])


def test_before_any_row_only_the_clip_is_felt():
    x = jnp.array([[-20.0, 0.25], [3.0, 11.0]])
    np.testing.assert_allclose(normalize(initial_statistics((2,)), x), [[-10, 0.25], [3, 10]])


def test_a_constant_entry_stays_finite_and_zero():
    rows = jnp.full((100, 1), 1000.1)
    statistics = initial_statistics((1,))
    for chunk in (rows[:33], rows[33:40], rows[40:]):
        statistics = update_statistics(statistics, chunk, everything_valid(chunk))
    np.testing.assert_array_equal(statistics.variance, [0.0])
    np.testing.assert_array_equal(normalize(statistics, rows), np.zeros((100, 1)))


def test_bytes_are_numbers_too():
    rows = jnp.array([[0, 255], [255, 255]], jnp.uint8)
    statistics = update_statistics(initial_statistics((2,)), rows, jnp.ones(2, bool))
    np.testing.assert_allclose(statistics.mean, [127.5, 255.0])
    np.testing.assert_allclose(statistics.variance, [127.5**2, 0.0])
    np.testing.assert_allclose(normalize(statistics, rows), [[-1.0, 0.0], [1.0, 0.0]], rtol=1e-6)


def test_statistics_belong_to_a_donated_state_of_many_members():
    leaves = jax.tree.leaves(initial_statistics((2,)))
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    members = jax.vmap(lambda _: initial_statistics((2,)))(jnp.arange(3))
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8, 2)), jnp.float32)
    valid = jnp.array([[True] * 8, [False] * 8, [True] * 4 + [False] * 4])
    lifted = jax.vmap(update_statistics)(members, rows, valid)
    np.testing.assert_array_equal(lifted.count, [8, 0, 4])
    np.testing.assert_allclose(lifted.mean[2], np.mean(rows[2, :4], 0), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(lifted.variance[1], [1.0, 1.0])
    donating = jax.jit(update_statistics, donate_argnums=0)
    assert int(donating(initial_statistics((2,)), rows[0], valid[0]).count) == 8
