"""n-step sums against a loop that a reader can check by eye."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.math.returns import n_step

summed = jax.jit(n_step)
ROWS = 6


def by_loop(reward, terminated, last, present, gamma):
    """One row, one step at a time."""
    total, taken, ended = 0.0, 0, False
    for k in range(len(reward)):
        if not present[k]:
            break
        total += gamma**k * reward[k]
        taken += 1
        ended = terminated[k]
        if last[k]:
            break
    return total, 0.0 if ended else gamma**taken, taken - 1


@st.composite
def windows(draw):
    n = draw(st.sampled_from([1, 2, 5]))
    # what ends an episode: nothing, termination, truncation (last without terminated)
    ends = draw(st.lists(st.sampled_from("--tT"), min_size=ROWS * n, max_size=ROWS * n))
    ends = np.array(ends).reshape(ROWS, n)
    present = (
        np.arange(n) < np.array(draw(st.lists(st.integers(1, n), min_size=6, max_size=6)))[:, None]
    )
    rewards = st.lists(st.floats(-10, 10, width=32), min_size=ROWS * n, max_size=ROWS * n)
    reward = np.array(draw(rewards), np.float32).reshape(ROWS, n)
    return reward, ends == "T", ends != "-", present, np.float32(draw(st.floats(0, 1, width=32)))


@given(windows())
def test_n_step_is_the_loop(window):
    gamma = float(window[-1])
    total, discount, offset = summed(*window)
    want = [by_loop(*(array[row] for array in window[:4]), gamma) for row in range(ROWS)]
    np.testing.assert_allclose(total, [w[0] for w in want], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(discount, [w[1] for w in want], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(offset, [w[2] for w in want])


@given(windows())
def test_what_lies_behind_the_end_does_not_matter(window):
    """Garbage (also NaN) behind an episode's end or the data's end leaves no trace."""
    reward, terminated, last, present, gamma = window
    clean = summed(*window)
    offset = np.asarray(clean[2])
    behind = np.arange(reward.shape[1]) > offset[:, None]
    reward = np.where(behind, np.nan, reward).astype(np.float32)
    dirty = summed(reward, terminated | behind, last ^ behind, present, gamma)
    for got, want in zip(dirty, clean, strict=True):
        np.testing.assert_array_equal(got, want)


def test_worked_by_hand():
    # rewards 1, 2, 4 with γ = ½: 1 + 1 + 1 = 3; with an end after two steps: 2
    reward = jnp.array([[1.0, 2.0, 4.0]] * 5)
    last = jnp.array([[0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], bool)
    terminated = jnp.array([[0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]], bool)
    present = jnp.array([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 0]], bool)
    total, discount, offset = summed(reward, terminated, last, present, jnp.float32(0.5))
    np.testing.assert_allclose(total, [3.0, 2.0, 2.0, 1.0, 1.0])
    np.testing.assert_allclose(discount, [0.125, 0.0, 0.25, 0.0, 0.5])
    np.testing.assert_array_equal(offset, [2, 1, 1, 0, 0])


@pytest.mark.parametrize("gamma, total, discount", [(0.0, 1.0, 0.0), (1.0, 7.0, 1.0)])
def test_extreme_discounts(gamma, total, discount):
    flags = jnp.zeros((1, 3), bool)
    got = summed(jnp.array([[1.0, 2.0, 4.0]]), flags, flags, ~flags, jnp.float32(gamma))
    assert (float(got[0][0]), float(got[1][0])) == (total, discount)
