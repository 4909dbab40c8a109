"""DDPG: losses on a napkin, gradients in float64, the protocol, and noise that lingers."""

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms import by_hand
from tests.algorithms.algorithm_cases import (
    KEY,
    SMALL,
    SPEC,
    changed,
    close,
    compiled,
    distinct_targets,
    gaps_and_steps,
    make_batch,
    mapped,
    observed,
    parts_of,
    query,
    same,
    shards_of,
)
from tests.algorithms.test_losses_by_hand import BATCH, CRITICS, TARGET, Fixed
from understudy.algorithms.base import Algorithm
from understudy.algorithms.ddpg import DDPG, DDPGConfig, losses
from understudy.algorithms.gradients import mean_of_shards
from understudy.algorithms.td3 import losses as td3_losses
from understudy.types import ArraySpec, ConfigError, Continuous, Discrete, EnvironmentError, Spec


@cache
def made(**settings) -> tuple[Any, Any]:
    """A small agent, and its state as after some training."""
    algorithm: Any = DDPG(DDPGConfig(**{**SMALL, **settings}))
    return algorithm, distinct_targets(algorithm.init(SPEC, KEY))


@cache
def program(algorithm, what):
    function = getattr(algorithm, what)
    return jax.jit(lambda s, b, k, i: function(s, b, k, algorithm.update_mask(i)))


def gradients_of(algorithm, state, batch=None, key=KEY, index=0):
    batch = make_batch() if batch is None else batch
    return program(algorithm, "gradients")(state, batch, key, jnp.int32(index))


def updated(algorithm, state, batch=None, key=KEY, index=0):
    batch = make_batch() if batch is None else batch
    return program(algorithm, "update")(state, batch, key, jnp.int32(index))


def agree(got, want):
    for x, y in zip(by_hand.numbers(got), want, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-5)


# -- losses -----------------------------------------------------------------------------------


def test_target_on_a_napkin():
    # at (.5, −.9): Q₁ = .5 − 1.8 + 1 = −.3, Q₂ = .4 + .5 = .9; the last row terminated
    target_of = jax.jit(losses.critic_target)
    got = target_of(Fixed(jnp.array([0.5, -0.9])), CRITICS, BATCH)
    np.testing.assert_allclose(got, [1 - 0.9 * 0.3, 2 - 0.5 * 0.3, 5.0], rtol=1e-6)
    second = mapped(lambda x: x[1:], CRITICS)
    alone = target_of(Fixed(jnp.array([0.5, -0.9])), second, BATCH)
    np.testing.assert_allclose(alone, [1 + 0.9 * 0.9, 2 + 0.5 * 0.9, 5.0], rtol=1e-6)


def test_losses_on_a_napkin():
    # Q₁ = 1, 2, 3 and Q₂ = ½, −½, −½ against .73, 2.15, 5; weights 1, 2, 0
    weighted = BATCH._replace(weight=jnp.array([1.0, 2.0, 0.0]))
    loss, error = jax.jit(losses.critic_loss)(CRITICS, weighted, TARGET)
    np.testing.assert_allclose(error, [[0.27, -0.15, -2.0], [-0.23, -2.65, -5.5]], rtol=1e-5)
    want = (0.0729 + 2 * 0.0225 + 0.0529 + 2 * 7.0225) / 3
    assert float(loss) == pytest.approx(want, rel=1e-5)
    first = mapped(lambda x: x[0], CRITICS)
    actor = Fixed(jnp.array([0.5, -0.9]))
    value, gradient = jax.jit(jax.value_and_grad(losses.actor_loss))(actor, first, weighted)
    assert float(value) == pytest.approx(0.3, rel=1e-5)
    np.testing.assert_allclose(gradient.answer, [-1.0, -2.0], rtol=1e-6)


def test_td3_without_smoothing_has_the_same_target():
    _, state = made(num_critics=3)
    networks = (state.targets.actor, state.targets.critic, make_batch())
    zero, noise = jnp.float32(0.0), jnp.ones((8, 2))
    theirs = jax.jit(td3_losses.critic_target)(*networks, zero, zero, noise)
    ours = jax.jit(losses.critic_target)(*networks)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


# -- whole gradients against float64 ----------------------------------------------------------


def target_by_hand(state, actor="target_actor", critic="target_critic"):
    networks = (by_hand.numbers(parts_of(state)[name]) for name in (actor, critic))
    return by_hand.td3_target(*networks, by_hand.wide(make_batch()), 0.0, 0.0, np.zeros((8, 2)))


@pytest.mark.parametrize("num_critics", [1, 3])
def test_critic(num_critics):
    algorithm, state = made(num_critics=num_critics)
    gradients, aux = gradients_of(algorithm, state)
    batch, critics = by_hand.wide(make_batch()), by_hand.numbers(state.params.critic)
    target = target_by_hand(state)

    def loss(weights):
        return by_hand.squared_error(weights, batch, target)

    assert float(aux.metrics["critic_loss"]) == pytest.approx(loss(critics), rel=1e-4)
    agree(gradients.params.critic, by_hand.derivative(loss, critics))
    q = by_hand.all_q(critics, batch.observation, batch.action)
    assert q.shape == (num_critics, 8)
    np.testing.assert_allclose(aux.priorities, np.abs(q - target).mean(0), rtol=1e-4)
    assert float(aux.metrics["q_mean"]) == pytest.approx(q.mean(), rel=1e-3)


@pytest.mark.parametrize("wrong", [{"actor": "actor"}, {"critic": "critic"}])
def test_both_targets_are_in_the_target(wrong):
    algorithm, state = made(num_critics=1)
    batch = by_hand.wide(make_batch())
    q = by_hand.all_q(by_hand.numbers(state.params.critic), batch.observation, batch.action)
    other = np.abs(q - target_by_hand(state, **wrong)).mean(0)
    got = np.asarray(gradients_of(algorithm, state)[1].priorities)
    assert np.max(np.abs(got - other)) > 1e-2


@pytest.mark.parametrize("num_critics", [1, 3])
def test_actor(num_critics):
    """The first critic's opinion of the action, and a gradient for every weight."""
    algorithm, state = made(num_critics=num_critics)
    gradients, aux = gradients_of(algorithm, state)
    batch, critics = by_hand.wide(make_batch()), by_hand.numbers(state.params.critic)

    def loss(weights):
        return by_hand.td3_actor_loss(weights, critics, batch)

    actor = by_hand.numbers(state.params.actor)
    assert float(aux.metrics["actor_loss"]) == pytest.approx(loss(actor), rel=1e-4)
    agree(gradients.params.actor, by_hand.derivative(loss, actor))
    assert all(np.all(np.abs(leaf) > 1e-9) for leaf in by_hand.numbers(gradients.params.actor))


def test_a_drawn_critic_speaks_for_all():
    """Of three critics one is drawn per update: the target is one of three, each now and then."""
    algorithm, state = made(num_critics=3, critic_subset=1)
    batch = by_hand.wide(make_batch())
    q = by_hand.all_q(by_hand.numbers(state.params.critic), batch.observation, batch.action)
    actor, critics = map(by_hand.numbers, state.targets)
    noise = np.zeros((8, 2))
    alone = [
        by_hand.td3_target(actor, [w[i : i + 1] for w in critics], batch, 0.0, 0.0, noise)
        for i in range(3)
    ]
    expected = np.stack([np.abs(q - target).mean(0) for target in alone])
    seen = set()
    for seed in range(20):
        got = gradients_of(algorithm, state, key=jax.random.PRNGKey(seed))[1].priorities
        distance = np.abs(expected - np.asarray(got)).max(axis=1)
        assert distance.min() < 1e-4
        seen.add(int(distance.argmin()))
    assert seen == {0, 1, 2}


# -- the protocol -----------------------------------------------------------------------------


def test_update_is_apply_after_gradients():
    algorithm, state = made(num_critics=1)
    assert type(algorithm).update is Algorithm.update
    gradients, aux = gradients_of(algorithm, state)
    new, update_aux = updated(algorithm, state)
    close(compiled(algorithm, "apply")(state, gradients), new, 1e-5)
    close(aux, update_aux, 1e-5)


@pytest.mark.parametrize("subset", [1, pytest.param(None, marks=pytest.mark.slow)])
def test_mean_of_the_shards_is_the_whole(subset):
    algorithm, state = made(num_critics=3, critic_subset=subset)
    batch = make_batch()
    whole, whole_aux = gradients_of(algorithm, state)
    shards = [gradients_of(algorithm, state, shard) for shard in shards_of(batch)]
    mean = mean_of_shards([jax.device_get(gradients) for gradients, _ in shards])
    close(mean._replace(mask=None), whole._replace(mask=None), 1e-5)
    priorities = np.concatenate([aux.priorities for _, aux in shards])
    np.testing.assert_allclose(priorities, whole_aux.priorities, rtol=1e-4, atol=1e-5)


def test_rows_that_are_no_steps_count_nowhere():
    algorithm, state = made(num_critics=3)
    answers = [gradients_of(algorithm, state, batch) for batch in gaps_and_steps(make_batch())]
    (with_gaps, gaps_aux), (alone, alone_aux) = answers
    close(with_gaps._replace(mask=None), alone._replace(mask=None), 1e-5)
    close(gaps_aux.metrics, alone_aux.metrics, 1e-5)


def test_everything_in_the_state_changes():
    algorithm, state = made(num_critics=1)
    new = state
    for index in range(3):
        new, _ = updated(algorithm, new, make_batch(seed=index), index=index)
    pairs = zip(jax.tree.leaves_with_path(state), jax.tree.leaves_with_path(new), strict=True)
    for (path, before), (_, after) in pairs:
        constant = str(path[0]) in (".hyper", ".key")
        assert np.array_equal(before, after) == constant, jax.tree_util.keystr(path)
        assert np.all(np.isfinite(after))


@pytest.mark.parametrize("index", range(4))
def test_targets_move_a_fraction_tau_when_it_is_their_turn(index):
    algorithm, state = made(target_update_interval=3, tau=0.2)
    new, _ = updated(algorithm, state, index=index)
    assert not same(new.params.actor, state.params.actor)
    assert not same(new.params.critic, state.params.critic)
    for name in ("actor", "critic"):
        old, now = getattr(state.targets, name), getattr(new.targets, name)
        if index % 3:
            assert same(old, now)
        else:
            want = mapped(lambda t, n: 0.8 * t + 0.2 * n, old, getattr(new.params, name))
            close(now, want, 1e-5)


def test_actor_and_critic_have_step_sizes_of_their_own():
    """Adam's first step is as long as its step size, whatever the gradient."""
    _, state = made(actor_learning_rate=0.02, critic_learning_rate=0.003)
    new, _ = updated(made(num_critics=1)[0], state)  # step sizes live in the state
    for name, step in (("actor", 0.02), ("critic", 0.003)):
        moved = mapped(lambda x, y: x - y, getattr(new.params, name), getattr(state.params, name))
        for leaf in jax.tree.leaves(moved):
            np.testing.assert_allclose(np.abs(leaf), step, rtol=1e-2)


def test_a_fresh_state_has_targets_of_its_own():
    algorithm = DDPG(DDPGConfig(**SMALL))
    state = algorithm.init(SPEC, KEY)
    assert same(state.targets.critic, state.params.critic) and same(
        state.targets.actor, state.params.actor
    )
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(pointers)) == len(pointers)
    q = jax.eval_shape(algorithm.q_values, state, jnp.ones((4, 3)), jnp.zeros((4, 2)))
    assert q.shape == (1, 4)


def test_observations_are_normalized_wherever_networks_see_them():
    algorithm, plain = made(normalize_observations=True)
    other, without = made(num_critics=1)
    rows = (5.0 + 2.0 * np.random.default_rng(0).normal(size=(50, 3))).astype(np.float32)
    scaled = jnp.asarray((rows - np.mean(rows, axis=0)) / np.std(rows, axis=0))
    rows, action = jnp.asarray(rows), jnp.zeros((50, 2))
    state = observed(plain, rows)
    got = query(algorithm, SPEC, "q_values", state, rows, action)
    want = compiled(other, "q_values")(without, scaled, action)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    acted, _, _ = compiled(algorithm, "act")(
        algorithm.policy(state), (), rows, jnp.zeros(50, bool), KEY, False
    )
    want = by_hand.network(by_hand.numbers(without.params.actor), np.asarray(scaled, np.float64))
    np.testing.assert_allclose(acted, np.tanh(want), rtol=1e-3, atol=1e-4)


def test_specs_and_settings_that_make_no_sense_are_refused():
    algorithm, _ = made(num_critics=1)
    algorithm.check(SPEC)
    infinite = Continuous((-1.0, -np.inf), (1.0, np.inf), (2,))
    for spec, words in [
        (Spec(SPEC.observation, Discrete(3)), "needs continuous"),
        (Spec(SPEC.observation, infinite), "bounded"),
        (Spec(ArraySpec((8, 8, 3)), SPEC.action), "supports vectors of floats"),
    ]:
        with pytest.raises(EnvironmentError, match=words):
            algorithm.check(spec)
    for settings, words in [
        (dict(noise="ornstein"), "did you mean 'ornstein_uhlenbeck'"),
        (dict(noise_theta=0.0), "above 0"),
        (dict(noise_theta=1.5), "at most 1"),
        (dict(exploration_noise=-0.1), "at least 0"),
        (dict(critic_subset=2), "larger than num_critics 1"),
    ]:
        with pytest.raises(ConfigError, match=words):
            DDPGConfig(**settings)


@pytest.mark.parametrize("name", DDPGConfig.presets)
def test_presets_differ_from_the_defaults(name):
    config, found = DDPGConfig.preset(f"jax:{name}"), DDPGConfig.preset_name(f"jax:{name}")
    assert found == name
    defaults = dataclasses.asdict(DDPGConfig())
    assert any(getattr(config, key) != defaults[key] for key in DDPGConfig.presets[name])


# -- exploration ------------------------------------------------------------------------------


def still(algorithm, state, **hyper):
    """A policy whose actor says 0 everywhere: what remains is noise."""
    moved = {name: jnp.float32(value) for name, value in hyper.items()}
    hyper = {**state.hyper, **moved}
    state = changed(state, actor=mapped(np.zeros_like, state.params.actor), hyper=hyper)
    return algorithm.policy(state)


def walk(algorithm, policy, envs, steps, first=None):
    """Actions [steps, envs, 2] of exploring; `first` marks rows that restart at step 1."""
    act = compiled(algorithm, "act")
    memory, actions = compiled(algorithm, "memory")(policy, envs), []
    for step in range(steps):
        key = jax.random.PRNGKey(step)
        start = jnp.ones(envs, bool) if step == 0 else jnp.zeros(envs, bool)
        start = first if step == 1 and first is not None else start
        action, memory, _ = act(policy, memory, jnp.zeros((envs, 3)), start, key, True)
        actions.append(np.asarray(action, np.float64))
    return np.stack(actions)


@pytest.mark.parametrize("noise", ["gaussian", "ornstein_uhlenbeck"])
def test_deterministic_acting_is_noise_free_and_exploring_is_bounded(noise):
    algorithm, state = made(noise=noise, exploration_noise=2.0)
    policy, act = algorithm.policy(state), compiled(algorithm, "act")
    rows = 3 * np.random.default_rng(0).normal(size=(64, 3))
    observation, first = jnp.asarray(rows, jnp.float32), jnp.ones(64, bool)
    memory = algorithm.memory(policy, 64)
    keys = [jax.random.PRNGKey(seed) for seed in (0, 1)]
    calm, kept, _ = act(policy, memory, observation, first, keys[0], False)
    assert same(kept, memory)
    assert same(calm, act(policy, memory, observation, first, keys[1], False)[0])
    answer = jax.jit(lambda actor: actor(observation))(state.params.actor)
    np.testing.assert_allclose(calm, answer, rtol=1e-6)
    one, two = (act(policy, memory, observation, first, key, True)[0] for key in keys)
    assert one.shape == (64, 2) and np.abs(one).max() == 1.0 and not same(one, two)


@pytest.mark.parametrize("noise", ["gaussian", "ornstein_uhlenbeck"])
@pytest.mark.parametrize("sigma", [0.1, 0.25])
def test_noise_has_the_asked_for_deviation_at_every_step(noise, sigma):
    algorithm, state = made(noise=noise)
    actions = walk(algorithm, still(algorithm, state, exploration_noise=sigma), 4_000, 4)
    np.testing.assert_allclose(actions.std(axis=(1, 2)), sigma, rtol=0.04)
    np.testing.assert_allclose(actions.mean(axis=(1, 2)), 0.0, atol=0.05 * sigma)


@pytest.mark.parametrize(
    "noise, theta, want",
    [
        ("gaussian", 0.15, 0.0),
        ("ornstein_uhlenbeck", 0.15, 0.85),
        ("ornstein_uhlenbeck", 0.6, 0.4),
        ("ornstein_uhlenbeck", 1.0, 0.0),
    ],
)
def test_how_long_noise_lingers(noise, theta, want):
    algorithm, state = made(noise=noise)
    actions = walk(algorithm, still(algorithm, state, noise_theta=theta), 4_000, 3)
    for later, correlation in ((1, want), (2, want**2)):
        got = np.corrcoef(actions[0].ravel(), actions[later].ravel())[0, 1]
        assert got == pytest.approx(correlation, abs=0.04)


def test_lingering_noise_restarts_with_an_episode_and_only_there():
    algorithm, state = made(noise="ornstein_uhlenbeck")
    begun = jnp.asarray(np.arange(4_000) % 2 == 0)
    policy = still(algorithm, state, noise_theta=0.01)
    before, after = walk(algorithm, policy, 4_000, 2, begun)
    begun = np.asarray(begun)
    fresh = np.corrcoef(before[begun].ravel(), after[begun].ravel())[0, 1]
    same_episode = np.corrcoef(before[~begun].ravel(), after[~begun].ravel())[0, 1]
    assert abs(fresh) < 0.05 and same_episode > 0.98
    assert after[begun].std() == pytest.approx(0.1, rel=0.05)  # not from zero


def test_a_deviation_that_moves_counts_at_once():
    """Memory is free of scale: quieter noise is the same noise, smaller, from this step on."""
    algorithm, state = made(noise="ornstein_uhlenbeck")
    loud, quiet = (still(algorithm, state, exploration_noise=s) for s in (0.2, 0.05))
    memory = jnp.asarray(0.5 * np.random.default_rng(0).normal(size=(16, 2)), jnp.float32)
    rows, first = jnp.zeros((16, 3)), jnp.zeros(16, bool)
    act = compiled(algorithm, "act")
    one, kept, _ = act(loud, memory, rows, first, KEY, True)
    two, also_kept, _ = act(quiet, memory, rows, first, KEY, True)
    np.testing.assert_allclose(two, 0.25 * np.asarray(one), rtol=1e-5)
    assert same(kept, also_kept) and not same(kept, memory)


def test_memory_is_there_only_for_noise_that_lingers():
    gaussian, state = made(num_critics=1)
    assert gaussian.memory(gaussian.policy(state), 5) == ()
    lingering, state = made(noise="ornstein_uhlenbeck")
    memory = lingering.memory(lingering.policy(state), 5)
    assert memory.shape == (5, 2) and not np.any(memory)
