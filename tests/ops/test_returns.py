"""n-step sums and advantages against loops that a reader can check by eye."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.ops.returns import gae, n_step

summed = jax.jit(n_step)
advantages = jax.jit(gae)
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


def advantages_by_loop(reward, discount, last, value, next_value, trace_decay):
    """The sum of definition, Σ_k (γλ)ᵏ δ_{t+k} up to the episode's end: no recursion."""
    time, envs = reward.shape
    result = np.zeros((time, envs))
    for env in range(envs):
        for t in range(time):
            for k in range(t, time):
                delta = reward[k, env] + discount[k, env] * next_value[k, env] - value[k, env]
                result[t, env] += trace_decay ** (k - t) * delta
                if last[k, env]:
                    break
    return result


@st.composite
def rollouts(draw):
    time, envs = draw(st.sampled_from([(1, 1), (2, 3), (7, 2)]))
    size = time * envs

    def numbers():
        listed = st.lists(st.floats(-10, 10, width=32), min_size=size, max_size=size)
        return np.array(draw(listed), np.float32).reshape(time, envs)

    ends = draw(st.lists(st.sampled_from("---tT"), min_size=size, max_size=size))
    ends = np.array(ends).reshape(time, envs)
    gamma = np.float32(draw(st.floats(0, 1, width=32)))
    trace = np.float32(draw(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1, width=32))))
    discount = np.where(ends == "T", 0.0, gamma).astype(np.float32)
    return numbers(), discount, ends != "-", numbers(), numbers(), gamma * trace


@given(rollouts())
def test_gae_is_the_sum_of_its_definition(rollout):
    wide = [np.asarray(part, np.float64) for part in rollout]
    want = advantages_by_loop(*wide)
    np.testing.assert_allclose(advantages(*rollout), want, rtol=1e-4, atol=1e-4)


@given(rollouts())
def test_nothing_crosses_the_end_of_an_episode(rollout):
    """Spoil everything after each environment's first end: what came before does not change."""
    reward, discount, last, value, next_value, trace_decay = rollout
    behind = np.cumsum(last, axis=0) - last > 0
    spoilt = np.where(behind, np.nan, reward).astype(np.float32)
    clean = np.asarray(advantages(*rollout))
    dirty = np.asarray(advantages(spoilt, discount, last, value, next_value, trace_decay))
    np.testing.assert_array_equal(dirty[~behind], clean[~behind])


def test_gae_worked_by_hand():
    # γ = ½, λ = ½, V = 1 and V' = 2 throughout, rewards 1, 1, 1: δ = 1 + ½·2 - 1 = 1, and 0
    # where the task terminates. The environments differ in what happens at the middle step:
    # nothing, truncation, termination.
    ones = jnp.ones((3, 3))
    last = jnp.zeros((3, 3), bool).at[1, 1:].set(True)
    discount = (0.5 * ones).at[1, 2].set(0.0)
    got = advantages(ones, discount, last, ones, 2 * ones, jnp.float32(0.25))
    np.testing.assert_allclose(got[:, 0], [1 + 0.25 * 1.25, 1.25, 1.0])
    np.testing.assert_allclose(got[:, 1], [1.25, 1.0, 1.0])
    np.testing.assert_allclose(got[:, 2], [1.0, 0.0, 1.0])


def test_lambda_zero_is_the_temporal_difference_and_one_the_return():
    rng = np.random.default_rng(0)
    reward, value = (jnp.asarray(rng.normal(size=(5, 2)), jnp.float32) for _ in range(2))
    tail = jnp.asarray(rng.normal(size=(1, 2)), jnp.float32)
    next_value = jnp.concatenate([value[1:], tail])
    never = jnp.zeros((5, 2), bool)
    discount = jnp.full((5, 2), 0.9)
    short = advantages(reward, discount, never, value, next_value, jnp.float32(0.0))
    np.testing.assert_allclose(short, reward + 0.9 * next_value - value, atol=1e-6)
    full = advantages(reward, discount, never, value, next_value, jnp.float32(0.9))
    for t in range(5):
        powers = 0.9 ** np.arange(5 - t)
        discounted = powers @ np.asarray(reward[t:]) + 0.9 ** (5 - t) * tail[0]
        np.testing.assert_allclose(full[t], discounted - value[t], atol=1e-5)
