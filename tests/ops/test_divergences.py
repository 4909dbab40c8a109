"""Divergences against numerical integration and float64, down to the size that MPO bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from understudy.ops.densities import squashed_gaussian_log_prob
from understudy.ops.divergences import categorical_kl, gaussian_kl, gaussian_kls

kls = jax.jit(gaussian_kls)
whole_kl = jax.jit(gaussian_kl)
kl = jax.jit(categorical_kl)
means = arrays(np.float32, (4, 3), elements=st.floats(-2, 2, width=32))
stds = arrays(np.float32, (4, 3), elements=st.floats(2**-10, 2, width=32))
logit_rows = arrays(np.float32, (4, 5), elements=st.floats(-20, 20, width=32))


def integrated(mean_p, std_p, mean_q, std_q):
    p, q = scipy.stats.norm(mean_p, std_p), scipy.stats.norm(mean_q, std_q)
    low, high = mean_p - 12 * std_p, mean_p + 12 * std_p
    return scipy.integrate.quad(lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), low, high)[0]


@pytest.mark.parametrize(
    ("mean_p", "std_p", "mean_q", "std_q"),
    [(0.0, 1.0, 0.0, 1.0), (0.3, 0.5, -0.2, 0.8), (-1.0, 0.9, 1.0, 0.1), (0.5, 0.05, 0.6, 1.5)],
)
def test_gaussian_kls_are_the_integrals(mean_p, std_p, mean_q, std_q):
    rows = [jnp.full((1, 1), number) for number in (mean_p, std_p, mean_q, std_q)]
    kl_mean, kl_std = kls(*rows)
    want = integrated(mean_p, std_p, mean_q, std_p)
    assert float(kl_mean[0, 0]) == pytest.approx(want, rel=1e-4, abs=1e-7)
    want = integrated(mean_p, std_p, mean_p, std_q)
    assert float(kl_std[0, 0]) == pytest.approx(want, rel=1e-4, abs=1e-7)


@given(means, stds, means, stds)
def test_gaussian_kls_keep_their_digits(mean_p, std_p, mean_q, std_q):
    kl_mean, kl_std = kls(mean_p, std_p, mean_q, std_q)
    a, b, c, d = (array.astype(np.float64) for array in (mean_p, std_p, mean_q, std_q))
    np.testing.assert_allclose(kl_mean, ((a - c) / b) ** 2 / 2, rtol=1e-5, atol=1e-12)
    want = np.log(d / b) + b**2 / (2 * d**2) - 0.5
    np.testing.assert_allclose(kl_std, want, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize(
    ("mean_p", "std_p", "mean_q", "std_q"),
    [(0.0, 1.0, 0.0, 1.0), (0.3, 0.5, -0.2, 0.8), (-1.0, 0.9, 1.0, 0.4), (0.5, 0.1, 0.6, 1.5)],
)
def test_the_kl_of_gaussians_is_the_integral_also_after_tanh(mean_p, std_p, mean_q, std_q):
    """The integral after tanh is over actions, with the densities that losses use."""
    p, q = [[mean_p, np.log(std_p)], [mean_q, np.log(std_q)]]
    got = whole_kl(*(jnp.full((1, 1), number) for number in (*p, *q)))
    want = integrated(mean_p, std_p, mean_q, std_q)
    assert got.shape == (1,) and float(got[0]) == pytest.approx(want, rel=1e-4, abs=1e-7)
    middle = np.tanh(np.linspace(mean_p - 6 * std_p, mean_p + 6 * std_p, 4_001))
    action = jnp.asarray(middle[np.abs(middle) < 1 - 1e-4][:, None], jnp.float32)
    log_p, log_q = (
        np.asarray(squashed_gaussian_log_prob(action, *(jnp.full(action.shape, x) for x in both)))
        for both in (p, q)
    )
    squashed = np.trapezoid(np.exp(log_p) * (log_p - log_q), np.asarray(action)[:, 0])
    assert float(got[0]) == pytest.approx(squashed, rel=0.01, abs=1e-4)


@given(means, stds, means, stds)
def test_the_kl_of_gaussians_keeps_its_digits(mean_p, std_p, mean_q, std_q):
    got = whole_kl(mean_p, np.log(std_p), mean_q, np.log(std_q))
    a, b, c, d = (array.astype(np.float64) for array in (mean_p, std_p, mean_q, std_q))
    want = np.log(d / b) + (b**2 + (a - c) ** 2) / (2 * d**2) - 0.5
    np.testing.assert_allclose(got, want.sum(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("std", [1e-3, 0.3, 1.0])
@pytest.mark.parametrize("step", [1e-3, -1e-3, 3e-3])
def test_a_small_change_of_spread_is_seen_and_pulls_back(std, step):
    """MPO's usual bound is 1e-6, where a difference of logarithms is partly rounding."""

    def cost(std_q):
        ones = jnp.ones((1, 1))
        return gaussian_kls(0 * ones, std * ones, 0 * ones, std_q * ones)[1][0, 0]

    std_q = jnp.float32(std * (1 + step))
    value, slope = jax.value_and_grad(cost)(std_q)
    p, q = float(np.float32(std)), float(std_q)
    want = np.log(q / p) + (p / q) ** 2 / 2 - 0.5
    assert float(value) == pytest.approx(want, rel=2e-4)
    assert float(slope) == pytest.approx(1 / q - p**2 / q**3, rel=1e-4)


def test_gradients_at_equality_are_zero():
    def total(mean_p, std_p, mean_q, std_q):
        return sum(jnp.sum(part) for part in gaussian_kls(mean_p, std_p, mean_q, std_q))

    mean, std = jnp.array([[0.5, -1.0]]), jnp.array([[0.3, 1.0]])
    for gradient in jax.grad(total, (0, 1, 2, 3))(mean, std, mean, std):
        np.testing.assert_array_equal(gradient, 0.0)


@given(logit_rows, logit_rows)
def test_categorical_kl_matches_scipy(logits_p, logits_q):
    p = scipy.special.softmax(logits_p.astype(np.float64), axis=-1)
    q = scipy.special.softmax(logits_q.astype(np.float64), axis=-1)
    want = scipy.special.rel_entr(p, q).sum(axis=-1)
    np.testing.assert_allclose(kl(logits_p, logits_q), want, rtol=1e-4, atol=2e-5)


def test_categorical_kl_by_hand_and_in_its_direction():
    # p = (1/2, 1/2), q = (1/4, 3/4): ½ log 2 + ½ log ⅔ = ½ log 4/3; the other way is different
    p, q = jnp.log(jnp.array([[0.5, 0.5]])), jnp.log(jnp.array([[0.25, 0.75]])) + 3.0
    assert float(kl(p, q)[0]) == pytest.approx(0.5 * np.log(4 / 3), rel=1e-5)
    assert float(kl(q, p)[0]) == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5), rel=1e-5)


def test_choices_that_nobody_makes_leave_no_trace():
    p, q = jnp.array([[0.0, 1.0, -jnp.inf]]), jnp.array([[1.0, 0.0, -jnp.inf]])
    got, slopes = jax.value_and_grad(lambda p, q: categorical_kl(p, q)[0], (0, 1))(p, q)
    assert float(got) == pytest.approx(float(kl(p[:, :2], q[:, :2])[0]), rel=1e-6)
    assert all(np.all(np.isfinite(slope)) for slope in slopes)
    assert float(kl(jnp.zeros((1, 3)), q)[0]) == np.inf  # but p must not do what q never does
