"""The hidden layers of FlashSAC: outputs, statistics and gradients against NumPy in float64, and
the lengths that a projection restores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms import by_hand
from tests.networks.batch_norm_cases import like_trained, parts, residual_forward
from tests.networks.test_residual import assert_unit_weights, norms_of
from understudy.networks.batch_norm import (
    BatchNorm,
    BatchNormMLP,
    move_statistics,
    with_changes,
    without_statistics,
)
from understudy.networks.mlp import RMSNorm
from understudy.networks.projection import project_weights
from understudy.networks.residual import FlashSAC

KEY = jax.random.PRNGKey(0)
COUNTED = np.array([True, True, False, True, True, False, True])
ROWS = np.random.default_rng(0).normal(0.5, 2.0, size=(7, 3)).astype(np.float32)
SIZE, INNER = 4, 16

train = jax.jit(lambda module, x, counted: module.train(x, counted))
answer = jax.jit(lambda module, x: module(x))


@pytest.fixture(scope="module")
def body():
    return like_trained(FlashSAC(3, (SIZE, SIZE), KEY, activation="tanh"))


def test_evaluation_against_numpy(body):
    want = residual_forward(*parts(body), ROWS.astype(float), None)[0]
    np.testing.assert_allclose(answer(body, ROWS), want, rtol=1e-4, atol=1e-5)
    # Each row by itself, with any leading axes.
    np.testing.assert_allclose(answer(body, ROWS[3]), want[3], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(answer(body, ROWS[None, :2]), want[None, :2], rtol=1e-4, atol=1e-5)


def test_training_against_numpy(body):
    weights, statistics = parts(body)
    want, moments = residual_forward(weights, statistics, ROWS.astype(float), COUNTED)
    features, changes = train(body, ROWS, COUNTED)
    np.testing.assert_allclose(features[COUNTED], want[COUNTED], rtol=1e-3, atol=1e-4)
    assert len(changes) == len(moments) == 1 + 2 * 2
    for change, (mean, variance), (m, v) in zip(changes, statistics, moments, strict=True):
        np.testing.assert_allclose(change.mean, 0.01 * (m - mean), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(change.variance, 0.01 * (v - variance), rtol=1e-3, atol=1e-5)


def test_relu_is_the_usual_activation():
    body = like_trained(FlashSAC(3, (SIZE,), KEY))
    arrays, statistics = parts(body)
    want = residual_forward(arrays, statistics, ROWS.astype(float), None, np.positive)[0]
    assert not np.allclose(answer(body, ROWS), want, atol=1e-2)
    relu = lambda x: np.maximum(x, 0.0)  # noqa: E731
    want = residual_forward(arrays, statistics, ROWS.astype(float), None, relu)[0]
    np.testing.assert_allclose(answer(body, ROWS), want, rtol=1e-4, atol=1e-5)


def test_rows_that_are_no_steps_do_not_count(body):
    other = ROWS.copy()
    other[~COUNTED] = 1e6
    one, two = train(body, ROWS, COUNTED), train(body, other, COUNTED)
    np.testing.assert_array_equal(one[0][COUNTED], two[0][COUNTED])
    for x, y in zip(jax.tree.leaves(one[1]), jax.tree.leaves(two[1]), strict=True):
        np.testing.assert_array_equal(x, y)


def test_gradients_go_through_the_statistics_of_the_batch(body):
    weights, statistics = parts(body)
    factors = np.random.default_rng(2).normal(size=(7, SIZE)) * COUNTED[:, None]

    def loss(weights):
        features = residual_forward(weights, statistics, ROWS.astype(float), COUNTED)[0]
        return np.sum(factors * features**2)

    @jax.jit
    def differentiate(body, x, counted):
        return jax.grad(lambda body: jnp.sum(factors * body.train(x, counted)[0] ** 2))(body)

    got = differentiate(body, ROWS, COUNTED)
    for ours, theirs in zip(
        by_hand.numbers(without_statistics(got)), by_hand.derivative(loss, weights), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-3 * np.abs(theirs).max())
    for norm in got.norms:  # no gradient, before the changes take these places
        for leaf in jax.tree.leaves(norm.statistics):
            np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


def test_changes_reach_the_norms_that_made_them(body):
    """Each of them has another mean: a change in the place of another one would be seen."""
    _, changes = train(body, ROWS, COUNTED)
    zeros = jax.tree.map(jnp.zeros_like, body)
    moved = move_statistics(body, without_statistics(body), with_changes(zeros, changes))
    places = zip(
        (body.input_norm, *(n for b in body.blocks for n in (b.inner_norm, b.outer_norm))),
        (moved.input_norm, *(n for b in moved.blocks for n in (b.inner_norm, b.outer_norm))),
        changes,
        strict=True,
    )
    for before, after, change in places:
        np.testing.assert_allclose(
            after.statistics.mean, before.statistics.mean + change.mean, rtol=1e-6
        )
        assert after.scale is before.scale


def test_it_starts_as_in_its_paper():
    body = FlashSAC(3, (SIZE, SIZE), KEY)
    assert_unit_weights(body)
    assert len(norms_of(body)) == 1 + 2 * 2 + 1
    sizes = (3, INNER, SIZE, INNER, SIZE)
    assert tuple(norm.scale.shape[0] for norm in body.norms) == sizes
    for norm in body.norms:
        np.testing.assert_array_equal(norm.scale, np.ones(norm.scale.shape))
        np.testing.assert_array_equal(norm.offset, np.zeros(norm.scale.shape))
        assert norm.epsilon == 1e-5
    block = 2 * SIZE * INNER + 4 * INNER + 4 * SIZE
    assert sum(leaf.size for leaf in jax.tree.leaves(body)) == 4 * 3 + 3 * SIZE + 2 * block + SIZE
    first, second = (np.asarray(block.expand.weight) for block in body.blocks)
    assert not np.any(first == second)


def test_projection_restores_the_lengths_of_each_of_stacked_networks(body):
    stacked = jax.tree.map(lambda x: jnp.stack([x, 2.0 * x + 0.1]), body)
    projected = jax.jit(project_weights)(stacked)
    assert_unit_weights(projected)
    for before, after in zip(stacked.norms, projected.norms, strict=True):
        both = [np.concatenate([x.scale, x.offset], axis=-1) for x in (before, after)]
        length = np.linalg.norm(both[0], axis=-1, keepdims=True)
        want = both[0] / length * before.scale.shape[-1] ** 0.5
        np.testing.assert_allclose(both[1], want, rtol=1e-5)
        assert after.statistics is not None
        for x, y in zip(before.statistics, after.statistics, strict=True):
            assert (x is None and y is None) or np.array_equal(x, y)
    scale = np.asarray(stacked.output_norm.scale)
    want = scale / np.linalg.norm(scale, axis=-1, keepdims=True) * SIZE**0.5
    np.testing.assert_allclose(projected.output_norm.scale, want, rtol=1e-5)


def test_other_norms_are_not_projected():
    """Those of XQC, whose paper projects weights alone."""
    mlp = like_trained(BatchNormMLP(3, (4,), KEY))
    for before, after in zip(mlp.norms, project_weights(mlp).norms, strict=True):
        np.testing.assert_array_equal(before.scale, after.scale)
        np.testing.assert_array_equal(before.offset, after.offset)
    assert not BatchNorm(3).projected and BatchNorm(3).epsilon == 1e-3


def test_rms_norm_by_hand():
    norm = like_trained(RMSNorm(2))
    got = norm(jnp.array([[3.0, 4.0], [0.0, 0.0]]))
    want = np.array([3.0, 4.0]) / (12.5 + 1e-6) ** 0.5 * np.asarray(norm.scale, np.float64)
    np.testing.assert_allclose(got, [want, [0.0, 0.0]], rtol=1e-6)
