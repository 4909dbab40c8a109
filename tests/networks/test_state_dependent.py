"""State-dependent exploration: the noise that is drawn has the density that is claimed."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from understudy.networks import MLP, Linear, Networks, StateDependentActor
from understudy.networks.build import make_actor
from understudy.networks.heads import (
    exploration_matrices,
    state_dependent_noise,
    state_dependent_std,
)
from understudy.networks.mlp import kaiming
from understudy.types import ArraySpec, Continuous, Spec

KEY = jax.random.PRNGKey(0)


def actor(initial_log_std=-2.0):
    encoder = MLP(3, (5,), KEY, activation="tanh")
    return StateDependentActor(encoder, Linear(5, 2, KEY, kaiming), initial_log_std)


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def test_mean_and_features_are_their_formula():
    made, x = actor(), normal(6, 3)
    mean, features = made.mean_and_features(x)
    layer = made.encoder.layers[0]
    want = np.tanh(np.asarray(x) @ np.asarray(layer.weight) + np.asarray(layer.bias))
    np.testing.assert_allclose(features, want, rtol=1e-4, atol=1e-6)
    want = want @ np.asarray(made.head.weight) + np.asarray(made.head.bias)
    np.testing.assert_allclose(mean, want, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(made.mode(x), mean)


def test_log_std_starts_as_given():
    np.testing.assert_array_equal(actor(-1).log_std, np.full((5, 2), -1.0))
    config = SimpleNamespace(
        memory=None,
        network="mlp",
        unit_weights=False,
        hidden_sizes=(7,),
        actor_hidden_sizes=None,
        actor_layer_norm=False,
        activation="relu",
        normalization="off",
        initialization="orthogonal",
    )
    spec = Spec(ArraySpec((3,)), Continuous((-1.0,) * 2, (1.0,) * 2, (2,)))
    made = make_actor(StateDependentActor, spec, config, Networks(), KEY, gain=0.01)
    np.testing.assert_array_equal(made.log_std, np.full((7, 2), -2.0))


def test_std_worked_by_hand():
    """Features (3, 4): σ² = 9·1 + 16·4 = 73 and 9·4 + 16·1/4 = 40, with exp(log_std) below."""
    log_std = jnp.log(jnp.array([[1.0, 2.0], [2.0, 0.5]]))
    got = state_dependent_std(jnp.array([3.0, 4.0]), log_std)
    np.testing.assert_allclose(got, np.sqrt([73.0, 40.0]), rtol=1e-5)
    got = state_dependent_std(jnp.array([[[3.0, 4.0]], [[-3.0, 4.0]]]), log_std)  # any axes
    np.testing.assert_allclose(got, np.broadcast_to(np.sqrt([73.0, 40.0]), (2, 1, 2)), rtol=1e-5)
    # no features, no noise, but still a density
    np.testing.assert_allclose(state_dependent_std(jnp.zeros(2), log_std), [1e-3, 1e-3], rtol=1e-4)


def test_drawn_noise_has_the_claimed_spread():
    """Over 40,000 matrices: σ within 4 of its own standard errors (σ/√(2n)), no mean, and no
    correlation between the dimensions of the action."""
    draws, log_std = 40_000, 0.5 * normal(5, 2) - 1.0
    matrices = exploration_matrices(log_std, draws, KEY)
    assert matrices.shape == (draws, 5, 2)
    for features in normal(3, 5):
        std = np.asarray(state_dependent_std(features, log_std))
        noise = state_dependent_noise(jnp.broadcast_to(features, (draws, 5)), matrices)
        noise = np.asarray(noise, np.float64) / std
        np.testing.assert_allclose(noise.std(0), 1.0, atol=4 / (2 * draws) ** 0.5)
        np.testing.assert_allclose(noise.mean(0), 0.0, atol=4 / draws**0.5)
        assert abs(np.mean(noise[:, 0] * noise[:, 1])) < 4 / draws**0.5
        # a Gaussian, not merely something of that spread
        np.testing.assert_allclose(np.mean(noise**4, 0), 3.0, atol=4 * (96 / draws) ** 0.5)


def test_each_environment_has_a_matrix_of_its_own():
    log_std = jnp.zeros((5, 2))
    matrices = exploration_matrices(log_std, 3, KEY)
    assert not np.any(np.asarray(matrices[0]) == np.asarray(matrices[1]))
    features = normal(3, 5)
    got = state_dependent_noise(features, matrices)
    for env in range(3):
        want = np.asarray(features[env]) @ np.asarray(matrices[env])
        np.testing.assert_allclose(got[env], want, rtol=1e-4, atol=1e-6)
    # the same state again, the same noise again; twice the features, twice the noise
    np.testing.assert_array_equal(state_dependent_noise(features, matrices), got)
    np.testing.assert_allclose(state_dependent_noise(2.0 * features, matrices), 2.0 * got)


def test_the_spread_teaches_log_std_and_not_the_features():
    made, x = actor(), normal(6, 3)

    def spread(made):
        _, features = made.mean_and_features(x)
        return jnp.sum(state_dependent_std(features, made.log_std))

    gradient = jax.grad(spread)(made)
    for leaf in jax.tree.leaves((gradient.encoder, gradient.head)):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))
    # dσ_a/dlog_std_fa = features_f²·exp(2·log_std_fa)/σ_a, summed over the rows
    features = np.asarray(made.mean_and_features(x)[1])
    std = np.sqrt(features**2 @ np.exp(2 * np.asarray(made.log_std)) + 1e-6)
    want = np.exp(-4.0) * np.einsum("bf,ba->fa", features**2, 1 / std)
    np.testing.assert_allclose(gradient.log_std, want, rtol=1e-4)
    # while the mean does teach them
    taught = jax.grad(lambda made: jnp.sum(made(x)[0]))(made)
    assert np.any(np.asarray(taught.encoder.layers[0].weight) != 0)


def test_the_noise_goes_through_jit():
    made, x = actor(), normal(4, 3)

    @jax.jit
    def explore(made, x, key):
        mean, features = made.mean_and_features(x)
        matrices = exploration_matrices(made.log_std, 4, key)
        return mean + state_dependent_noise(features, matrices)

    mean, features = made.mean_and_features(x)
    want = mean + state_dependent_noise(features, exploration_matrices(made.log_std, 4, KEY))
    np.testing.assert_allclose(explore(made, x, KEY), want, rtol=1e-4, atol=1e-5)
