"""Actors are bounded; critics are independent of one another and bend in the action."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.algorithms.sac import SAC, SACConfig
from understudy.networks import (
    DeterministicActor,
    Linear,
    Networks,
    SquashedGaussianActor,
    evaluate_ensemble,
)
from understudy.networks.build import make_actor, make_critics
from understudy.networks.ensembles import ensemble
from understudy.networks.heads import LOG_STD_MAX, LOG_STD_MIN
from understudy.networks.mlp import orthogonal
from understudy.types import ArraySpec, Continuous, Spec

KEY = jax.random.PRNGKey(0)
SPEC = Spec(ArraySpec((3,)), Continuous((-2.0, 0.0), (2.0, 5.0), (2,)))


def config(**settings):
    return SACConfig(hidden_sizes=(8, 8), **settings)


@pytest.fixture(scope="module", params=["kaiming", "orthogonal"])
def critics(request):
    made = config(initialization=request.param, layer_norm=True, num_critics=3)
    return make_critics(SPEC, made, Networks(), KEY)


def test_critics_are_independently_initialized(critics):
    """The trap: an ensemble of clones, whose minimum is no pessimism at all."""
    for path, leaf in jax.tree.leaves_with_path(critics):
        assert leaf.shape[0] == 3
        name = jax.tree_util.keystr(path)
        if "norms" in name or ("bias" in name and np.all(np.asarray(leaf) == 0)):
            continue  # LayerNorm starts at one and zero, orthogonal biases at zero
        for i, j in [(0, 1), (0, 2), (1, 2)]:
            assert not np.any(np.asarray(leaf[i]) == np.asarray(leaf[j])), name
    q = evaluate_ensemble(critics, jnp.ones((4, 3)), jnp.zeros((4, 2)))
    assert q.shape == (3, 4)
    assert np.all(np.std(q, axis=0) > 1e-3)


def test_critics_do_not_start_as_the_actor():
    """Actor and critics draw from different keys in `init`."""
    spec = Spec(ArraySpec((3,)), Continuous((-1.0,), (1.0,), (1,)))
    state = SAC(config()).init(spec, KEY)
    actor = state.params.actor.encoder.layers[1].weight
    for critic in state.params.critic.encoder.layers[1].weight:
        assert not np.any(np.asarray(actor) == np.asarray(critic))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_q_bends_in_the_action(activation):
    """The trap: an action appended at the last layer makes Q affine in it. Then the second
    difference Q(a + h) - 2·Q(a) + Q(a - h) would be zero everywhere."""
    critics = make_critics(SPEC, config(activation=activation), Networks(), KEY)
    steps = jnp.linspace(-1.0, 1.0, 9)
    for dimension in range(2):
        action = jnp.zeros((9, 2)).at[:, dimension].set(steps)
        q = evaluate_ensemble(critics, jnp.full((9, 3), 0.3), action)
        second = np.abs(q[:, 2:] - 2 * q[:, 1:-1] + q[:, :-2])
        # float32 noise is around 1e-7
        assert np.all(second.max(axis=1) > 1e-4)


def test_the_action_and_the_observation_interact():
    """∂²Q/∂s∂a ≠ 0: an action added only at the end would leave the two separate."""
    critic = jax.tree.map(
        lambda x: x[0], make_critics(SPEC, config(activation="tanh"), Networks(), KEY)
    )
    mixed = jax.jacfwd(jax.grad(critic, argnums=1), argnums=0)(jnp.ones(3), jnp.zeros(2))
    assert np.all(np.abs(mixed) > 1e-6)


def test_critic_is_its_formula():
    critic = jax.tree.map(lambda x: x[0], make_critics(SPEC, config(), Networks(), KEY))
    rng = np.random.default_rng(0)
    observation, action = rng.normal(size=(5, 3)), rng.uniform(-1, 1, size=(5, 2))
    x = np.concatenate([observation, action], -1)
    for layer in critic.encoder.layers:
        x = np.maximum(x @ np.asarray(layer.weight) + np.asarray(layer.bias), 0)
    want = (x @ np.asarray(critic.head.weight) + np.asarray(critic.head.bias))[:, 0]
    got = critic(jnp.asarray(observation, jnp.float32), jnp.asarray(action, jnp.float32))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_deterministic_actor_is_bounded(scale):
    actor = make_actor(DeterministicActor, SPEC, config(), Networks(), KEY)
    observation = scale * jax.random.normal(KEY, (100, 3))
    action = np.asarray(actor(observation))
    assert action.shape == (100, 2)
    assert np.all(np.abs(action) <= 1.0) and np.std(action) > 0.01


def test_gaussian_actor_keeps_its_deviation_in_range():
    actor = make_actor(SquashedGaussianActor, SPEC, config(), Networks(), KEY)
    mean, log_std = actor(1e5 * jax.random.normal(KEY, (100, 3)))
    assert mean.shape == log_std.shape == (100, 2)
    assert np.all(log_std >= LOG_STD_MIN) and np.all(log_std <= LOG_STD_MAX)
    assert np.max(np.abs(mean)) > 10.0  # the mean itself is free
    # mean is the head's first half and log_std its second, not interleaved
    features = actor.encoder(jnp.ones((1, 3)))
    both = np.asarray(actor.head(features))[0]
    mean, log_std = actor(jnp.ones((1, 3)))
    np.testing.assert_array_equal(mean[0], both[:2])
    np.testing.assert_array_equal(log_std[0], both[2:])


def test_own_hidden_sizes_are_used():
    made = SACConfig(hidden_sizes=(8,), actor_hidden_sizes=(5, 6), critic_hidden_sizes=(7,))
    actor = make_actor(DeterministicActor, SPEC, made, Networks(), KEY)
    critics = make_critics(SPEC, made, Networks(), KEY)
    assert [layer.weight.shape for layer in actor.encoder.layers] == [(3, 5), (5, 6)]
    assert [layer.weight.shape for layer in critics.encoder.layers] == [(2, 5, 7)]


def test_ensemble_evaluates_every_member():
    made = ensemble(lambda key: Linear(5, 3, key), 4, KEY)
    q = evaluate_ensemble(made, jnp.ones((2, 5)))
    for member in range(4):
        single = jax.tree.map(lambda x, i=member: x[i], made)
        np.testing.assert_allclose(q[member], single(jnp.ones((2, 5))), rtol=1e-6)


def test_orthogonal_weights_of_several_seeds_are_drawn_one_after_another():
    """A decomposition of several matrices at once hung on two CPU cores."""

    def draw(key):
        return orthogonal(key, 3, 4)

    keys = jax.random.split(jax.random.PRNGKey(0), 5)
    together = jax.jit(jax.vmap(draw))
    np.testing.assert_array_equal(together(keys), [draw(key) for key in keys])
    traced = str(jax.make_jaxpr(together)(keys))
    assert re.findall(r"f32\[([\d,]+)\] \w+:f32\[[\d,]+\] = qr", traced) == ["4,3"]


class Doubled(eqx.Module):
    """A user's own hidden layers."""

    def __call__(self, x):
        return 2.0 * x


@pytest.mark.parametrize(
    ("settings", "networks", "repeated"),
    [
        (dict(hidden_sizes=(8, 6)), Networks(), False),
        (dict(hidden_sizes=(8,), layer_norm=True, num_critics=3), Networks(), False),
        (dict(hidden_sizes=()), Networks(), True),
        (dict(), Networks(critic_encoder=lambda inputs, key: Doubled()), True),
    ],
)
def test_several_actions_in_a_state_are_evaluated_as_each_of_them(settings, networks, repeated):
    """The state's product with the first layer is computed once if that layer is the library's."""
    critics = make_critics(SPEC, SACConfig(**settings), networks, KEY)
    rng = np.random.default_rng(0)
    state, actions = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((5, 3), (5, 7, 2)))
    got = jax.jit(evaluate_ensemble)(critics, state, actions)
    states = jnp.asarray(np.repeat(np.asarray(state)[:, None], 7, axis=1))
    np.testing.assert_allclose(
        got, jax.jit(evaluate_ensemble)(critics, states, actions), rtol=1e-5, atol=1e-6
    )
    traced = jax.make_jaxpr(evaluate_ensemble)(critics, state, actions)
    assert ("concatenate" in str(traced)) == repeated
