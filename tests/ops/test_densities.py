"""Squashed densities against integration, scipy and float64; noise that belongs to its row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from understudy.ops.densities import (
    gaussian_log_prob,
    log_tanh_slope,
    row_normals,
    squashed_gaussian_log_prob,
    squashed_gaussian_sample,
)

log_prob = jax.jit(squashed_gaussian_log_prob)
sample = jax.jit(squashed_gaussian_sample)
slope = jax.jit(log_tanh_slope)
normals = jax.jit(row_normals, static_argnums=2)

vectors = arrays(np.float32, (4, 3), elements=st.floats(-2, 2, width=32))


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (0.7, -1.0), (-0.4, -0.3), (0.1, -2.5)])
def test_squashed_density_integrates_to_one(mean, log_std):
    # 20,000 midpoints of (-1, 1): a missing or inverted tanh correction is off by a factor.
    edges = np.linspace(-1.0, 1.0, 20_001)
    points = jnp.asarray((edges[1:] + edges[:-1])[:, None] / 2, jnp.float32)
    ones = jnp.ones_like(points)
    density = np.exp(np.asarray(log_prob(points, mean * ones, log_std * ones), np.float64))
    assert np.sum(density) * (edges[1] - edges[0]) == pytest.approx(1.0, abs=2e-3)


def test_squashed_density_in_two_dimensions_is_the_product():
    nodes, weights = np.polynomial.legendre.leggauss(80)
    grid = jnp.asarray(np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2), jnp.float32)
    mean = jnp.broadcast_to(jnp.array([0.3, -0.2]), grid.shape)
    log_std = jnp.broadcast_to(jnp.array([-0.8, -1.2]), grid.shape)
    density = np.exp(np.asarray(log_prob(grid, mean, log_std), np.float64))
    assert density @ np.outer(weights, weights).ravel() == pytest.approx(1.0, abs=1e-3)


@given(vectors, vectors, arrays(np.float32, (4, 3), elements=st.floats(-3, 3, width=32)))
def test_sample_matches_scipy_and_the_change_of_variables(mean, log_std, noise):
    action, got = sample(mean, log_std, noise)
    wide = np.float64
    u = mean.astype(wide) + np.exp(log_std.astype(wide)) * noise.astype(wide)
    normal = scipy.stats.norm.logpdf(u, mean.astype(wide), np.exp(log_std.astype(wide)))
    # log|da/du| = log(1 - tanh²u) = 2·log sech u, the latter stable in float64 to |u| = 300
    want = np.sum(normal + 2 * np.logaddexp(u, -u) - 2 * np.log(2), axis=-1)
    np.testing.assert_allclose(action, np.tanh(u), atol=1e-5)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@given(vectors, vectors, vectors)
def test_log_prob_of_an_action_matches_scipy(mean, log_std, u):
    u = np.clip(u, -1.9, 1.9)
    log_std = np.maximum(log_std, -1.5)  # atanh in float32 loses digits that a narrow σ magnifies
    action = np.tanh(u.astype(np.float64))
    normal = scipy.stats.norm.logpdf(np.arctanh(action), mean, np.exp(log_std.astype(np.float64)))
    want = np.sum(normal - np.log1p(-(action**2)), axis=-1)
    got = log_prob(jnp.asarray(action, jnp.float32), mean, log_std)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


@given(vectors, arrays(np.float32, (4, 3), elements=st.floats(-1, 2, width=32)), vectors)
def test_sample_and_log_prob_agree(mean, log_std, noise):
    mean, noise = mean / 2, noise / 4
    action, drawn = sample(mean, log_std, noise)
    np.testing.assert_allclose(log_prob(action, mean, log_std), drawn, rtol=5e-2, atol=5e-2)


@pytest.mark.fault(22, "log-probabilities are finite at the bounds")
@given(
    mean=arrays(np.float32, (4, 3), elements=st.floats(-1e3, 1e3, width=32)),
    log_std=arrays(np.float32, (4, 3), elements=st.floats(-20, 2, width=32)),
    action=arrays(np.float32, (4, 3), elements=st.sampled_from([-1.0, 1.0, 0.0, 0.9999999])),
    noise=arrays(np.float32, (4, 3), elements=st.floats(-6, 6, width=32)),
)
def test_finite_on_the_bounds_and_for_large_values(mean, log_std, action, noise):
    assert np.all(np.isfinite(log_prob(action, mean, log_std)))
    squashed, drawn = sample(mean, log_std, noise)
    assert np.all(np.isfinite(drawn)) and np.all(np.abs(squashed) <= 1.0)


def test_gradients_are_finite_on_the_bounds():
    def total(action, mean, log_std):
        return jnp.sum(squashed_gaussian_log_prob(action, mean, log_std))

    action = jnp.array([[1.0, -1.0, 0.0]])
    gradients = jax.grad(total, (1, 2))(action, jnp.zeros((1, 3)), jnp.full((1, 3), -3.0))
    assert all(np.all(np.isfinite(g)) for g in gradients)
    steep = jax.grad(lambda u: jnp.sum(log_tanh_slope(u)))(jnp.array([-1e4, -50.0, 50.0, 1e4]))
    np.testing.assert_allclose(steep, [2.0, 2.0, -2.0, -2.0], rtol=1e-6)


@given(arrays(np.float32, 16, elements=st.floats(-15, 15, width=32)))
def test_log_tanh_slope_is_log_one_minus_tanh_squared(u):
    wide = u.astype(np.float64)
    np.testing.assert_allclose(slope(u), np.log(1 - np.tanh(wide) ** 2), rtol=1e-5, atol=2e-6)


@given(arrays(np.float32, 16, elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_log_tanh_slope_survives_any_size(u):
    wide = np.abs(u.astype(np.float64))
    want = 2 * (np.log(2) - wide - np.log1p(np.exp(-2 * wide)))
    np.testing.assert_allclose(slope(u), want, rtol=1e-5, atol=2e-6)


def test_gaussian_log_prob_is_scipys():
    rng = np.random.default_rng(0)
    value, mean, log_std = rng.normal(size=(3, 5, 2))
    want = scipy.stats.norm.logpdf(value, mean, np.exp(log_std)).sum(-1)
    narrow = [jnp.asarray(x, jnp.float32) for x in (value, mean, log_std)]
    np.testing.assert_allclose(gaussian_log_prob(*narrow), want, rtol=1e-4)


def test_a_shard_draws_its_rows_of_the_whole():
    key = jax.random.PRNGKey(3)
    row = jnp.arange(24, dtype=jnp.int32)
    whole = np.asarray(normals(key, row, 2))
    for start in (0, 8, 16):
        np.testing.assert_array_equal(normals(key, row[start : start + 8], 2), whole[start:][:8])
    shuffled = np.random.default_rng(0).permutation(24)
    np.testing.assert_array_equal(normals(key, row[shuffled], 2), whole[shuffled])


def test_row_normals_are_standard_and_keys_differ():
    row = jnp.arange(4096, dtype=jnp.int32)
    one, two = (np.asarray(normals(jax.random.PRNGKey(seed), row, 3)) for seed in (0, 1))
    for column in one.T:
        assert scipy.stats.kstest(column, "norm").pvalue > 1e-3
    assert one.mean() == pytest.approx(0.0, abs=0.04)
    assert one.std() == pytest.approx(1.0, abs=0.03)
    # neither rows, columns nor keys repeat one another
    assert len(np.unique(one)) > 0.99 * one.size
    for other in (two, np.roll(one, 1, axis=0), np.roll(one, 1, axis=1)):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.05
