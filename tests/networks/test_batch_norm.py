"""BatchNorm and BatchRenorm: outputs, running statistics and gradients, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms import by_hand
from tests.networks.batch_norm_cases import forward, like_trained, parts
from understudy.networks.batch_norm import (
    BatchNorm,
    BatchNormMLP,
    BatchStatistics,
    move_statistics,
    with_changes,
    without_statistics,
)

KEY = jax.random.PRNGKey(0)
BOTH = pytest.mark.parametrize("warm_up", [None, 2])  # BatchNorm, BatchRenorm
COUNTED = np.array([True, True, False, True, True, False, True])
ROWS = np.random.default_rng(0).normal(0.5, 2.0, size=(7, 3)).astype(np.float32)


train = jax.jit(lambda module, x, counted: module.train(x, counted))
answer = jax.jit(lambda module, x: module(x))


def test_two_rows_by_hand():
    norm = BatchNorm(1, None)
    y, change = norm.train(jnp.array([[1.0], [5.0]]), jnp.array([True, True]))
    # mean 3, variance 4: y = ±2 / √4.001
    np.testing.assert_allclose(y[:, 0], [-2 / 4.001**0.5, 2 / 4.001**0.5], rtol=1e-6)
    np.testing.assert_allclose(change.mean, [0.01 * 3.0], rtol=1e-6)
    np.testing.assert_allclose(change.variance, [0.01 * (4.0 - 1.0)], rtol=1e-6)
    assert change.updates is None
    moved = move_statistics(norm, without_statistics(norm), with_statistics(norm, change))
    # a second batch, of 5 and 5: mean 5, variance 0
    _, change = moved.train(jnp.array([[5.0], [5.0]]), jnp.array([True, True]))
    np.testing.assert_allclose(change.mean, [0.01 * (5.0 - 0.03)], rtol=1e-5)
    np.testing.assert_allclose(change.variance, [0.01 * (0.0 - 1.03)], rtol=1e-5)


def with_statistics(norm, statistics):
    return jax.tree.map(
        lambda node: statistics if isinstance(node, BatchStatistics) else node,
        norm,
        is_leaf=lambda node: isinstance(node, BatchStatistics),
    )


@pytest.mark.parametrize(("updates", "warm"), [(1.0, False), (2.0, True)])
def test_corrections_are_bounded_and_begin_after_the_warm_up(updates, warm):
    statistics = BatchStatistics(jnp.array([0.0]), jnp.array([0.999]), jnp.float32(updates))
    norm = with_statistics(BatchNorm(1, 2), statistics)
    # mean 20, variance 1e-4: r = √(0.0011 / 1) = 0.033, at least 1/3; d = 20, at most 5
    x = jnp.array([[19.99], [20.01]])
    plain = np.array([-0.01, 0.01]) / 0.0011**0.5
    want = plain / 3.0 + 5.0 if warm else plain
    y, change = norm.train(x, jnp.array([True, True]))
    np.testing.assert_allclose(y[:, 0], want, rtol=1e-3)
    assert change.updates == 1.0
    # variance 10⁴: r = 100, at most 3; mean −200: d at least −5
    y, _ = norm.train(jnp.array([[-300.0], [-100.0]]), jnp.array([True, True]))
    np.testing.assert_allclose(y[:, 0], [-3.0 - 5.0, 3.0 - 5.0] if warm else [-1, 1], rtol=1e-4)


def test_within_its_bounds_renorm_trains_with_the_running_statistics():
    rows, counted = ROWS / 2, np.ones(7, bool)
    norm = like_trained(BatchNorm(3, 2))
    np.testing.assert_allclose(
        train(norm, rows, counted)[0], answer(norm, rows), rtol=1e-4, atol=1e-5
    )
    early = like_trained(BatchNorm(3, 2), updates=1.0)
    assert np.abs(train(early, rows, counted)[0] - answer(early, rows)).max() > 0.1


def make(warm_up, updates=2.0):
    mlp = BatchNormMLP(3, (4, 2), KEY, activation="tanh", warm_up=warm_up)
    return like_trained(mlp, updates)


@BOTH
def test_evaluation_against_numpy(warm_up):
    mlp = make(warm_up)
    want, _, _ = forward(*parts(mlp), ROWS.astype(float), None, warm_up is None)
    np.testing.assert_allclose(answer(mlp, ROWS), want, rtol=1e-4, atol=1e-5)
    # Each row by itself, with any leading axes.
    np.testing.assert_allclose(answer(mlp, ROWS[3]), want[3], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(answer(mlp, ROWS[None, :2]), want[None, :2], rtol=1e-4, atol=1e-5)


@BOTH
@pytest.mark.parametrize("updates", [1.0, 2.0])
def test_training_against_numpy(warm_up, updates):
    mlp = make(warm_up, updates)
    corrected = warm_up is not None and updates >= warm_up
    corrections = None if corrected else [(1.0, 0.0)] * 3
    weights, statistics = parts(mlp)
    x = ROWS.astype(float)
    want, used, moments = forward(weights, statistics, x, COUNTED, warm_up is None, corrections)
    features, changes = train(mlp, ROWS, COUNTED)
    np.testing.assert_allclose(features[COUNTED], want[COUNTED], rtol=1e-4, atol=1e-5)
    for change, (mean, variance), (m, v) in zip(changes, statistics, moments, strict=True):
        np.testing.assert_allclose(change.mean, 0.01 * (m - mean), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(change.variance, 0.01 * (v - variance), rtol=1e-3, atol=1e-6)
        assert change.updates is None if warm_up is None else change.updates == 1.0
    if corrected:  # or the test would show less than it seems to
        assert any(np.abs(np.asarray(r) - 1.0).max() > 0.1 for r, _ in used)


@BOTH
@pytest.mark.parametrize("counted", [COUNTED, ~COUNTED, np.zeros(7, bool)])
@pytest.mark.parametrize("anything", [1e6, np.nan])
def test_rows_that_are_no_steps_do_not_count(warm_up, counted, anything):
    mlp = make(warm_up)
    other = ROWS.copy()
    other[~counted] = anything
    one, two = train(mlp, ROWS, counted), train(mlp, other, counted)
    np.testing.assert_array_equal(one[0][counted], two[0][counted])
    for x, y in zip(jax.tree.leaves(one[1]), jax.tree.leaves(two[1]), strict=True):
        np.testing.assert_array_equal(x, y)
        assert np.isfinite(x).all()


@BOTH
def test_gradients_go_through_the_statistics_of_the_batch(warm_up):
    """Against central differences in float64; the corrections of BatchRenorm are constants."""
    mlp = make(warm_up)
    batch_norm = warm_up is None
    weights, statistics = parts(mlp)
    factors = np.random.default_rng(2).normal(size=(7, 2)) * COUNTED[:, None]
    x = ROWS.astype(float)
    fixed = None if batch_norm else forward(weights, statistics, x, COUNTED, False)[1]

    def loss(weights):
        features = forward(weights, statistics, x, COUNTED, batch_norm, fixed)[0]
        return np.sum(factors * features**2)

    @jax.jit
    def differentiate(mlp, x, counted):
        return jax.grad(lambda mlp: jnp.sum(factors * mlp.train(x, counted)[0] ** 2))(mlp)

    got = differentiate(mlp, ROWS, COUNTED)
    for ours, theirs in zip(
        by_hand.numbers(without_statistics(got)), by_hand.derivative(loss, weights), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=5e-3, atol=1e-4)
    for norm in got.norms:  # no gradient, before the changes take these places
        for leaf in jax.tree.leaves(norm.statistics):
            np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


def test_changes_take_the_places_of_the_statistics_in_a_gradient():
    mlp = make(2)
    _, changes = train(mlp, ROWS, COUNTED)
    zeros = jax.tree.map(jnp.zeros_like, mlp)
    moved = move_statistics(mlp, without_statistics(mlp), with_changes(zeros, changes))
    for before, after, change in zip(mlp.norms, moved.norms, changes, strict=True):
        for x, y, z in zip(before.statistics, after.statistics, change, strict=True):
            np.testing.assert_allclose(y, x + z, rtol=1e-6)
        assert after.scale is before.scale and after.statistics.updates == 3.0
    assert len(jax.tree.leaves(without_statistics(mlp))) == len(jax.tree.leaves(mlp)) - 3 * 3


def test_other_trees_have_nothing_to_leave_out():
    tree = {"a": jnp.ones(2), "b": (jnp.zeros(()), None)}
    assert without_statistics(tree)["a"] is tree["a"]
    assert move_statistics(tree, tree, tree)["b"][0] is tree["b"][0]
    assert jax.tree.structure(without_statistics(tree)) == jax.tree.structure(tree)


def test_without_hidden_layers_the_inputs_are_normalized():
    mlp = BatchNormMLP(3, (), KEY)
    features, (change,) = train(mlp, ROWS, np.ones(7, bool))
    assert features.shape == (7, 3) and change.mean.shape == (3,)
    np.testing.assert_allclose(np.mean(features, 0), np.zeros(3), atol=1e-6)


def test_a_layer_before_batch_norm_has_no_bias():
    """BatchNorm would remove it; before BatchRenorm there is an activation, and a bias."""
    names = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_flatten_with_path(BatchNormMLP(3, (4,), KEY).layers)[0]
    ]
    assert names == ["[0].weight"]
    assert BatchNormMLP(3, (4,), KEY, warm_up=0).layers[0].bias.shape == (4,)
