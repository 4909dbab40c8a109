"""How A2C acts, with each kind of action; noise that depends on the state; what can be set."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.a2c_cases import SPECS, by_hand_policy, case, every_kind
from tests.algorithms.algorithm_cases import KEY, close, same
from tests.algorithms.by_hand import network, numbers
from understudy.algorithms.a2c import A2C, A2CConfig
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.networks import Networks
from understudy.types import ArraySpec, ConfigError, Discrete, EnvironmentError, Spec


@every_kind
def test_acting(kind):
    made = case(kind)
    policy = made.algorithm.policy(made.state)
    rows = 2 * np.random.default_rng(0).normal(size=(64, 3))
    observation, first = jnp.asarray(rows, jnp.float32), jnp.zeros(64, bool)
    memory = made.algorithm.memory(policy, 64)
    keys = [jax.random.PRNGKey(seed) for seed in (0, 1)]
    calm, kept, _ = made.act(policy, memory, observation, first, keys[0], False)
    assert same(kept, memory) and same(calm, made.mode(observation))
    assert same(calm, made.act(policy, memory, observation, first, keys[1], False)[0])
    drawn = [made.act(policy, memory, observation, first, key, True) for key in keys]
    assert not same(drawn[0][0], drawn[1][0])
    action, _, extras = drawn[0]
    assert action.shape == calm.shape == (64, *made.spec.action.stored.shape)
    assert action.dtype == calm.dtype == made.spec.action.stored.dtype
    again = made.ask("log_prob", observation, action)
    np.testing.assert_allclose(extras["log_prob"], again, rtol=1e-4, atol=1e-5)
    value, log_prob, entropy = made.ask("evaluate_actions", observation, action)
    by_hand = by_hand_policy(
        kind, *[numbers(made.state.params.actor)] * 2, np.asarray(observation), np.asarray(action)
    )
    close((log_prob, entropy), by_hand, 1e-3)
    assert same(value, made.ask("value", observation))


@every_kind
def test_actions_are_drawn_from_the_policy(kind):
    """Frequencies, or mean and spread, of many draws in one state."""
    made = case(kind)
    rows = jnp.asarray(np.tile(np.float32([0.3, -0.5, 1.0]), (4000, 1)))
    policy = made.algorithm.policy(made.state)
    memory = made.algorithm.memory(policy, 4000)
    action = np.asarray(made.act(policy, memory, rows, jnp.zeros(4000, bool), KEY, True)[0])
    weights, one = numbers(made.state.params.actor), np.asarray(rows, np.float64)[:1]
    if kind in ("gaussian", "gsde"):
        center = network(weights[:-1], one)[0]
        _, entropy = by_hand_policy(kind, weights, weights, one, action[:1])
        np.testing.assert_allclose(action.mean(0), center, atol=0.1)
        spread = np.sum(np.log(action.std(0))) + np.log(2 * np.pi * np.e)  # two dimensions
        assert spread == pytest.approx(entropy[0], abs=0.1)
    else:
        for choice in np.unique(action, axis=0):
            log_prob, _ = by_hand_policy(kind, weights, weights, one, choice[None])
            share = np.mean(np.all((action == choice).reshape(4000, -1), axis=1))
            assert share == pytest.approx(np.exp(log_prob[0]), abs=0.03)


def test_state_dependent_noise_is_one_function_until_its_time_is_over():
    """Within an interval equal observations get equal actions; after it, and where an episode
    begins, the function is another one."""
    made = case("gsde", noise_reset_interval=3, horizon=8)
    policy = made.algorithm.policy(made.state)
    memory = made.algorithm.memory(policy, 2)
    observation = jnp.ones((2, 3))
    actions = []
    for step in range(7):
        first = jnp.array([step == 0, step in (0, 4)])
        key = jax.random.PRNGKey(step)
        action, memory, _ = made.act(policy, memory, observation, first, key, True)
        actions.append(np.asarray(action))
    changes = [
        [not np.array_equal(before[env], after[env]) for env in (0, 1)]
        for before, after in itertools.pairwise(actions)
    ]
    assert changes == [
        [False, False],
        [False, False],
        [True, True],  # after three steps
        [False, True],  # the second one's episode begins
        [False, False],
        [True, True],  # three steps after the last common draw
    ]
    assert not np.array_equal(actions[0][0], actions[0][1])  # each environment has its own

    # The noise is linear in the features: what is left of the action without its mean.
    other = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), jnp.float32)
    action, kept, _ = made.act(policy, memory, other, jnp.zeros(2, bool), KEY, True)
    mean, features = jax.jit(lambda actor, seen: actor.mean_and_features(seen))(
        made.state.params.actor, other
    )
    noise = np.einsum("ef,efa->ea", features, memory.matrix)
    np.testing.assert_allclose(np.asarray(action) - np.asarray(mean), noise, rtol=1e-4, atol=1e-5)
    assert same(kept.matrix, memory.matrix)


def test_by_default_noise_lasts_for_a_rollout():
    made = case("gsde", horizon=4)
    policy = made.algorithm.policy(made.state)
    memory, drawn = made.algorithm.memory(policy, 1), []
    for step in range(9):
        key = jax.random.PRNGKey(step)
        _, memory, _ = made.act(policy, memory, jnp.ones((1, 3)), jnp.zeros(1, bool), key, True)
        drawn.append(np.asarray(memory.matrix))
    fresh = [not np.array_equal(a, b) for a, b in itertools.pairwise(drawn)]
    assert fresh == [False, False, False, True] * 2


# -- settings ---------------------------------------------------------------------------------


def test_settings_that_contradict_one_another_are_refused_together():
    with pytest.raises(ConfigError, match=r"critic_hidden_sizes .*; layer_norm .*; noise_reset"):
        A2CConfig(
            share_encoder=True, critic_hidden_sizes=(8,), layer_norm=True, noise_reset_interval=3
        )
    with pytest.raises(ConfigError, match="there is no 'prioritized' here: A2C"):
        A2CConfig(prioritized=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="optimizer must be one of adam, adamw, rmsprop"):
        A2CConfig(optimizer="sgd")


def test_what_it_eats_and_what_moves():
    assert A2CConfig(horizon=7, minibatches=2).needs == RolloutNeeds(7, 2)
    moving = {"learning_rate", "gamma", "gae_lambda", "entropy_coeff", "value_coeff"}
    assert set(A2CConfig().moving()) == moving | {"reward_scale"}
    assert A2CConfig().schedules() == {}
    curve: Any = A2CConfig(anneal_learning_rate=True, learning_rate=0.5).schedules()
    assert [curve["learning_rate"](step, 100) for step in (0, 50, 100)] == [0.5, 0.25, 0.0]


@pytest.mark.parametrize("name", sorted(A2CConfig.presets))
def test_presets_are_good_settings(name):
    assert A2CConfig.preset_name(f"jax:{name}") == name


def test_specs_that_cannot_be_learned_are_refused():
    for spec in SPECS.values():
        A2C().check(spec)  # an unbounded Box too
    image = Spec(ArraySpec((8, 8, 3)), Discrete(2))
    with pytest.raises(EnvironmentError, match="A2C supports vectors of floats"):
        A2C().check(image)
    noisy = A2C(A2CConfig(state_dependent_exploration=True))
    with pytest.raises(ConfigError, match="for continuous actions only"):
        noisy.check(SPECS["discrete"])
    own = Networks(critic_encoder=lambda inputs, key: None)
    with pytest.raises(ConfigError, match="there is no critic_encoder"):
        A2C(A2CConfig(share_encoder=True), networks=own).check(SPECS["discrete"])


def test_weights_begin_orthogonal_with_gains_of_their_own():
    small: dict[str, Any] = dict(hidden_sizes=(4, 4))
    state = A2C(A2CConfig(**small)).init(SPECS["discrete"], KEY)
    hidden = np.asarray(state.params.actor.encoder.layers[1].weight)
    np.testing.assert_allclose(hidden.T @ hidden, 2.0 * np.eye(4), atol=1e-4)
    head, value = (
        np.asarray(state.params.actor.head.weight),
        np.asarray(state.params.critic.head.weight),
    )
    np.testing.assert_allclose(head.T @ head, 1e-4 * np.eye(3), atol=1e-7)
    assert np.sum(value**2) == pytest.approx(1.0, rel=1e-4)
    for kind, given, want in (("gaussian", None, 0.0), ("gsde", None, -2.0), ("gsde", 0.5, 0.5)):
        own = A2CConfig(**small, state_dependent_exploration=kind == "gsde", initial_log_std=given)
        assert np.all(A2C(own).init(SPECS[kind], KEY).params.actor.log_std == want)
