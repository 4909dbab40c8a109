"""MPO's temperature against an optimizer that knows nothing of this library."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from understudy.ops.duals import improved_weights, temperature_dual

BATCH, SAMPLES = 16, 20
dual = jax.jit(temperature_dual)
slope = jax.jit(jax.grad(temperature_dual, argnums=1))
weights = jax.jit(improved_weights)


def problem(seed, scale=1.0, uniform=True):
    """Q-values, log-prior and importance weights; a prior of its own for discrete actions."""
    rng = np.random.default_rng(seed)
    q = scale * rng.normal(size=(BATCH, SAMPLES)) + 10.0 * rng.normal(size=(BATCH, 1))
    prior = np.full((BATCH, SAMPLES), 1 / SAMPLES)
    if not uniform:
        prior = rng.dirichlet(np.full(SAMPLES, 0.7), size=BATCH) + 1e-9
        prior /= prior.sum(axis=1, keepdims=True)
    return q, prior, rng.uniform(0.2, 1.8, size=BATCH)


def plain_dual(eta, q, epsilon, prior, weight):
    """Row by row, as the paper writes it; only each row's maximum is taken out of the exp."""
    total = 0.0
    for row in range(len(q)):
        top = q[row].max()
        inside = sum(p * np.exp((x - top) / eta) for p, x in zip(prior[row], q[row], strict=True))
        total += weight[row] * (np.log(inside) + top / eta)
    return eta * epsilon + eta * total / len(q)


def single(*parts):
    return tuple(jnp.asarray(part, jnp.float32) for part in parts)


def minimizer_by_gradient(q, epsilon, log_prior, weight):
    """The root of the slope, by bisection of log η: the dual is convex."""
    low, high = np.log(1e-3), np.log(1e3)
    for _ in range(40):
        middle = (low + high) / 2
        falling = float(slope(q, jnp.float32(np.exp(middle)), epsilon, log_prior, weight)) < 0
        low, high = (middle, high) if falling else (low, middle)
    return np.exp((low + high) / 2)


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize(("scale", "epsilon"), [(1.0, 0.1), (30.0, 0.01), (0.2, 0.5)])
def test_the_minimizer_is_scipys(scale, epsilon, uniform):
    q, prior, weight = problem(1, scale, uniform)
    weight /= weight.mean()  # at mean one a row's own level of q does not move η
    want = scipy.optimize.minimize_scalar(
        lambda log_eta: plain_dual(np.exp(log_eta), q, epsilon, prior, weight),
        bounds=(np.log(1e-3), np.log(1e3)),
        method="bounded",
        options={"xatol": 1e-8},
    )
    got = minimizer_by_gradient(*single(q, epsilon, np.log(prior), weight))
    assert got == pytest.approx(np.exp(want.x), rel=5e-3)


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("epsilon", [0.02, 0.1, 0.5])
def test_at_the_best_temperature_the_kl_is_the_bound(epsilon, uniform):
    q, prior, _ = problem(2, 3.0, uniform)
    q32, log_prior, ones = single(q, np.log(prior), np.ones(BATCH))
    eta = minimizer_by_gradient(q32, jnp.float32(epsilon), log_prior, ones)
    improved = np.asarray(weights(q32, jnp.float32(eta), log_prior), np.float64)
    kl = (improved * np.log(improved / prior)).sum(axis=1).mean()
    assert kl == pytest.approx(epsilon, rel=2e-2)
    assert (improved * q).sum() > (prior * q).sum()


def test_it_cannot_be_improved_within_the_bound():
    """The primal problem itself, solved for one state over the simplex by SLSQP."""
    rng = np.random.default_rng(3)
    q, prior, epsilon = rng.normal(size=5), rng.dirichlet(np.ones(5)), 0.1
    best = scipy.optimize.minimize(
        lambda p: -p @ q,
        prior,
        method="SLSQP",
        bounds=[(1e-9, 1.0)] * 5,
        constraints=[
            {"type": "eq", "fun": lambda p: p.sum() - 1},
            {"type": "ineq", "fun": lambda p: epsilon - (p * np.log(p / prior)).sum()},
        ],
        options={"ftol": 1e-12, "maxiter": 200},
    )
    assert best.success
    q32, log_prior, ones = single(q[None], np.log(prior)[None], np.ones(1))
    eta = minimizer_by_gradient(q32, jnp.float32(epsilon), log_prior, ones)
    improved = weights(q32, jnp.float32(eta), log_prior)[0]
    np.testing.assert_allclose(improved, best.x, atol=2e-3)


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("eta", [0.05, 1.0, 40.0])
def test_the_dual_is_the_plain_one(eta, uniform):
    q, prior, weight = problem(4, 2.0, uniform)
    got = dual(*single(q, eta, 0.3, np.log(prior), weight))
    assert float(got) == pytest.approx(plain_dual(eta, q, 0.3, prior, weight), rel=1e-4, abs=1e-4)


def test_the_prior_is_kept():
    """Where Q has no opinion, nothing is improved: a plain softmax of q/η would be uniform."""
    prior = np.array([[0.7, 0.2, 0.1]])
    got = weights(*single(np.zeros((1, 3)), 0.5, np.log(prior)))
    np.testing.assert_allclose(got, prior, rtol=1e-5)


def test_worked_by_hand():
    # η = 2, two actions of prior (¾, ¼), q = (0, 2·log 3): Σ = ¾ + ¼·3 = 1.5, halves of it each
    q, prior = np.array([[0.0, 2 * np.log(3.0)]]), np.array([[0.75, 0.25]])
    q32, eta, log_prior, ones = single(q, 2.0, np.log(prior), np.ones(1))
    np.testing.assert_allclose(weights(q32, eta, log_prior), [[0.5, 0.5]], rtol=1e-6)
    got = float(dual(q32, eta, jnp.float32(0.1), log_prior, ones))
    assert got == pytest.approx(0.2 + 2 * np.log(1.5), rel=1e-6)


@given(
    q=arrays(np.float32, (3, 4), elements=st.floats(-1e4, 1e4, width=32)),
    eta=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_finite_for_large_values_and_cold_temperatures(q, eta):
    parts = single(q, eta, 0.1, np.full((3, 4), -np.log(4)), np.ones(3))
    assert np.isfinite(dual(*parts)) and np.isfinite(slope(*parts))
    got = np.asarray(weights(parts[0], parts[1], parts[3]))
    np.testing.assert_allclose(got.sum(axis=1), 1.0, rtol=1e-5)
    assert np.all(got[np.arange(3), q.argmax(axis=1)] == got.max(axis=1))
