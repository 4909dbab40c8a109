"""Distributions of returns against loops in float64, numerical integration and numbers by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad
from scipy.stats import norm

from understudy.ops.return_distributions import Atoms, Quantiles, Returns, expected, huber
from understudy.ops.targets import bootstrapped, mean_target

FIVE = Atoms(-2.0, 2.0, 5)  # at −2, −1, 0, 1, 2
values = arrays(np.float32, (3, 4), elements=st.floats(-5, 5, width=32))
chances = arrays(np.float32, (3, 4), elements=st.floats(0.125, 1, width=32))


def project(atoms, target):
    return np.asarray(jax.jit(atoms.project)(target), np.float64)


def projected_by_loops(target, atoms):
    """C51's algorithm 1: each value gives its probability to the atoms below and above it."""
    value, probability = (np.asarray(x, np.float64) for x in target)
    distance = (atoms.high - atoms.low) / (atoms.size - 1)
    result = np.zeros((len(value), atoms.size))
    for row in range(len(value)):
        for v, p in zip(value[row], probability[row], strict=True):
            place = (min(max(v, atoms.low), atoms.high) - atoms.low) / distance
            below, above = math.floor(place), math.ceil(place)
            if below == above:
                result[row, below] += p
            else:
                result[row, below] += p * (above - place)
                result[row, above] += p * (place - below)
    return result


def normalized(weight):
    return jnp.asarray(weight / weight.sum(-1, keepdims=True))


def test_a_value_is_divided_between_its_two_neighbors():
    target = Returns(jnp.array([[0.25], [-1.0], [7.0]]), jnp.ones((3, 1)))
    want = [[0, 0, 0.75, 0.25, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
    np.testing.assert_allclose(project(FIVE, target), want, atol=1e-6)


@given(values, chances, st.sampled_from([(-2.0, 2.0, 5), (-1.0, 3.0, 4), (-5.0, 5.0, 21)]))
def test_the_projection_is_that_of_the_loops(value, weight, support):
    target, atoms = Returns(jnp.asarray(value), normalized(weight)), Atoms(*support)
    got = project(atoms, target)
    np.testing.assert_allclose(got, projected_by_loops(target, atoms), atol=2e-5)
    np.testing.assert_allclose(got.sum(-1), 1.0, rtol=1e-5)
    inside = np.clip(value, atoms.low, atoms.high)  # where the mean stays
    want = np.sum(inside * np.asarray(target.probability), -1)
    np.testing.assert_allclose(got @ np.asarray(atoms.values), want, atol=1e-4)


@pytest.mark.parametrize("mean", [-9.0, -2.0, -0.3, 0.5, 1.9])
def test_hl_gauss_is_the_density_integrated_around_each_atom(mean):
    """With the target's mean alone, clipped to the outer atoms."""
    atoms = Atoms(-2.0, 2.0, 9, sigma=0.75)  # half a unit apart
    target = Returns(jnp.array([[mean - 1.0, mean + 3.0]]), jnp.array([[0.75, 0.25]]))
    density = norm(np.clip(mean, -2.0, 2.0), 0.375).pdf
    mass = [quad(density, z - 0.25, z + 0.25)[0] for z in np.linspace(-2.0, 2.0, 9)]
    np.testing.assert_allclose(project(atoms, target)[0], np.array(mass) / sum(mass), atol=1e-5)


def test_the_categorical_loss_is_the_cross_entropy():
    """p = (1, 2, 1, 3, 1)/8 and m = (0, 0, ¾, ¼, 0): −¾·log ⅛ − ¼·log ⅜."""
    logits = jnp.log(jnp.array([[[1.0, 2.0, 1.0, 3.0, 1.0]]])) + 5.0
    target = Returns(jnp.array([[0.25]]), jnp.ones((1, 1)))
    want = -0.75 * np.log(1 / 8) - 0.25 * np.log(3 / 8)
    np.testing.assert_allclose(FIVE.loss(logits, target), [[want]], rtol=1e-5)
    np.testing.assert_allclose(FIVE.mean(logits), [[1 / 8]], rtol=1e-4)  # (−2 − 2 + 3 + 2)/8


def test_the_whole_distribution_of_the_lower_mean_is_taken():
    """Row 0: the second critic's mean is lower, although its highest atoms are likelier than the
    first critic's. An elementwise minimum, or the minimum of the rows together, is another one."""
    probabilities = np.array(
        [
            [[0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0, 0.5]],  # means 0 and ½
            [[0.6, 0.0, 0.0, 0.0, 0.4], [0.0, 0.0, 0.0, 1.0, 0.0]],  # means −0.4 and 1
        ]
    )
    got = FIVE.pessimistic(jnp.asarray(np.log(probabilities + 1e-9), jnp.float32))
    np.testing.assert_allclose(
        got.probability, [probabilities[1, 0], probabilities[0, 1]], atol=1e-6
    )
    np.testing.assert_allclose(got.mean, [-0.4, 0.5], atol=1e-6)


def test_truncation_drops_the_largest_of_all_critics_together():
    """Two critics, one dropped for each: both of the dropped ones are the second critic's."""
    quantiles = jnp.array([[[3.0, 1.0, 2.0]], [[9.0, 0.0, 8.0]]])
    got = Quantiles(3, dropped=1).pessimistic(quantiles)
    np.testing.assert_allclose(got.value, [[0.0, 1.0, 2.0, 3.0]])
    np.testing.assert_allclose(got.mean, [1.5])
    everything = Quantiles(3).pessimistic(quantiles)
    np.testing.assert_allclose(everything.value, [[0.0, 1.0, 2.0, 3.0, 8.0, 9.0]])
    np.testing.assert_allclose(everything.probability.sum(-1), [1.0], rtol=1e-6)


def test_the_quantile_huber_loss_by_hand():
    """θ = (0, 1) at τ = (¼, ¾); values −1 and 2.5 with probabilities 0.4 and 0.6.

    u of θ₁: −1 → |¼ − 1|·½, and 2.5 → ¼·2; u of θ₂: −2 → ¼·1.5, and 1.5 → ¾·1."""
    target = Returns(jnp.array([[-1.0, 2.5]]), jnp.array([[0.4, 0.6]]))
    first = 0.4 * 0.75 * 0.5 + 0.6 * 0.25 * 2.0
    second = 0.4 * 0.25 * 1.5 + 0.6 * 0.75 * 1.0
    got = Quantiles(2).loss(jnp.array([[[0.0, 1.0]], [[1.0, 1.0]]]), target)
    np.testing.assert_allclose(got[0], [(first + second) / 2], rtol=1e-6)
    one = 0.4 * 0.75 * 1.5 + 0.6 * 0.25 * 1.0
    np.testing.assert_allclose(got[1], [(one + second) / 2], rtol=1e-6)


def test_descending_the_quantile_loss_finds_the_quantiles():
    """Of a uniform distribution over 0, 10, …, 990: τ = ¼ is at about 250, τ = ¾ at about 750."""
    target = Returns(jnp.arange(0.0, 1000.0, 10.0)[None], jnp.full((1, 100), 0.01))
    form = Quantiles(2)
    slope = jax.grad(lambda theta: jnp.sum(form.loss(theta, target)))

    def step(theta, _):
        return theta - 100.0 * slope(theta), None

    found, _ = jax.jit(lambda start: jax.lax.scan(step, start, None, 500))(jnp.zeros((1, 1, 2)))
    np.testing.assert_allclose(found[0, 0], [250.0, 750.0], atol=10.0)


def test_targets_move_every_value_and_no_probability():
    """r + γ·(Z − cost), and nothing of Z where the episode terminated."""
    following = Returns(jnp.array([-2.0, 2.0]), jnp.array([[0.25, 0.75], [0.5, 0.5]]))
    cost = jnp.array([1.0, -1.0])
    got = bootstrapped(jnp.array([1.0, 5.0]), jnp.array([0.5, 0.0]), following - cost)
    np.testing.assert_allclose(got.value, [[-0.5, 1.5], [5.0, 5.0]])
    np.testing.assert_allclose(got.probability, following.probability)
    np.testing.assert_allclose(mean_target(got), [1.0, 5.0])
    np.testing.assert_allclose(mean_target(jnp.array([7.0])), [7.0])


@pytest.mark.parametrize("common", [True, False])
def test_the_mixture_over_choices_has_every_value_with_its_chance(common):
    policy = jnp.array([[0.2, 0.8]])
    probability = jnp.array([[[0.5, 0.5], [0.25, 0.75]]])
    value = jnp.array([0.0, 4.0])
    returns = Returns(value, probability) if common else Returns(value, probability) - policy
    got = expected(policy, returns)
    if common:  # atoms are not repeated
        np.testing.assert_allclose(got.value, value)
        np.testing.assert_allclose(got.probability, [[0.3, 0.7]], rtol=1e-6)
    else:
        np.testing.assert_allclose(got.value, [[-0.2, 3.8, -0.8, 3.2]], rtol=1e-6)
        np.testing.assert_allclose(got.probability, [[0.1, 0.1, 0.2, 0.6]], rtol=1e-6)
    want = expected(policy, returns.mean)
    np.testing.assert_allclose(got.mean, want, rtol=1e-6)


def test_hubers_loss_is_quadratic_near_zero_and_linear_beyond_one():
    error = jnp.array([0.0, 0.5, -1.0, 3.0, -3.0])
    np.testing.assert_allclose(huber(error), [0.0, 0.125, 0.5, 2.5, 2.5])


@pytest.mark.parametrize("form", [Atoms(-1.0, 1.0, 3), Quantiles(3, 1)])
def test_no_gradient_of_a_loss_is_more_than_its_weight(form):
    """A far target does not make a large step: gradients of each output are at most 1."""
    target = Returns(jnp.array([[1e6]]), jnp.ones((1, 1)))
    slope = jax.jit(jax.grad(lambda x: jnp.sum(form.loss(x, target))))(jnp.zeros((1, 1, 3)))
    assert np.all(np.abs(slope) <= 1.0) and np.any(np.asarray(slope) != 0.0)
