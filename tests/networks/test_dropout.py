"""Dropout of critics: which units it drops, in which rows, in which critics, and when."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.algorithm_cases import same
from understudy.algorithms.sac import SACConfig
from understudy.networks import MLP, Networks, QCritic, evaluate_ensemble
from understudy.networks.build import make_critics
from understudy.networks.dropout import Dropout
from understudy.networks.ensembles import drop_units, ensemble, without_dropout
from understudy.networks.mlp import Linear
from understudy.types import ArraySpec, Continuous, Spec

KEY = jax.random.PRNGKey(0)
ROW = jnp.arange(6, dtype=jnp.int32)
drop = jax.jit(lambda dropout, x, layer: dropout(x, layer), static_argnums=2)


def make(key):
    """A critic whose hidden units, and so its outputs, are never zero by themselves."""
    encoder = MLP(5, (50, 50), key, activation="silu", layer_norm=True)
    return QCritic(encoder, Linear(50, 1, key))


CRITICS = ensemble(make, 3, KEY)
INPUTS = tuple(jnp.asarray(np.random.default_rng(0).normal(size=(6, n)), "f4") for n in (3, 2))
evaluate = jax.jit(evaluate_ensemble)


def test_units_are_dropped_and_the_others_grow():
    """0.25 of them; the mean stays."""
    x = jnp.full((400, 50), 3.0)
    got = np.asarray(drop(Dropout(KEY, jnp.arange(400, dtype=jnp.int32), 0.25), x, 0))
    assert set(np.unique(got)) == {0.0, 4.0}
    assert np.mean(got == 0.0) == pytest.approx(0.25, abs=0.02)  # 20,000 draws: 7 deviations
    assert len(np.unique(got, axis=0)) == 400  # other units in each row


def test_shards_drop_what_the_whole_batch_does():
    x = jnp.ones((6, 4, 20))  # and each action of a state other units
    whole = np.asarray(drop(Dropout(KEY, ROW, 0.5), x, 1))
    shard = drop(Dropout(KEY, ROW[4:], 0.5), x[4:], 1)
    np.testing.assert_array_equal(shard, whole[4:])
    assert len(np.unique(whole.reshape(24, 20), axis=0)) == 24
    assert not same(whole, drop(Dropout(KEY, ROW, 0.5), x, 0))


def test_layers_drop_before_their_norm():
    """The order of DroQ: linear, dropout, LayerNorm, activation."""
    mlp = jax.tree.map(lambda leaf: leaf[0], drop_units(CRITICS, 0.5, KEY, ROW)).encoder
    x = np.concatenate(INPUTS, axis=-1)
    got = jax.jit(lambda mlp, x: mlp(x))(mlp, x)
    for place, (layer, norm) in enumerate(zip(mlp.layers, mlp.norms, strict=True)):
        x = np.asarray(x @ np.asarray(layer.weight) + np.asarray(layer.bias), np.float32)
        x = np.asarray(drop(mlp.dropout, x, place))
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        x = x * np.asarray(norm.scale) + np.asarray(norm.offset)
        x = x / (1 + np.exp(-x))
    np.testing.assert_allclose(got, x, rtol=1e-4, atol=1e-5)


def test_critics_drop_units_each_by_itself():
    alike = jax.tree.map(lambda leaf: jnp.stack([leaf[0]] * 3), CRITICS)
    q = np.asarray(evaluate(drop_units(alike, 0.5, KEY, ROW), *INPUTS))
    assert np.all(q[0] != q[1]) and np.all(q[1] != q[2])
    assert same(q, evaluate(drop_units(alike, 0.5, KEY, ROW), *INPUTS))
    assert not same(q, evaluate(drop_units(alike, 0.5, jax.random.PRNGKey(1), ROW), *INPUTS))


def test_dropout_can_be_taken_away():
    dropped = drop_units(CRITICS, 0.5, KEY, ROW)
    assert jax.tree.structure(dropped) != jax.tree.structure(CRITICS)
    assert jax.tree.structure(without_dropout(dropped)) == jax.tree.structure(CRITICS)
    assert same(without_dropout(dropped), CRITICS)
    assert same(without_dropout(CRITICS), CRITICS)


def test_users_layers_drop_nothing():
    config = SACConfig(hidden_sizes=(4,), critic_dropout=0.5)
    networks = Networks(critic_encoder=lambda inputs, key: MLP(inputs, (4,), key))
    spec = Spec(ArraySpec((3,)), Continuous((-1.0,) * 2, (1.0,) * 2, (2,)))
    critics = make_critics(spec, config, networks, KEY)
    assert same(evaluate(drop_units(critics, 0.5, KEY, ROW), *INPUTS), evaluate(critics, *INPUTS))
