"""Initial weights, LayerNorm and the perceptron, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.networks import MLP, Linear
from understudy.networks.mlp import (
    ACTIVATIONS,
    INITIALIZERS,
    LayerNorm,
    kaiming,
    orthogonal,
    scaled,
)

KEY = jax.random.PRNGKey(0)


@pytest.mark.parametrize("inputs, outputs", [(4, 300), (100, 50)])
def test_kaiming_fills_its_bounds(inputs, outputs):
    bound = inputs**-0.5
    weight = np.asarray(kaiming(KEY, inputs, outputs))
    assert weight.shape == (inputs, outputs)
    assert np.all(np.abs(weight) <= bound)
    # uniform: reaches the bounds on both sides, with the variance of a uniform
    assert weight.max() > 0.98 * bound and weight.min() < -0.98 * bound
    assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.05)


@pytest.mark.parametrize("inputs, outputs", [(8, 8), (12, 5), (5, 12)])
def test_orthogonal_weights_are_orthogonal(inputs, outputs):
    weight = np.asarray(orthogonal(KEY, inputs, outputs), np.float64)
    gram = weight.T @ weight if inputs >= outputs else weight @ weight.T
    np.testing.assert_allclose(gram, 2.0 * np.eye(min(inputs, outputs)), atol=1e-5)  # gain √2
    plain = np.asarray(orthogonal(KEY, inputs, outputs, 1.0), np.float64)
    np.testing.assert_allclose(weight, 2**0.5 * plain, rtol=1e-5)


def test_linear_starts_within_kaimings_bounds_with_a_bias_of_its_own():
    layer = Linear(25, 400, KEY)
    assert layer.weight.shape == (25, 400) and layer.bias.shape == (400,)
    assert np.max(np.abs(layer.bias)) <= 0.2 and np.std(layer.bias) > 0.1
    assert not np.any(np.all(np.asarray(layer.weight) == np.asarray(layer.bias), axis=1))
    zero_bias = Linear(25, 4, KEY, INITIALIZERS["orthogonal"]).bias
    np.testing.assert_array_equal(zero_bias, np.zeros(4))


@pytest.mark.parametrize("gain", [0.01, 1, 3.0])
def test_a_gain_replaces_that_of_orthogonal_and_multiplies_kaimings(gain):
    weight = np.asarray(scaled("orthogonal", gain)(KEY, 12, 5), np.float64)
    np.testing.assert_allclose(weight.T @ weight, gain**2 * np.eye(5), atol=1e-5 * gain**2)
    weight = np.asarray(scaled("kaiming", gain)(KEY, 100, 50))
    np.testing.assert_allclose(weight, gain * np.asarray(kaiming(KEY, 100, 50)), rtol=1e-5)
    for initialization in INITIALIZERS:
        layer = Linear(25, 4, KEY, scaled(initialization, gain))
        np.testing.assert_array_equal(layer.bias, np.zeros(4))  # or it would start at its bias


@pytest.mark.parametrize("initialization", sorted(INITIALIZERS))
def test_without_a_gain_nothing_changes(initialization):
    assert scaled(initialization, None) is INITIALIZERS[initialization]


def test_layers_do_not_share_their_draws():
    mlp = MLP(8, (8, 8, 8), KEY)
    weights = [np.asarray(layer.weight) for layer in mlp.layers]
    assert not np.allclose(weights[0], weights[1]) and not np.allclose(weights[1], weights[2])


def test_layer_norm_is_numpys():
    x = np.random.default_rng(0).normal(3.0, 5.0, size=(6, 7))
    norm = LayerNorm(7)
    got = norm(jnp.asarray(x, jnp.float32))
    want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.mean(got, -1), np.zeros(6), atol=1e-6)
    np.testing.assert_allclose(np.std(got, -1), np.ones(6), atol=1e-4)
    moved = jax.tree.map(lambda leaf: leaf + jnp.arange(7.0), norm)
    want = want * (1 + np.arange(7)) + np.arange(7)
    np.testing.assert_allclose(moved(jnp.asarray(x, jnp.float32)), want, rtol=1e-4, atol=1e-4)
    assert np.all(np.isfinite(norm(jnp.ones((1, 7)))))  # a constant row has no variance


def test_mlp_worked_by_hand():
    """Two inputs, two hidden units, one feature; relu after each layer, also the last."""
    mlp = MLP(2, (2, 1), KEY)
    leaves = [
        jnp.array([[1.0, -1.0], [2.0, 1.0]]),  # weight [inputs, outputs]
        jnp.array([0.5, -0.5]),
        jnp.array([[2.0], [3.0]]),
        jnp.array([-1.0]),
    ]
    mlp = jax.tree.unflatten(jax.tree.structure(mlp), leaves)
    # x = (1, 2): hidden = relu(1+4+.5, -1+2-.5) = (5.5, .5); feature = relu(11+1.5-1) = 11.5
    # x = (-1, 1): hidden = relu(-1+2+.5, 1+1-.5) = (1.5, 1.5); feature = 3+4.5-1 = 6.5
    # x = (0, -1): hidden = relu(-1.5, -1.5) = 0; feature = relu(-1) = 0
    got = mlp(jnp.array([[1.0, 2.0], [-1.0, 1.0], [0.0, -1.0]]))
    np.testing.assert_allclose(got, [[11.5], [6.5], [0.0]])


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_mlp_against_numpy(activation, layer_norm):
    mlp = MLP(3, (5, 4), KEY, activation=activation, layer_norm=layer_norm)
    functions = {
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        "silu": lambda x: x / (1 + np.exp(-x)),
        "gelu": lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    }
    x = np.random.default_rng(1).normal(size=(2, 6, 3))  # any leading axes
    got = mlp(jnp.asarray(x, jnp.float32))
    for layer in mlp.layers:
        x = x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)
        if layer_norm:
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        x = functions[activation](x)
    np.testing.assert_allclose(got, x, rtol=1e-4, atol=1e-5)


def test_leaves_are_exactly_the_weights():
    mlp = MLP(3, (5, 4), KEY, layer_norm=True)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(mlp))
    assert sum(leaf.size for leaf in jax.tree.leaves(mlp)) == (3 * 5 + 5) + (5 * 4 + 4) + 2 * 9
    jax.jit(lambda module, x: module(x))(mlp, jnp.ones((1, 3)))  # jit takes it as it is
