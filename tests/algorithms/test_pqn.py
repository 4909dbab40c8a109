"""PQN: its targets, loss and gradient by hand, rows without a step, ε, and what it refuses."""

from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algorithms.algorithm_cases import (
    KEY,
    changed,
    close,
    compiled,
    mapped,
    observed,
    query,
    same,
    settled,
)
from tests.algorithms.by_hand import derivative, network, numbers
from understudy.agent import agent_class
from understudy.algorithms import rollouts
from understudy.algorithms.base import Algorithm
from understudy.algorithms.ddqn import losses as ddqn_losses
from understudy.algorithms.gradients import mean_of_shards
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.algorithms.pqn import PQN, PQNConfig, losses
from understudy.algorithms.pqn.losses import Prepared
from understudy.ops.schedules import constant, evaluate
from understudy.types import (
    ArraySpec,
    Batch,
    ConfigError,
    Continuous,
    Discrete,
    EnvironmentError,
    Spec,
    Trajectory,
)

CHOICES, TIME, ENVS = 3, 6, 2
SPEC = Spec(ArraySpec((3,)), Discrete(CHOICES))
# tanh without LayerNorm: the network that tests/algorithms/by_hand.py computes
SMALL: dict[str, Any] = dict(
    hidden_sizes=(4, 4), activation="tanh", layer_norm=False, learning_rate=1e-2, gamma=0.9
)


def make_rollout(valid=None):
    """Steps of which one is truncated and one terminated."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=(TIME, ENVS, *shape)), jnp.float32)

    last, terminated = np.zeros((2, TIME, ENVS), bool)
    last[3, 0] = last[2, 1] = terminated[2, 1] = True
    return Trajectory(
        observation=normal(3),
        action=jnp.asarray(rng.integers(0, CHOICES, (TIME, ENVS)), jnp.int32),
        reward=normal(),
        discount=jnp.asarray(0.9 * ~terminated, jnp.float32),
        last=jnp.asarray(last),
        next_observation=normal(3),
        valid=jnp.ones((TIME, ENVS), bool) if valid is None else jnp.asarray(valid),
    )


class Made:
    """A small PQN with its functions compiled once, and weights that all matter."""

    def __init__(self, config):
        self.algorithm = PQN(PQNConfig(**{**SMALL, **config}))
        state, rng = settled(self.algorithm.init(SPEC, KEY)), np.random.default_rng(7)
        moved = mapped(
            lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32), state.params.critic
        )
        self.state = changed(state, critic=moved)
        self.prepare = compiled(self.algorithm, "prepare")
        mask = self.algorithm.update_mask(0)
        self._gradients = jax.jit(lambda s, b: self.algorithm.gradients(s, b, KEY, mask))
        self._update = jax.jit(lambda s, b: self.algorithm.update(s, b, KEY, mask))

    def batch(self, rollout=None, state=None):
        return self.prepare(state or self.state, rollout or make_rollout())

    def gradients(self, batch=None):
        return self._gradients(self.state, self.batch() if batch is None else batch)

    def update(self, batch=None):
        return self._update(self.state, self.batch() if batch is None else batch)

    def with_hyper(self, **values):
        hyper = {name: jnp.float32(value) for name, value in values.items()}
        return self.state._replace(hyper={**self.state.hyper, **hyper})

    def weights(self):
        return [weight[0] for weight in numbers(self.state.params.critic)]


@cache
def made(**config) -> Made:
    return Made(config)


# -- targets ----------------------------------------------------------------------------------

target_of = jax.jit(rollouts.q_lambda_target)


def make_steps(reward, discount, last, valid=None):
    """A rollout [time, 1] of which targets need nothing else."""
    columns = [np.array(x)[:, None] for x in (reward, discount, last)]
    reward, discount, last = columns
    seen = jnp.zeros((len(reward), 1, 1))
    valid = np.ones_like(last) if valid is None else np.array(valid)[:, None]
    return Trajectory(
        observation=seen,
        action=jnp.zeros((len(reward), 1), jnp.int32),
        reward=jnp.asarray(reward, jnp.float32),
        discount=jnp.asarray(discount, jnp.float32),
        last=jnp.asarray(last, bool),
        next_observation=seen,
        valid=jnp.asarray(valid, bool),
    )


def targets(steps, next_value, trace_decay):
    value = jnp.asarray(np.array(next_value)[:, None], jnp.float32)
    return np.asarray(target_of(steps, value, jnp.float32(trace_decay)))[:, 0]


NO_END = [False, False, False]


def test_a_target_on_a_napkin():
    """γ = ½, λ = ½: G₂ = 3 + ½·30; G₁ = 2 + ½·20 + ¼·(18 − 20); G₀ = 1 + ½·10 + ¼·(11.5 − 10)."""
    steps = make_steps([1, 2, 3], [0.5, 0.5, 0.5], NO_END)
    np.testing.assert_allclose(targets(steps, [10, 20, 30], 0.25), [6.375, 11.5, 18.0])


def test_without_traces_it_is_one_step_and_with_all_of_them_the_sum_of_rewards():
    steps = make_steps([1, 2, 3], [0.5, 0.5, 0.5], NO_END)
    np.testing.assert_allclose(targets(steps, [10, 20, 30], 0.0), [6.0, 12.0, 18.0])
    # 1 + ½·2 + ¼·3 + ⅛·30: of the values only the last one counts.
    np.testing.assert_allclose(targets(steps, [10, 20, 30], 0.5), [6.5, 11.0, 18.0])


@pytest.mark.parametrize("terminated", [True, False])
def test_traces_stop_at_the_end_of_an_episode(terminated):
    """A truncated episode bootstraps from its last observation (value 20), a terminated one not.
    The reward of 100 and the value of 1,000 are those of the next episode."""
    steps = make_steps([1, 2, 100], [0.5, 0.0 if terminated else 0.5, 0.5], [False, True, False])
    end = 2.0 if terminated else 12.0
    want = [1 + 5 + 0.25 * (end - 10), end, 600.0]
    np.testing.assert_allclose(targets(steps, [10, 20, 1000], 0.25), want)


def test_a_value_that_is_not_finite_stays_in_its_episode():
    steps = make_steps([1, 2, 3], [0.5, 0.0, 0.5], [False, True, False])
    got = targets(steps, [10, 20, np.nan], 0.25)
    np.testing.assert_allclose(got[:2], [1 + 5 + 0.25 * (2 - 10), 2.0])
    assert np.isnan(got[2])


def test_a_step_before_a_row_without_one_bootstraps():
    steps = make_steps([1, 0, 3], [0.5, 0.0, 0.5], [False, True, False], [True, False, True])
    np.testing.assert_allclose(targets(steps, [10, 7, 30], 0.25), [6.0, 0.0, 18.0])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), gamma=st.floats(0.1, 1.0), q_lambda=st.floats(0.0, 1.0))
def test_it_is_the_mean_of_n_step_targets(seed, gamma, q_lambda):
    """The forward view: weights (1 − λ)·λⁿ⁻¹, and what is left of them for the longest target."""
    rng = np.random.default_rng(seed)
    reward, value = rng.normal(size=(2, 5))
    last = rng.uniform(size=5) < 0.3
    discount = gamma * (1.0 - last * (rng.uniform(size=5) < 0.5))
    want = np.zeros(5)
    for start in range(5):
        total, weight, factor = 0.0, 1.0, 1.0
        for t in range(start, 5):
            total += factor * reward[t]
            n_step = total + factor * discount[t] * value[t]
            end = last[t] or t == 4
            want[start] += (weight if end else weight * (1 - q_lambda)) * n_step
            weight, factor = weight * q_lambda, factor * gamma
            if end:
                break
    got = targets(make_steps(reward, discount, last), value, gamma * q_lambda)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_without_traces_the_target_is_that_of_ddqn_without_a_target_network():
    one, rollout = made(), make_rollout()
    batch = one.batch(rollout, one.with_hyper(q_lambda=0.0))

    def flat(x):
        return x.reshape(TIME * ENVS, *x.shape[2:])

    rows = Batch(
        observation=flat(rollout.observation),
        action=flat(rollout.action),
        reward=flat(rollout.reward),
        discount=flat(rollout.discount),
        next_observation=flat(rollout.next_observation),
        weight=jnp.ones(TIME * ENVS),
        row=jnp.arange(TIME * ENVS, dtype=jnp.int32),
    )
    critic = one.state.params.critic
    want = jax.jit(ddqn_losses.critic_target)(critic, critic, rows)
    np.testing.assert_allclose(batch.target, want, rtol=1e-5)
    assert same(batch.observation, rows.observation) and same(batch.action, rows.action)
    assert same((batch.weight, batch.row), (rows.weight, rows.row))
    traced = one.batch(rollout).target
    assert np.sum(~np.isclose(traced, want)) >= 6  # λ matters wherever an episode goes on


def test_the_targets_of_a_network_are_those_by_hand():
    one, steps = made(), jax.tree.map(np.asarray, make_rollout())
    value = network(one.weights(), np.asarray(steps.next_observation, np.float64)).max(-1)
    want = np.zeros((TIME, ENVS))
    for t in reversed(range(TIME)):
        want[t] = steps.reward[t] + steps.discount[t] * value[t]
        if t < TIME - 1:
            trace = 0.9 * 0.65 * (want[t + 1] - value[t])
            want[t] += np.where(steps.last[t], 0.0, trace)
    np.testing.assert_allclose(one.batch().target, want.reshape(-1), rtol=1e-4, atol=1e-5)


# -- loss and gradient ------------------------------------------------------------------------


class Table(eqx.Module):
    """Q(s, ·) is the row of a table that s names."""

    values: jax.Array

    def __call__(self, observation):
        return self.values[observation[:, 0].astype(int)]


def test_a_loss_on_a_napkin():
    """Q = 2, 4, 5 against 1½, 1, 5: errors ½, 3, 0. Only what was done is moved."""
    table = Table(jnp.array([[[1.0, 3.0, 2.0], [5.0, 4.0, 0.0]]]))
    batch = Prepared(
        observation=jnp.array([[0.0], [1.0], [1.0]]),
        action=jnp.array([2, 1, 0], jnp.int32),
        target=jnp.array([1.5, 1.0, 5.0]),
        weight=jnp.ones(3),
        row=jnp.arange(3, dtype=jnp.int32),
    )
    differentiate = jax.jit(jax.value_and_grad(losses.critic_loss, has_aux=True))
    (loss, error), slope = differentiate(table, batch)
    np.testing.assert_allclose(error, [0.5, 3.0, 0.0])
    assert float(loss) == pytest.approx((0.125 + 4.5) / 3)
    np.testing.assert_allclose(slope.values, [[[0, 0, 0.5 / 3], [0, 1.0, 0]]], rtol=1e-6)
    half = batch._replace(weight=jnp.array([2.0, 1.0, 0.0]))
    assert float(differentiate(table, half)[0][0]) == pytest.approx((0.25 + 4.5) / 3)


def test_the_gradient_is_that_of_the_loss_by_hand():
    """The target is a number: no gradient goes through it."""
    one = made()
    batch = one.batch()
    batch = batch._replace(weight=jnp.asarray(np.where(np.arange(12) == 4, 0.0, batch.weight)))
    weights, rows = one.weights(), np.arange(12)
    observation, target, weight = (
        np.asarray(x, np.float64) for x in (batch.observation, batch.target, batch.weight)
    )

    def error():
        return network(weights, observation)[rows, np.asarray(batch.action)] - target

    def loss(_):
        return np.mean(weight * error() ** 2) / 2

    gradients, aux = one.gradients(batch)
    assert float(aux.metrics["critic_loss"]) == pytest.approx(loss(None), rel=1e-4)
    q_mean = (error() + target)[rows != 4].mean()
    assert float(aux.metrics["q_mean"]) == pytest.approx(q_mean, rel=1e-4)
    assert float(aux.metrics["epsilon"]) == 1.0
    np.testing.assert_allclose(aux.priorities, np.abs(error()), rtol=1e-4, atol=1e-5)
    found = [leaf[0] for leaf in jax.tree.leaves(gradients.params.critic)]
    close(found, derivative(loss, weights), 2e-4)


def test_update_is_apply_after_gradients_and_changes_everything():
    one = made(layer_norm=True)
    assert PQN.update is Algorithm.update
    gradients, aux = one.gradients()
    new, update_aux = one.update()
    close(compiled(one.algorithm, "apply")(one.state, gradients), new, 1e-5)
    close(aux, update_aux, 1e-5)
    before, after = map(jax.tree.leaves_with_path, (one.state, new))
    for (path, old), (_, now) in zip(before, after, strict=True):
        constant = str(path[0]) in (".hyper", ".key")
        assert np.array_equal(old, now) == constant, jax.tree_util.keystr(path)


GAPS = np.ones((TIME, ENVS), bool)
GAPS[[1, 5], 0] = GAPS[3, 1] = False


def test_rows_without_a_step_count_nowhere():
    """Whatever lies in them, NaN too. Gradient and metrics are those of the steps alone."""
    one, gap = made(), make_rollout(GAPS)

    def spoiled(x):
        rubbish = np.nan if jnp.issubdtype(x.dtype, jnp.floating) else 1
        where = GAPS.reshape(TIME, ENVS, *(1,) * (x.ndim - 2))
        return jnp.asarray(np.where(where, x, np.array(rubbish, x.dtype)))

    batch = one.batch(Trajectory(*map(spoiled, gap[:6]), valid=gap.valid))
    assert same(batch, one.batch(gap))
    steps = np.flatnonzero(GAPS)
    np.testing.assert_array_equal(np.flatnonzero(batch.weight), steps)
    kept = mapped(lambda x: x[steps], batch)._replace(weight=jnp.ones(len(steps)))
    (with_gaps, gaps_aux), (alone, alone_aux) = one.gradients(batch), one.gradients(kept)
    close((with_gaps, gaps_aux.metrics), (alone, alone_aux.metrics), 1e-5)


def test_mean_of_the_shards_is_the_whole():
    """Also if the shards have not as many steps as one another."""
    one = made()
    batch = one.batch(make_rollout(GAPS))
    whole, _ = one.gradients(batch)
    shards = [one.gradients(mapped(lambda x, s=s: x[s::2], batch))[0] for s in (0, 1)]
    close(mean_of_shards([jax.device_get(shard) for shard in shards]), whole, 1e-5)


# -- memory -----------------------------------------------------------------------------------


def test_with_memory_values_are_those_of_the_states_along_the_rollout():
    """Without traces a target is r + γ·max Q of the following row, unless an episode ends."""
    config = dict(memory="gru", memory_size=4, epochs=1, minibatches=1, q_lambda=0.0)
    algorithm = PQN(PQNConfig(**{**SMALL, **config}))
    state = jax.jit(partial(algorithm.init, SPEC))(KEY)
    rollout = make_rollout()
    following = np.concatenate([rollout.observation[1:], rollout.next_observation[-1:]])
    rollout = rollout._replace(
        next_observation=jnp.asarray(following),
        memory=jnp.asarray(np.random.default_rng(1).normal(size=(ENVS, 4)), jnp.float32),
    )

    @jax.jit
    def compute(state):
        batch = algorithm.prepare(state, rollout)
        return batch, losses.q_values(state.params.critic, batch.observation)

    batch, q = compute(state)
    target, action = (np.asarray(x).reshape(ENVS, TIME) for x in (batch.target, batch.action))
    np.testing.assert_array_equal(action, np.asarray(rollout.action).T)
    value = np.asarray(q).max(-1).reshape(ENVS, TIME)
    reward, discount = (np.asarray(x).T[:, :-1] for x in (rollout.reward, rollout.discount))
    want = reward + discount * value[:, 1:]
    goes_on = ~np.asarray(rollout.last).T[:, :-1]
    np.testing.assert_allclose(target[:, :-1][goes_on], want[goes_on], rtol=1e-5, atol=1e-6)
    # After an end the recurrent state is new, but the last value is that of the old one.
    assert not np.isclose(target[0, 3], want[0, 3])
    gradient = jax.jit(lambda s, b: algorithm.gradients(s, b, KEY, algorithm.update_mask(0)))
    found = gradient(state, batch)[0].params.critic
    assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(found))


# -- acting -----------------------------------------------------------------------------------


def act(algorithm, policy, observation, explore):
    first = jnp.zeros(len(observation), bool)
    return compiled(algorithm, "act")(policy, (), observation, first, KEY, explore)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_exploring_takes_epsilon_from_the_policy(epsilon):
    """A random action is the greedy one, too, once in three times."""
    one = made()
    policy = one.algorithm.policy(one.with_hyper(epsilon=epsilon))
    rows = np.random.default_rng(0).normal(size=(6000, 3))
    calm, memory, extras = act(one.algorithm, policy, jnp.asarray(3 * rows, jnp.float32), False)
    assert (memory, extras) == ((), {}) and calm.dtype == jnp.int32
    np.testing.assert_array_equal(calm, network(one.weights(), 3 * rows).argmax(-1))
    action, _, _ = act(one.algorithm, policy, jnp.asarray(3 * rows, jnp.float32), True)
    other = np.mean(np.asarray(action) != np.asarray(calm))
    assert other == pytest.approx(epsilon * (CHOICES - 1) / CHOICES, abs=0.025 * (epsilon > 0))


def test_questions_and_acting_see_observations_as_the_network_does():
    one = made(normalize_observations=True)
    rows = np.random.default_rng(0).normal(size=(64, 3)) * 30.0 + 50.0
    calm = jnp.asarray((rows - rows.mean(0)) / rows.std(0), jnp.float32)
    rows = jnp.asarray(rows, jnp.float32)
    seen = observed(one.state, rows)
    greedy = act(one.algorithm, one.algorithm.policy(seen), rows, False)[0]
    assert len(np.unique(greedy)) > 1
    q = query(one.algorithm, SPEC, "q_values", seen, rows, greedy)
    want = compiled(one.algorithm, "q_values")(one.state, calm, greedy)
    np.testing.assert_allclose(q, want, rtol=1e-3, atol=1e-4)
    value = query(one.algorithm, SPEC, "value", seen, rows)
    np.testing.assert_allclose(value, q[0], rtol=1e-5)


# -- settings ---------------------------------------------------------------------------------


def test_what_it_needs_and_what_moves():
    config = PQNConfig(horizon=8, epochs=3, minibatches=4)
    assert config.needs == RolloutNeeds(8, 4, epochs=3) and config.needs.updates == 12
    moving = {"learning_rate", "gamma", "q_lambda", "reward_scale"}
    assert set(config.moving()) == moving
    state = jax.eval_shape(lambda key: PQN(config).init(SPEC, key), KEY)
    assert set(state.hyper) == moving | {"epsilon"}
    curves = PQNConfig(learning_rate=0.5, final_epsilon=0.1, epsilon_decay_steps=200).schedules()
    assert set(curves) == {"learning_rate", "epsilon"}
    rate, epsilon = (
        [evaluate(curves[name], step, 1_000) for step in (0, 100, 500, 1_000)]
        for name in ("learning_rate", "epsilon")
    )
    np.testing.assert_allclose(rate, [0.5, 0.45, 0.25, 0.0])
    np.testing.assert_allclose(epsilon, [1.0, 0.55, 0.1, 0.1])
    assert set(PQNConfig(anneal_learning_rate=False).schedules()) == {"epsilon"}


def test_what_pqn_refuses():
    with pytest.raises(ConfigError, match="PQN has no actor for loss add-ons"):
        PQN(loss_addons=(lambda actor, batch, key: (jnp.float32(0.0), {}),))
    with pytest.raises(ConfigError, match=r"final_epsilon 0.5 is larger than initial_epsilon 0.1"):
        PQNConfig(initial_epsilon=0.1, final_epsilon=0.5)
    with pytest.raises(ConfigError, match="epochs and minibatches must be 1"):
        PQNConfig(memory="gru")
    for name, why in (("buffer_size", "keeps no replay"), ("tau", "no target networks")):
        with pytest.raises(ConfigError, match=f"there is no '{name}' here: PQN .*{why}"):
            PQNConfig(**{name: 1})
    with pytest.raises(ConfigError, match="unknown field 'value_coeff'"):
        PQNConfig(value_coeff=0.5)  # type: ignore[call-arg]
    algorithm = made().algorithm
    algorithm.check(SPEC)
    with pytest.raises(EnvironmentError, match="PQN needs Discrete actions"):
        algorithm.check(Spec(SPEC.observation, Continuous((-1.0,), (1.0,), (1,))))


# -- runs -------------------------------------------------------------------------------------

TINY: dict[str, Any] = dict(hidden_sizes=(8,), horizon=8, minibatches=2, epsilon_decay_steps=64)


@pytest.mark.agents
@pytest.mark.parametrize(
    "env", [pytest.param("CartPole-v1", marks=pytest.mark.slow), "jax:CartPole-v1"]
)
def test_it_trains_and_epsilon_moves(env):
    agent = agent_class("pqn")(env, PQNConfig(**TINY), num_seeds=2, num_envs=2)
    before = agent.get_weights()
    summary = agent.train(96, progress=False)
    trainer: Any = agent.trainer
    # Six rollouts of 8 steps of 2 environments; the host learns one step later.
    rollouts = 6 if env.startswith("jax:") else 5
    assert trainer.position.updates == 4 * rollouts
    assert {"train/critic_loss", "train/q_mean", "train/epsilon"} <= summary.history[-1].keys()
    assert float(trainer.policy().epsilon[0]) == pytest.approx(0.05)
    for x, y in zip(*map(jax.tree.leaves, (before, agent.get_weights())), strict=True):
        assert np.all(np.isfinite(y)) and not np.array_equal(x, y)
    agent.train(32, schedules={"epsilon": constant(0.25)}, progress=False)
    assert float(trainer.policy().epsilon[0]) == 0.25
    with pytest.raises(ConfigError, match="epsilon must be between 0 and 1"):
        agent.set(epsilon=1.5)
    observation = np.zeros((3, 4), np.float32)
    assert agent.q_values(observation, [0, 1, 1]).shape == (1, 3)
    assert agent.value(observation).shape == (3,)
    agent.close()
