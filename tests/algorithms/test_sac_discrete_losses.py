"""Losses of SAC over discrete actions with numbers that fit on a napkin."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.algorithms.sac import losses
from understudy.ops.distributions import Categorical
from understudy.types import Batch


class FixedChoice(eqx.Module):
    """An actor with one answer; below its probabilities are ¼ and ¾."""

    logits: jax.Array

    def __call__(self, observation):
        return Categorical(jnp.broadcast_to(self.logits, (len(observation), 2)))


class FixedQ(eqx.Module):
    """Two critics when stacked."""

    values: jax.Array

    def __call__(self, observation):
        return jnp.broadcast_to(self.values, (len(observation), 2))


ACTOR = FixedChoice(jnp.array([0.0, math.log(3.0)]))
CRITICS = FixedQ(jnp.array([[1.0, 4.0], [2.0, -2.0]]))  # the smallest opinions: 1 and −2
ENTROPY = math.log(4.0) - 0.75 * math.log(3.0)
NAPKIN = Batch(
    observation=jnp.zeros((3, 1)),
    action=jnp.array([0, 1, 1], jnp.int32),
    reward=jnp.array([1.0, 2.0, 5.0]),
    discount=jnp.array([0.9, 0.5, 0.0]),
    next_observation=jnp.ones((3, 1)),
    weight=jnp.array([1.0, 2.0, 3.0]),
    row=jnp.arange(3, dtype=jnp.int32),
)


target_of = jax.jit(losses.discrete_critic_target)
loss_of = jax.jit(jax.value_and_grad(losses.discrete_actor_loss, has_aux=True))


def test_target_on_a_napkin():
    """The minimum is taken choice by choice: ¼·1 + ¾·(−2). Critic by critic it would be −1."""
    got = target_of(ACTOR, CRITICS, NAPKIN, jnp.float32(0.2))
    value = -1.25 + 0.2 * ENTROPY
    np.testing.assert_allclose(got, [1 + 0.9 * value, 2 + 0.5 * value, 5.0], rtol=1e-5)


def test_critic_loss_on_a_napkin():
    """Only the taken choice has an error and a gradient."""
    target = jnp.array([0.5, 3.0, 0.0])

    def objective(critics):
        return losses.critic_loss(critics, NAPKIN, target)

    (value, error), gradient = jax.jit(jax.value_and_grad(objective, has_aux=True))(CRITICS)
    np.testing.assert_allclose(error, [[0.5, 1.0, 4.0], [1.5, -5.0, -2.0]], rtol=1e-6)
    want = 0.5 / 3 * (0.25 + 2 + 3 * 16 + 2.25 + 2 * 25 + 3 * 4)
    assert float(value) == pytest.approx(want, rel=1e-6)
    want = np.array([[0.5, 2 * 1 + 3 * 4], [1.5, 2 * -5 + 3 * -2]]) / 3
    np.testing.assert_allclose(gradient.values, want, rtol=1e-6)


def test_actor_loss_on_a_napkin():
    (value, log_prob), gradient = loss_of(ACTOR, CRITICS, NAPKIN, jnp.float32(0.2))
    np.testing.assert_allclose(log_prob, [-ENTROPY] * 3, rtol=1e-6)
    assert float(value) == pytest.approx(2 * (-0.2 * ENTROPY + 1.25), rel=1e-6)  # mean weight 2
    # of softmax(z): ∂/∂z_a = π_a·(g_a − Σ π·g), with g = α·log π − Q
    g = 0.2 * np.log([0.25, 0.75]) - np.array([1.0, -2.0])
    slope = 2 * np.array([0.25, 0.75]) * (g - (0.25 * g[0] + 0.75 * g[1]))
    np.testing.assert_allclose(gradient.logits, slope, rtol=1e-5)


def test_without_a_temperature_the_best_choice_is_sought():
    _, gradient = loss_of(ACTOR, CRITICS, NAPKIN, jnp.float32(0.0))
    assert gradient.logits[0] < 0 < gradient.logits[1]  # towards min Q = 1, away from −2


def test_a_choice_that_is_out_of_the_question_stays_harmless():
    sure = FixedChoice(jnp.array([0.0, -1e4]))
    (value, _), gradient = loss_of(sure, CRITICS, NAPKIN, jnp.float32(0.2))
    assert float(value) == pytest.approx(-2.0) and np.all(np.isfinite(gradient.logits))
    target = target_of(sure, CRITICS, NAPKIN, jnp.float32(0.2))
    np.testing.assert_allclose(target, [1.9, 2.5, 5.0], rtol=1e-6)
