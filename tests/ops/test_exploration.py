"""Noise that lingers has the promised law at every step; ε-greedy the promised frequencies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from understudy.ops.exploration import (
    epsilon_greedy,
    initial_noise,
    next_normals,
    ornstein_uhlenbeck,
)

ENVS, STEPS = 20_000, 25
step = jax.jit(ornstein_uhlenbeck)
choose = jax.jit(epsilon_greedy, static_argnums=1)


def path(theta, sigma, restarts=()):
    """[steps, envs, 2] from a first step on, with later restarts of the even environments."""
    rng = np.random.default_rng(0)
    noise, taken = jnp.full((ENVS, 2), jnp.nan), []  # before the first step there is nothing
    for t in range(STEPS):
        even = np.arange(ENVS) % 2 == 0
        first = np.full(ENVS, True) if t == 0 else even & (t in restarts)
        normals = jnp.asarray(rng.normal(size=(ENVS, 2)), jnp.float32)
        noise = step(noise, jnp.asarray(first), normals, jnp.float32(theta), jnp.float32(sigma))
        taken.append(np.asarray(noise))
    return np.stack(taken)


@pytest.mark.parametrize(("theta", "sigma"), [(0.15, 0.2), (0.5, 1.0), (1.0, 0.3)])
def test_mean_variance_and_correlation_at_every_step(theta, sigma):
    noise = path(theta, sigma)
    # The mean of 20,000 values has a standard error of 0.007 σ, their spread one of 0.005 σ.
    np.testing.assert_allclose(noise.mean(axis=1), 0.0, atol=0.03 * sigma)
    np.testing.assert_allclose(noise.std(axis=1), sigma, rtol=0.025)
    for lag in (1, 2, 5):
        together = (noise[lag:] * noise[:-lag]).mean() / sigma**2
        assert together == pytest.approx((1 - theta) ** lag, abs=0.01)
    across = (noise[..., 0] * noise[..., 1]).mean() / sigma**2
    assert abs(across) < 0.01  # dimensions are independent


def test_an_episodes_first_noise_knows_nothing_of_the_last():
    restart = 10
    noise = path(0.1, 1.0, restarts=(restart,))[:, :, 0]
    before, after = noise[restart - 1], noise[restart]
    assert abs(np.corrcoef(before[::2], after[::2])[0, 1]) < 0.04
    assert np.corrcoef(before[1::2], after[1::2])[0, 1] == pytest.approx(0.9, abs=0.02)
    assert after[::2].std() == pytest.approx(1.0, rel=0.03)


def test_worked_by_hand():
    # θ = 0.2: 0.8·x + 0.6·σ·ε, since 1 - 0.8² = 0.6²; a first row is σ·ε, whatever came before
    previous = jnp.array([[1.0, -2.0], [jnp.nan, 5.0]])
    normals = jnp.array([[1.0, 0.5], [1.0, -1.0]])
    got = step(previous, jnp.array([False, True]), normals, 0.2, 0.5)
    np.testing.assert_allclose(got, [[0.8 + 0.3, -1.6 + 0.15], [0.5, -0.5]], rtol=1e-6)


@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_greedy_frequencies(epsilon):
    rows = 100_000
    greedy = jnp.full(rows, 2, jnp.int32)
    chosen = choose(greedy, 4, jnp.float32(epsilon), jax.random.PRNGKey(0))
    assert chosen.dtype == jnp.int32
    shares = np.full(4, epsilon / 4)
    shares[2] += 1 - epsilon
    counted = np.bincount(chosen, minlength=4)
    assert scipy.stats.chisquare(counted, shares * rows).pvalue > 1e-3


def test_rows_explore_each_for_itself():
    greedy = jnp.zeros(100_000, jnp.int32)
    strayed = np.asarray(choose(greedy, 3, 0.6, jax.random.PRNGKey(1))) != 0  # 0.6·⅔ of them
    pairs = np.bincount(2 * strayed[:-1] + strayed[1:], minlength=4)
    want = np.outer([0.6, 0.4], [0.6, 0.4]).ravel() * pairs.sum()
    assert scipy.stats.chisquare(pairs, want).pvalue > 1e-3
    again = np.asarray(choose(greedy, 3, 0.6, jax.random.PRNGKey(2))) != 0
    assert np.mean(strayed == again) == pytest.approx(0.52, abs=0.01)  # 0.4² + 0.6²


def test_never_and_always():
    greedy = jnp.asarray(np.arange(30_000) % 3, jnp.int32)
    key = jax.random.PRNGKey(0)
    np.testing.assert_array_equal(choose(greedy, 3, 0.0, key), greedy)
    chosen = np.asarray(choose(greedy, 3, 1.0, key))
    assert np.mean(chosen == greedy) == pytest.approx(1 / 3, abs=0.02)
    for mine in range(3):  # whatever was greedy, all choices are equally likely
        counted = np.bincount(chosen[np.asarray(greedy) == mine], minlength=3)
        assert scipy.stats.chisquare(counted).pvalue > 1e-3


def held_path(longest, steps, envs=10_000, begins=()):
    """Held normals [steps, envs, 2]; all episodes begin at step 0 and at those of `begins`."""

    def take(held, now):
        first, key = now
        normals, held = next_normals(held, first, key, (envs, 2), longest)
        return held, normals

    first = np.zeros((steps, envs), bool)
    first[[0, *begins]] = True
    keys = jax.random.split(jax.random.PRNGKey(0), steps)
    walk = jax.jit(lambda *given: jax.lax.scan(take, initial_noise(envs, 2), given)[1])
    return np.asarray(walk(jnp.asarray(first), keys))


def test_noise_is_held_for_steps_of_a_truncated_zeta_distribution():
    longest = 4
    noise = held_path(longest, longest + 2)
    same = (noise[1:] == noise[:-1]).all(axis=-1)
    held = 1 + np.argmin(same, axis=0)  # steps of the first noise
    weights = np.array([1, 1 / 4, 1 / 9, 1 / 16])
    counted = np.bincount(held, minlength=longest + 1)[1:]
    assert scipy.stats.chisquare(counted, weights / weights.sum() * counted.sum()).pvalue > 1e-3
    assert not same.all(axis=0).any()
    for row in noise:  # standard normal at every step
        assert scipy.stats.kstest(row.ravel(), "norm").pvalue > 1e-3


def test_held_noise_starts_anew_with_an_episode():
    noise = held_path(16, 4, begins=(2,))
    assert not (noise[2] == noise[1]).any()
    assert (noise[1] == noise[0]).any() and (noise[3] == noise[2]).any()


def test_noise_that_is_not_held_is_drawn_from_the_key_alone():
    key, first = jax.random.PRNGKey(3), jnp.zeros(5, bool)
    normals, held = next_normals((), first, key, (5, 2), 1)
    np.testing.assert_array_equal(normals, jax.random.normal(key, (5, 2)))
    assert held == ()
