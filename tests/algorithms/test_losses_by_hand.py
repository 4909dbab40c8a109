"""Losses of both algorithms with numbers that fit on a napkin."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.algorithm_cases import mapped
from understudy.algorithms.sac import losses as sac
from understudy.algorithms.td3 import losses as td3
from understudy.types import Batch

LOG_TWO_PI = 1.8378770664093453


class Fixed(eqx.Module):
    """An actor with one answer."""

    answer: jax.Array

    def __call__(self, observation):
        return jnp.broadcast_to(self.answer, (len(observation), 2))


class FixedGaussian(eqx.Module):
    mean: jax.Array
    log_std: jax.Array

    def __call__(self, observation):
        shape = (len(observation), 2)
        return jnp.broadcast_to(self.mean, shape), jnp.broadcast_to(self.log_std, shape)


class Affine(eqx.Module):
    """Q(s, a) = s·w + a·v + b: two critics when stacked."""

    w: jax.Array
    v: jax.Array
    b: jax.Array

    def __call__(self, observation, action):
        return observation @ self.w + action @ self.v + self.b


# Q₁ = a₀ + 2·a₁ + 1 and Q₂ = −a₀ − a₁ + ½
CRITICS = Affine(jnp.zeros((2, 1)), jnp.array([[1.0, 2.0], [-1.0, -1.0]]), jnp.array([1.0, 0.5]))
BATCH = Batch(
    observation=jnp.zeros((3, 1)),
    action=jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
    reward=jnp.array([1.0, 2.0, 5.0]),
    discount=jnp.array([0.9, 0.5, 0.0]),
    next_observation=jnp.ones((3, 1)),
    weight=jnp.ones(3),
    row=jnp.arange(3, dtype=jnp.int32),
)
TARGET = jnp.array([0.73, 2.15, 5.0])


def test_td3_target():
    # 0.2·noise = (.2, −2), (.4, 2), … clipped at .3 each, in each dimension by itself;
    # actions (.7, −1.2 → −1), (.8, −.6); Q₁ = −.3, .6; Q₂ = .8, .3; the last row terminated
    noise = jnp.array([[1.0, -10.0], [2.0, 10.0], [3.0, 3.0]])
    actor = Fixed(jnp.array([0.5, -0.9]))
    got = jax.jit(td3.critic_target)(
        actor, CRITICS, BATCH, jnp.float32(0.2), jnp.float32(0.3), noise
    )
    np.testing.assert_allclose(got, [1 - 0.9 * 0.3, 2 + 0.5 * 0.3, 5.0], rtol=1e-6)


@pytest.mark.parametrize("losses, factor", [(td3, 1.0), (sac, 0.5)])
def test_critic_losses(losses, factor):
    # Q₁ = 1, 2, 3 and Q₂ = ½, −½, −½ against .73, 2.15, 5
    one, two = np.array([0.27, -0.15, -2.0]), np.array([-0.23, -2.65, -5.5])
    evaluate = jax.jit(jax.value_and_grad(losses.critic_loss, has_aux=True))
    (loss, error), gradient = evaluate(CRITICS, BATCH, TARGET)
    np.testing.assert_allclose(error, [one, two], rtol=1e-5)
    want = (0.0729 + 0.0225 + 4.0 + 0.0529 + 7.0225 + 30.25) / 3
    assert float(loss) == pytest.approx(factor * want, rel=1e-5)
    unequal = BATCH._replace(weight=jnp.array([1.0, 2, 0]))
    (weighted, _), _ = evaluate(CRITICS, unequal, TARGET)
    want = (0.0729 + 2 * 0.0225 + 0.0529 + 2 * 7.0225) / 3
    assert float(weighted) == pytest.approx(factor * want, rel=1e-5)
    # ∂/∂b = 2·mean error, ∂/∂v = 2·mean(error·a): only row 2 has a₀, only row 3 has a₁
    np.testing.assert_allclose(gradient.b, 2 * factor * np.array([one.mean(), two.mean()]), 1e-5)
    want = 2 * factor / 3 * np.array([[-0.15, -2.0], [-2.65, -5.5]])
    np.testing.assert_allclose(gradient.v, want, rtol=1e-5)


def test_td3_actor_loss():
    """Minus the first critic, not the smallest: Q₁(.5, −.9) = −.3, Q₂ = .9."""
    first = mapped(lambda x: x[0], CRITICS)
    actor = Fixed(jnp.array([0.5, -0.9]))
    value, gradient = jax.jit(jax.value_and_grad(td3.actor_loss))(actor, first, BATCH)
    assert float(value) == pytest.approx(0.3, rel=1e-5)
    np.testing.assert_allclose(gradient.answer, [-1.0, -2.0], rtol=1e-6)


def test_sac_target():
    # mean 0, σ 1, noise 0: action 0, log π = −log 2π in two dimensions; min(1, ½) = ½
    actor = FixedGaussian(jnp.zeros(2), jnp.zeros(2))
    got = jax.jit(sac.critic_target)(actor, CRITICS, BATCH, jnp.float32(0.2), jnp.zeros((3, 2)))
    value = 0.5 + 0.2 * LOG_TWO_PI
    np.testing.assert_allclose(got, [1 + 0.9 * value, 2 + 0.5 * value, 5.0], rtol=1e-6)


def test_sac_actor_loss_and_its_reparameterized_gradient():
    """The trap: a draw without a path back to the actor gives no gradient through Q."""
    alpha, noise = jnp.float32(0.2), jnp.array([[1.0, -1.0]] * 3)
    actor = FixedGaussian(jnp.zeros(2), jnp.zeros(2))

    def objective(actor, alpha):
        return sac.actor_loss(actor, CRITICS, BATCH, alpha, noise)

    evaluate = jax.jit(jax.value_and_grad(objective, has_aux=True))
    (value, log_prob), gradient = evaluate(actor, alpha)
    # a = (t, −t) with t = tanh 1; Q₁ = 1 − t ≈ .24 < Q₂ = ½
    t = np.tanh(1.0)
    slope = 1 - t**2
    want = -LOG_TWO_PI - 1 - 2 * np.log(slope)
    np.testing.assert_allclose(log_prob, [want] * 3, rtol=1e-5)
    assert float(value) == pytest.approx(0.2 * want - (1 - t), rel=1e-5)
    # ∂a/∂mean = slope, ∂a/∂log σ = slope·noise; ∂log π/∂mean = 2·tanh(u), ∂/∂log σ = −1 + 2·t·noise
    np.testing.assert_allclose(
        gradient.mean, [0.2 * 2 * t - slope, -0.2 * 2 * t - 2 * slope], rtol=1e-5
    )
    np.testing.assert_allclose(
        gradient.log_std, [0.2 * (2 * t - 1) - slope, 0.2 * (2 * t - 1) + 2 * slope], rtol=1e-5
    )
    # without the entropy term everything comes through the action
    _, only_q = evaluate(actor, jnp.float32(0.0))
    np.testing.assert_allclose(only_q.mean, [-slope, -2 * slope], rtol=1e-5)


def test_entropy_loss():
    # entropy 1 (mean log π = −1) lies above the target −2: descending must lower τ
    log_prob, equal = jnp.array([-0.5, -1.5]), jnp.ones(2)
    evaluate = jax.jit(jax.value_and_grad(sac.entropy_loss))
    value, slope = evaluate(jnp.float32(0.3), log_prob, jnp.float32(-2.0), equal)
    assert float(value) == pytest.approx(0.9) and float(slope) == pytest.approx(3.0)
    _, slope = evaluate(jnp.float32(0.3), log_prob, jnp.float32(4.0), equal)
    assert float(slope) == pytest.approx(-3.0)  # and raise it below the target
    # weights ½ and 3/2: (½·2.5 + 3/2·3.5)/2
    _, slope = evaluate(jnp.float32(0.3), log_prob, jnp.float32(-2.0), jnp.array([0.5, 1.5]))
    assert float(slope) == pytest.approx(3.25)
