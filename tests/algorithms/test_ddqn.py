"""DDQN: its losses and gradients by hand, its targets, its ε, and what it refuses."""

import dataclasses
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.algorithms import by_hand
from tests.algorithms.algorithm_cases import (
    KEY,
    changed,
    close,
    compiled,
    gaps_and_steps,
    mapped,
    observed,
    query,
    same,
    settled,
    shards_of,
)
from understudy.agent import agent_class
from understudy.algorithms.base import Algorithm
from understudy.algorithms.ddqn import DDQN, DDQNConfig, losses
from understudy.algorithms.gradients import mean_of_shards
from understudy.networks import Networks
from understudy.ops.schedules import constant, evaluate
from understudy.types import (
    ArraySpec,
    Batch,
    ConfigError,
    Continuous,
    Discrete,
    EnvironmentError,
    MultiDiscrete,
    Spec,
)

CHOICES = 3
SPEC = Spec(ArraySpec((3,)), Discrete(CHOICES))
# tanh: smooth, and no unit is ever dead, so that every weight has a gradient
SMALL: dict[str, Any] = dict(
    hidden_sizes=(4, 4), activation="tanh", learning_rate=1e-2, target_update_interval=1
)


def make_batch(size=8, seed=0):
    """Rewards are wide enough for errors on both sides of Huber's corner."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return Batch(
        observation=normal(size, 3),
        action=jnp.asarray(rng.integers(0, CHOICES, size), jnp.int32),
        reward=jnp.asarray(2.0 * rng.normal(size=size), jnp.float32),
        discount=jnp.asarray(rng.choice([0.0, 0.9, 0.81], size=size), jnp.float32),
        next_observation=normal(size, 3),
        weight=jnp.asarray(rng.uniform(0.5, 1.5, size=size), jnp.float32),
        row=jnp.asarray(np.arange(size), jnp.int32),
    )


class Made:
    """A small learner in a state as after some training: its target is not its network."""

    def __init__(self, settings):
        self.algorithm = DDQN(DDQNConfig(**{**SMALL, **settings}))
        state = settled(self.algorithm.init(SPEC, KEY))
        moved = mapped(lambda x: np.float32(0.2) - np.float32(1.5) * x, state.targets.critic)
        self.state = changed(state, target_critic=moved)
        mask = self.algorithm.update_mask
        self._gradients = jax.jit(lambda s, b, k, i: self.algorithm.gradients(s, b, k, mask(i)))
        self._update = jax.jit(lambda s, b, k, i: self.algorithm.update(s, b, k, mask(i)))

    def gradients(self, state=None, batch=None, key=KEY, index=0):
        return self._gradients(state or self.state, batch or make_batch(), key, jnp.int32(index))

    def update(self, state=None, batch=None, key=KEY, index=0):
        return self._update(state or self.state, batch or make_batch(), key, jnp.int32(index))

    def with_hyper(self, **values):
        hyper = {name: jnp.float32(value) for name, value in values.items()}
        return self.state._replace(hyper={**self.state.hyper, **hyper})


@cache
def made(**settings) -> Made:
    return Made(settings)


# Most tests take one of these, so that they share programs.
THREE: dict[str, Any] = dict(loss="huber", num_critics=3)
SUBSET: dict[str, Any] = dict(num_critics=3, critic_subset=2)
DUELING: dict[str, Any] = dict(num_critics=3, dueling=True)


# -- DDQN once more, in NumPy and float64, one row and one critic at a time -------------------


def members(critics):
    return [[w[i] for w in critics] for i in range(len(critics[0]))]


def target_by_hand(critics, targets, batch):
    answer = []
    for s, r, d in zip(batch.next_observation, batch.reward, batch.discount, strict=True):
        opinions = [by_hand.network(member, s) for member in members(critics)]
        best = max(range(CHOICES), key=lambda a: sum(q[a] for q in opinions))
        answer.append(r + d * min(by_hand.network(member, s)[best] for member in members(targets)))
    return np.array(answer)


def errors_by_hand(critics, batch, target):
    rows = np.arange(len(target))
    return np.stack(
        [
            by_hand.network(member, batch.observation)[rows, batch.action.astype(int)] - target
            for member in members(critics)
        ]
    )


def cost_by_hand(error, kind):
    inside = (np.abs(error) <= 1) | (kind == "squared")
    return np.where(inside, error**2 / 2, np.abs(error) - 0.5)


@pytest.mark.parametrize(
    "kind, num_critics",
    [
        ("huber", 3),
        ("squared", 1),
        pytest.param("huber", 1, marks=pytest.mark.slow),
        pytest.param("squared", 3, marks=pytest.mark.slow),
    ],
)
def test_gradients_are_those_of_central_differences(kind, num_critics):
    one = made(loss=kind, num_critics=num_critics)
    gradients, aux = one.gradients()
    batch, critics = by_hand.wide(make_batch()), by_hand.numbers(one.state.params.critic)
    target = target_by_hand(critics, by_hand.numbers(one.state.targets.critic), batch)

    def loss(weights):
        cost = cost_by_hand(errors_by_hand(weights, batch, target), kind)
        return np.sum(np.mean(batch.weight * cost, axis=1))

    error = errors_by_hand(critics, batch, target)
    assert (np.abs(error) < 1).any() and (np.abs(error) > 1).any()
    assert float(aux.metrics["critic_loss"]) == pytest.approx(loss(critics), rel=1e-4)
    assert float(aux.metrics["q_mean"]) == pytest.approx((error + target).mean(), abs=1e-4)
    assert float(aux.metrics["epsilon"]) == 1.0
    np.testing.assert_allclose(aux.priorities, np.abs(error).mean(0), rtol=1e-4, atol=1e-5)
    want = by_hand.derivative(loss, critics)
    for x, y in zip(by_hand.numbers(gradients.params.critic), want, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-5)
        assert np.all(np.any(y != 0, axis=tuple(range(1, y.ndim))))


class Table(eqx.Module):
    """Q(s, ·) is the row of a table that s names."""

    values: jax.Array

    def __call__(self, observation):
        return self.values[observation[:, 0].astype(int)]


ONLINE = Table(jnp.array([[[1.0, 3.0, 2.0], [5.0, 4.0, 0.0]]]))
TARGET = Table(jnp.array([[[7.0, -1.0, 9.0], [2.0, 8.0, 8.0]]]))
NAPKIN = Batch(
    observation=jnp.array([[0.0], [1.0], [1.0]]),
    action=jnp.array([2, 1, 0], jnp.int32),
    reward=jnp.array([1.0, 2.0, 5.0]),
    discount=jnp.array([0.9, 0.5, 0.0]),
    next_observation=jnp.array([[0.0], [1.0], [0.0]]),
    weight=jnp.ones(3),
    row=jnp.arange(3, dtype=jnp.int32),
)


target_of = jax.jit(losses.critic_target)
loss_of = jax.jit(losses.critic_loss, static_argnums=3)
slope_of = jax.jit(jax.grad(losses.critic_loss, has_aux=True), static_argnums=3)
huber_of = jax.jit(jax.value_and_grad(losses.huber))


def test_the_online_network_chooses_and_the_target_network_values():
    """Plain DQN (max of the target) would give 9.1 and 6; the online value 3.7 and 4.5."""
    got = target_of(ONLINE, TARGET, NAPKIN)
    np.testing.assert_allclose(got, [1 - 0.9, 2 + 0.5 * 2, 5.0], rtol=1e-6)


def test_the_mean_of_critics_chooses_and_the_smallest_target_values():
    # Means in row 0: 2, 1.5, 2.5, so the third action, which neither critic likes best; in row
    # 1: 5, 4, 0. The targets say 9 and 4 to the one, 2 and 3 to the other.
    online = Table(jnp.concatenate([ONLINE.values, jnp.array([[[3.0, 0, 3], [5.0, 4, 0]]])]))
    target = Table(jnp.concatenate([TARGET.values, jnp.array([[[0.0, 0, 4], [3.0, 0, 0]]])]))
    got = target_of(online, target, NAPKIN)
    np.testing.assert_allclose(got, [1 + 0.9 * 4, 2 + 0.5 * 2, 5.0], rtol=1e-6)


def test_losses_on_a_napkin():
    # Q = 2, 4, 5 against 1.5, 1, 5: errors ½, 3, 0
    target = jnp.array([1.5, 1.0, 5.0])
    loss, error = loss_of(ONLINE, NAPKIN, target, losses.huber)
    np.testing.assert_allclose(error, [[0.5, 3.0, 0.0]])
    assert float(loss) == pytest.approx((0.125 + 2.5) / 3)
    loss, _ = loss_of(ONLINE, NAPKIN, target, losses.squared)
    assert float(loss) == pytest.approx((0.125 + 4.5) / 3)
    weighted = NAPKIN._replace(weight=jnp.array([2.0, 1.0, 0.0]))
    loss, _ = loss_of(ONLINE, weighted, target, losses.huber)
    assert float(loss) == pytest.approx((0.25 + 2.5) / 3)
    slope, _ = slope_of(ONLINE, NAPKIN, target, losses.huber)
    # eq. 1, with the pull of the large error cut at 1, and only what was done is moved
    np.testing.assert_allclose(slope.values, [[[0, 0, 0.5 / 3], [0, 1 / 3, 0]]], rtol=1e-6)


@given(st.floats(-100, 100, width=32))
def test_huber_is_a_square_that_becomes_a_line(error):
    value, slope = huber_of(jnp.float32(error))
    assert float(slope) == pytest.approx(max(-1.0, min(1.0, error)), abs=1e-6)
    assert float(value) == pytest.approx(cost_by_hand(error, "huber"), rel=1e-5, abs=1e-30)


def test_update_is_apply_after_gradients():
    one = made(**THREE)
    assert DDQN.update is Algorithm.update
    gradients, aux = one.gradients()
    new, update_aux = one.update()
    close(compiled(one.algorithm, "apply")(one.state, gradients), new, 1e-5)
    close(aux, update_aux, 1e-5)


def test_mean_of_the_shards_is_the_whole():
    """With critics drawn at random too: every shard must ask the same ones."""
    one, batch = made(**SUBSET), make_batch()
    whole, whole_aux = one.gradients(batch=batch)
    shards = [one.gradients(batch=shard) for shard in shards_of(batch)]
    close(mean_of_shards([jax.device_get(gradients) for gradients, _ in shards]), whole, 1e-5)
    priorities = np.concatenate([aux.priorities for _, aux in shards])
    np.testing.assert_allclose(priorities, whole_aux.priorities, rtol=1e-4, atol=1e-5)


def test_rows_that_are_no_steps_count_nowhere():
    one = made(**SUBSET)
    answers = [one.gradients(batch=batch) for batch in gaps_and_steps(make_batch())]
    (with_gaps, gaps_aux), (alone, alone_aux) = answers
    close(with_gaps._replace(mask=None), alone._replace(mask=None), 1e-5)
    close(gaps_aux.metrics, alone_aux.metrics, 1e-5)


def test_the_subset_of_critics_is_drawn_anew():
    """Of three critics there are three pairs."""
    one = made(**SUBSET)
    keys = np.asarray(jax.random.split(KEY, 24))
    seen = {np.asarray(one.gradients(key=jnp.asarray(key))[1].priorities).tobytes() for key in keys}
    assert len(seen) == 3


def test_everything_in_the_state_changes():
    """All but the hyper-parameters and the key, which the engine moves."""
    one = made(**DUELING)
    state = one.state
    for index in range(3):
        state, _ = one.update(state, make_batch(seed=index), jax.random.PRNGKey(index), index)
    pairs = zip(jax.tree.leaves_with_path(one.state), jax.tree.leaves(state), strict=True)
    for (path, before), after in pairs:
        constant = str(path[0]) in (".hyper", ".key")
        assert np.array_equal(before, after) == constant, jax.tree_util.keystr(path)
        assert np.all(np.isfinite(after))


def test_the_target_is_copied_when_due_and_stands_still_otherwise():
    one = made(target_update_interval=3, tau=0.1)
    assert DDQNConfig().tau == 1.0
    state = one.with_hyper(tau=1.0)
    for index in range(4):
        new, _ = one.update(state, index=index)
        assert same(
            new.targets.critic, new.params.critic if index % 3 == 0 else one.state.targets.critic
        )
    assert one.algorithm.delays.period == 3
    assert (
        made(**THREE).algorithm.update_mask(jnp.int32(1)).targets is True
    )  # no conditional at all


def test_the_target_may_follow_slowly():
    one = made(target_update_interval=3, tau=0.1)
    new, _ = one.update()
    old, online = by_hand.numbers(one.state.targets.critic), by_hand.numbers(new.params.critic)
    want = [0.9 * x + 0.1 * y for x, y in zip(old, online, strict=True)]
    close(new.targets.critic, want, 1e-6)


def test_a_fresh_state():
    state = DDQN(DDQNConfig(**SMALL, **THREE, initial_epsilon=0.7)).init(SPEC, KEY)
    assert same(state.targets.critic, state.params.critic)
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(pointers)) == len(pointers)  # donated buffers must not be shared
    assert float(state.hyper["epsilon"]) == pytest.approx(0.7)


def act(algorithm, policy, observation, key, explore):
    first = jnp.zeros(len(observation), bool)
    return compiled(algorithm, "act")(policy, (), observation, first, key, explore)


def test_acting_is_greedy_without_exploration():
    one = made(**THREE)
    policy = one.algorithm.policy(one.state)  # ε = 1: were it heeded, this would be random
    observation = jnp.asarray(3 * np.random.default_rng(0).normal(size=(6000, 3)), jnp.float32)
    action, memory, _ = act(one.algorithm, policy, observation, KEY, False)
    q = [by_hand.network(m, observation) for m in members(by_hand.numbers(one.state.params.critic))]
    assert np.array_equal(action, np.mean(q, axis=0).argmax(-1)) and memory == ()
    assert action.dtype == jnp.int32 and len(set(np.asarray(action).tolist())) > 1


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_exploring_takes_epsilon_from_the_policy(epsilon):
    """A random action is the greedy one, too, once in three times."""
    one = made(**THREE)
    policy = one.algorithm.policy(one.with_hyper(epsilon=epsilon))
    observation = jnp.asarray(np.tile(np.float32([[0.3, -1.0, 0.5]]), (6000, 1)))
    calm, _, _ = act(one.algorithm, policy, observation, KEY, False)
    action, _, _ = act(one.algorithm, policy, observation, KEY, True)
    other = np.mean(np.asarray(action) != np.asarray(calm))
    assert other == pytest.approx(epsilon * (CHOICES - 1) / CHOICES, abs=0.025 * (epsilon > 0))
    assert np.all((np.asarray(action) >= 0) & (np.asarray(action) < CHOICES))


@pytest.mark.parametrize("kind, halfway", [("linear", 0.505), ("exponential", 0.1)])
def test_epsilon_falls_to_its_floor(kind, halfway):
    config = DDQNConfig(final_epsilon=0.01, epsilon_decay_steps=2_000, epsilon_schedule=kind)
    curve = config.schedules()["epsilon"]
    got = [evaluate(curve, step, 10**6) for step in (0, 1_000, 2_000, 10**6)]
    np.testing.assert_allclose(got, [1.0, halfway, 0.01, 0.01], rtol=1e-6)
    both = dataclasses.replace(config, prioritized=True).schedules()
    assert set(both) == {"epsilon", "importance_exponent"}


def test_epsilon_moves_by_itself_by_schedule_and_by_hand():
    config = DDQNConfig(**SMALL, start_steps=10, min_buffer_size=20, epsilon_decay_steps=100)

    def epsilon(agent):
        return float(agent.trainer.policy().epsilon[0])

    agent = agent_class("ddqn")("jax:CartPole-v1", config)
    agent.train(51, progress=False)
    assert epsilon(agent) == pytest.approx(1 - 0.95 * 50 / 100, rel=1e-5)  # of the last step
    agent.train(20, schedules={"epsilon": constant(0.25)}, progress=False)
    assert epsilon(agent) == 0.25
    agent.set(epsilon=0.125)
    agent.train(20, progress=False)
    assert epsilon(agent) == 0.125
    with pytest.raises(ConfigError, match="epsilon must be between 0 and 1"):
        agent.set(epsilon=1.5)
    agent.close()


def test_dueling_has_streams_of_its_own_and_the_same_face():
    one = made(**DUELING)
    assert jax.tree.structure(one.state.params.critic) != jax.tree.structure(
        made(**THREE).state.params.critic
    )
    observation = make_batch().observation
    each = [jnp.asarray(np.full(8, action, np.int32)) for action in range(CHOICES)]
    ask = compiled(one.algorithm, "q_values")
    q = np.stack([ask(one.state, observation, a) for a in each], axis=-1)
    assert q.shape == (3, 8, CHOICES)
    value = compiled(one.algorithm, "value")(one.state, observation)
    np.testing.assert_allclose(value, q.mean(0).max(-1), rtol=1e-5)


SCREEN = ArraySpec((4, 84, 84), "uint8", frames=4)
BOARD = ArraySpec((10, 10, 4), "bool")


@pytest.mark.parametrize(
    "preset, seen, features", [("atari", SCREEN, 512), ("MinAtar", BOARD, 128)]
)
def test_the_presets_of_images_have_wide_streams(preset, seen, features):
    """Of 512 units each (Wang et al., 2016); without streams the head reads the encoder."""

    def shapes(**settings):
        config = DDQNConfig(**DDQNConfig.presets[preset], **settings)
        made = jax.eval_shape(lambda key: DDQN(config).init(Spec(seen, Discrete(6)), key), KEY)
        encoder, members = made.params.critic.observation_encoder, made.params.critic.members
        assert jax.tree.leaves(encoder)[-2].shape[-1] == features
        return members, sorted(leaf.shape for leaf in jax.tree.leaves(members))

    _, plain = shapes()
    assert plain == [(1, 6), (1, features, 6)]
    critic, dueling = shapes(dueling=True)
    stream = [(1, 512), (1, features, 512)]
    assert dueling == sorted([*stream, *stream, (1, 1), (1, 512, 1), (1, 6), (1, 512, 6)])
    assert critic.value.weight.shape == (1, 512, 1)


def test_questions_and_acting_see_observations_as_the_networks_do():
    one = made(normalize_observations=True, num_critics=3)
    rows, action = np.asarray(make_batch(64).observation) * 30.0 + 50.0, make_batch(64).action
    calm, rows = jnp.asarray((rows - rows.mean(0)) / rows.std(0)), jnp.asarray(rows)
    seen = observed(one.state, rows)
    want = compiled(one.algorithm, "q_values")(one.state, calm, action)
    got = query(one.algorithm, SPEC, "q_values", seen, rows, action)
    np.testing.assert_allclose(got, want, rtol=1e-3)
    greedy = act(one.algorithm, one.algorithm.policy(seen), rows, KEY, False)[0]
    assert len(np.unique(greedy)) > 1
    best = query(one.algorithm, SPEC, "q_values", seen, rows, greedy).mean(0)
    value = query(one.algorithm, SPEC, "value", seen, rows)
    np.testing.assert_allclose(value, best, rtol=1e-6)


def test_what_ddqn_refuses():
    with pytest.raises(ConfigError, match="DDQN has no actor for loss add-ons"):
        DDQN(loss_addons=(lambda actor, batch, key: (jnp.float32(0.0), {}),))
    with pytest.raises(ConfigError, match=r"final_epsilon .* is larger than initial_epsilon"):
        DDQNConfig(initial_epsilon=0.1, final_epsilon=0.5)
    with pytest.raises(ConfigError, match="exponential epsilon_schedule never reaches"):
        DDQNConfig(final_epsilon=0.0, epsilon_schedule="exponential")
    with pytest.raises(ConfigError, match="loss must be one of huber, squared"):
        DDQNConfig(loss="hubert")
    algorithm = made(**THREE).algorithm
    algorithm.check(SPEC)
    box = Continuous((-1.0,), (1.0,), (1,))
    for action in (box, MultiDiscrete((2, 3), (0, 0), (2,))):
        with pytest.raises(EnvironmentError, match="DDQN needs Discrete actions"):
            algorithm.check(Spec(SPEC.observation, action))


@pytest.mark.parametrize("dueling", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_own_encoders_take_the_critics_place(dueling):
    networks = Networks(critic_encoder=lambda inputs, key: eqx.nn.Linear(inputs, 7, key=key))
    algorithm = DDQN(DDQNConfig(**SMALL, dueling=dueling), networks=networks)

    @jax.jit
    def begin_and_update(batch):
        state = algorithm.init(SPEC, KEY)
        return state, *algorithm.update(state, batch, KEY, algorithm.update_mask(0))

    state, new, aux = begin_and_update(make_batch())
    assert np.isfinite(aux.metrics["critic_loss"])
    assert not same(new.params.critic, state.params.critic)


REPLAY = dict(prioritized=True, n_step=3)
NORMALIZED = dict(
    normalize_observations=True, normalize_rewards=True, num_critics=2, critic_subset=1
)
SELDOM = dict(dueling=True, update_every=4, updates_per_step=0.5)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({**REPLAY, **NORMALIZED, **SELDOM}, id="all", marks=pytest.mark.slow),
        pytest.param(REPLAY, id="prioritized", marks=pytest.mark.slow),
        pytest.param(NORMALIZED, id="normalized", marks=pytest.mark.slow),
        pytest.param(SELDOM, id="dueling", marks=pytest.mark.slow),
    ],
)
def test_it_trains_on_a_real_environment(settings):
    small = dict(start_steps=30, min_buffer_size=50, batch_size=16, buffer_size=200)
    config = DDQNConfig(**SMALL, **small, **settings)
    agent = agent_class("ddqn")("CartPole-v1", config, num_seeds=2)
    before = agent.get_weights()
    agent.train(120, progress=False)
    after = agent.get_weights()
    assert set(after) == {"critic"}
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert np.all(np.isfinite(y)) and not np.array_equal(x, y)
    observation = np.zeros((3, 4), np.float32)
    critics = settings.get("num_critics", 1)
    assert agent.q_values(observation, [0, 1, 1]).shape == (critics, 3)
    assert agent.value(observation).shape == (3,)
    agent.close()
