"""Categorical and quantile critics of every algorithm, against loops in NumPy."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from tests.algorithms.algorithm_cases import (
    KEY,
    SPEC,
    close,
    distinct_targets,
    gaps_and_steps,
    make_batch,
    mapped,
    shards_of,
)
from understudy.agent import agent_class
from understudy.algorithms import find
from understudy.networks.ensembles import evaluate_ensemble, return_parameters
from understudy.ops.return_distributions import Returns
from understudy.types import ArraySpec, ConfigError, Discrete, Spec

CHOICES = Spec(ArraySpec((3,)), Discrete(3))
HEADS: dict[str, dict[str, Any]] = {
    "categorical": dict(critic_head="categorical", num_atoms=7, min_return=-3.0, max_return=3.0),
    "histogram": dict(critic_head="categorical", num_atoms=7, histogram_sigma=0.75),
    "quantile": dict(critic_head="quantile", num_quantiles=4, drop_quantiles=1),
}
OWN: dict[str, dict[str, Any]] = {
    "td3": dict(policy_noise=0.0),
    "mpo": dict(sample_action_num=3),
    "ddqn": dict(dueling=True, target_update_interval=1),
}


class Case:
    def __init__(self, name, head, discrete):
        settings = dict(hidden_sizes=(4,), activation="tanh", num_critics=2)
        cls, own = find(name), OWN.get(name, {})
        self.algorithm: Any = cls(cls.config_class(**settings, **HEADS[head], **own))
        self.spec = CHOICES if discrete else SPEC
        self.state = distinct_targets(self.algorithm.init(self.spec, KEY))
        self.batch = make_batch()
        if discrete:
            choice = np.random.default_rng(0).integers(3, size=8)
            self.batch = self.batch._replace(action=jnp.asarray(choice, jnp.int32))
        mask = self.algorithm.update_mask(0)
        self.gradients = jax.jit(lambda s, b, k: self.algorithm.gradients(s, b, k, mask))
        self.apply = jax.jit(self.algorithm.apply)


@cache
def case(name, head, discrete=False) -> Case:
    return Case(name, head, discrete)


def parameters(critic, observation, *action):
    return np.asarray(jax.jit(return_parameters)(critic, observation, *action), np.float64)


def distribution(form, outputs):
    """Values and probabilities [critics, rows, choices, n] of the outputs."""
    if hasattr(form, "values"):
        return np.broadcast_to(np.asarray(form.values), outputs.shape), softmax(outputs, -1)
    return outputs, np.full(outputs.shape, 1 / outputs.shape[-1])


def lowest(form, outputs):
    """What targets use of several critics, [rows, choices][(value, probability)]."""
    values, chances = distribution(form, outputs)
    critics, rows, choices, size = outputs.shape
    result = []
    for row in range(rows):
        result.append([])
        for choice in range(choices):
            v, p = values[:, row, choice], chances[:, row, choice]
            if hasattr(form, "values"):
                critic = np.argmin([np.sum(v[i] * p[i]) for i in range(critics)])
                result[-1].append((v[critic], p[critic]))
            else:
                kept = sorted(v.flatten())[: critics * (size - form.dropped)]
                result[-1].append((np.array(kept), np.full(len(kept), 1 / len(kept))))
    return result


def following(made):
    """For each row: the weights, costs and distributions of the actions in the next state."""
    algorithm, state, batch = made.algorithm, made.state, made.batch
    form, there = algorithm.config.return_form, batch.next_observation
    name = algorithm.name
    if name in ("td3", "ddpg"):
        action = state.targets.actor(there)
        outputs = parameters(state.targets.critic, there, action)[:, :, None]
        return np.ones((8, 1)), np.zeros((8, 1)), lowest(form, outputs)
    each = lowest(form, parameters(state.targets.critic, there))
    cost = np.zeros((8, 3))
    if name == "ddqn":
        q = np.asarray(evaluate_ensemble(state.params.critic, there)).mean(0)
        return np.eye(3)[q.argmax(-1)], cost, each
    actor = state.params.actor if name == "sac" else state.targets.actor
    log_policy = np.asarray(actor(there).log_probabilities, np.float64)
    if name == "sac":
        cost = np.exp(float(state.params.temperature)) * log_policy
    return np.exp(log_policy), cost, each


def target_of(made):
    weights, costs, each = following(made)
    value, chance = [], []
    for row in range(8):
        reward, discount = float(made.batch.reward[row]), float(made.batch.discount[row])
        parts = list(zip(weights[row], costs[row], each[row], strict=True))
        value.append(np.concatenate([reward + discount * (v - c) for _, c, (v, _) in parts]))
        chance.append(np.concatenate([w * p for w, _, (_, p) in parts]))
    return np.array(value), np.array(chance)


def loss_of(made, outputs, value, chance):
    """Of each critic and row."""
    form = made.algorithm.config.return_form
    if hasattr(form, "values"):
        target = Returns(jnp.asarray(value, jnp.float32), jnp.asarray(chance, jnp.float32))
        wanted = np.asarray(form.project(target))  # which has tests of its own
        return -np.sum(wanted * log_softmax(outputs, -1), -1)
    result = np.zeros(outputs.shape[:2])
    for critic, row in np.ndindex(*result.shape):
        for i, theta in enumerate(outputs[critic, row]):
            for v, p in zip(value[row], chance[row], strict=True):
                u, level = v - theta, (2 * i + 1) / 8
                cost = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
                result[critic, row] += p * abs(level - (u < 0)) * cost / 4
    return result


def weighted_mean(batch, value):
    return float(np.mean(np.asarray(batch.weight) * np.asarray(value)))


def slow(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "head", "discrete"),
    [
        ("sac", "categorical", True),
        ("ddqn", "quantile", True),
        ("td3", "quantile", False),
        slow("sac", "quantile", True),
        slow("sac", "histogram", True),
        slow("mpo", "quantile", True),
        ("mpo", "categorical", True),
        slow("ddqn", "categorical", True),
        slow("td3", "categorical", False),
        slow("ddpg", "categorical", False),
        slow("ddpg", "quantile", False),
    ],
)
def test_loss_errors_and_q_are_those_of_the_loops(name, head, discrete):
    made = case(name, head, discrete)
    form, batch = made.algorithm.config.return_form, made.batch
    value, chance = target_of(made)
    outputs = parameters(made.state.params.critic, batch.observation, batch.action)
    _, aux = made.gradients(made.state, batch, KEY)
    wanted = 2 * weighted_mean(batch, loss_of(made, outputs, value, chance))  # two critics
    assert float(aux.metrics["critic_loss"]) == pytest.approx(wanted, rel=1e-4)
    values, chances = distribution(form, outputs)
    q = np.sum(values * chances, -1)
    assert float(aux.metrics["q_mean"]) == pytest.approx(q.mean(), rel=1e-4, abs=1e-5)
    error = np.abs(q - np.sum(value * chance, -1)).mean(0)
    np.testing.assert_allclose(aux.priorities, error, rtol=1e-4, atol=1e-5)
    asked = made.algorithm.q_values(made.state, batch.observation, batch.action)
    np.testing.assert_allclose(asked, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", ["categorical", "quantile"])
def test_the_actor_of_sac_uses_means(head):
    """The minimum of the critics' means; of quantile critics their mean, as in TQC."""
    made = case("sac", head, True)
    state, batch = made.state, made.batch
    log_policy = np.asarray(state.params.actor(batch.observation).log_probabilities, np.float64)
    q = np.asarray(evaluate_ensemble(state.params.critic, batch.observation))
    q = q.min(0) if head == "categorical" else q.mean(0)
    cost = np.exp(float(state.params.temperature)) * log_policy - q
    wanted = weighted_mean(batch, np.sum(np.exp(log_policy) * cost, -1))
    _, aux = made.gradients(state, batch, KEY)
    assert float(aux.metrics["actor_loss"]) == pytest.approx(wanted, rel=1e-4)


def test_the_actor_of_td3_uses_the_first_critics_mean():
    made = case("td3", "quantile")
    state, batch = made.state, made.batch
    action = state.params.actor(batch.observation)
    outputs = parameters(state.params.critic, batch.observation, action)
    _, aux = made.gradients(state, batch, KEY)
    wanted = -weighted_mean(batch, outputs[0].mean(-1))
    assert float(aux.metrics["actor_loss"]) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "head", "discrete"),
    [("sac", "categorical", True), ("td3", "quantile", False), slow("sac", "quantile", False)],
)
def test_shards_are_the_whole_and_rows_that_are_no_steps_count_nowhere(name, head, discrete):
    made = case(name, head, discrete)
    whole, _ = made.gradients(made.state, made.batch, KEY)
    shards = [made.gradients(made.state, shard, KEY)[0] for shard in shards_of(made.batch)]
    first, second = (gradients._replace(mask=None) for gradients in shards)
    mean = mapped(lambda x, y: (x + y) / 2, first, second)
    close(mean, whole._replace(mask=None), 1e-5)
    gaps, steps = gaps_and_steps(made.batch)
    (with_gaps, _), (alone, _) = (made.gradients(made.state, rows, KEY) for rows in (gaps, steps))
    close(with_gaps._replace(mask=None), alone._replace(mask=None), 1e-5)


@pytest.mark.parametrize(
    ("name", "head", "discrete"),
    [
        ("sac", "categorical", True),
        ("ddqn", "quantile", True),
        ("td3", "quantile", False),
        slow("sac", "histogram", False),
        slow("sac", "quantile", False),
        slow("mpo", "categorical", False),
        slow("mpo", "quantile", False),
        slow("ddpg", "categorical", False),
        slow("ddqn", "categorical", True),
    ],
)
def test_updates_lower_the_loss_of_a_batch(name, head, discrete):
    """The critics' loss at fixed targets: of a batch in which every step is the last one."""
    made = case(name, head, discrete)
    batch = made.batch._replace(discount=jnp.zeros(8))
    hyper = made.state.hyper | {"learning_rate": jnp.float32(0.03)}
    state = made.state._replace(hyper=hyper)
    losses = []
    for index in range(20):
        gradients, aux = made.gradients(state, batch, jax.random.PRNGKey(index))
        state = made.apply(state, gradients)
        losses.append(float(aux.metrics["critic_loss"]))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.agents
@pytest.mark.parametrize(
    ("name", "env", "settings"),
    [
        ("ddqn", "CartPole-v1", {**HEADS["categorical"], "dueling": True, "n_step": 3,
                                 "prioritized": True}),
        slow("ddqn", "jax:CartPole-v1", HEADS["quantile"]),
        slow("sac", "jax:Pendulum-v1", HEADS["categorical"] | dict(normalize_rewards=True,
                                                                   return_limit=3.0)),
        slow("sac", "Pendulum-v1", HEADS["quantile"] | dict(memory="gru", memory_size=4)),
        slow("sac", "CartPole-v1", HEADS["histogram"]),
        slow("td3", "Pendulum-v1", HEADS["categorical"]),
        slow("ddpg", "Pendulum-v1", HEADS["quantile"]),
        slow("mpo", "Pendulum-v1", HEADS["quantile"]),
        slow("mpo", "CartPole-v1", HEADS["categorical"]),
    ],
)  # fmt: skip
def test_agents_train_with_them(name, env, settings):
    small = dict(start_steps=30, min_buffer_size=40, batch_size=8, buffer_size=200)
    algorithm = find(name)
    config = algorithm.config_class(hidden_sizes=(4,), **small, **settings)
    agent = agent_class(name)(env, config, num_seeds=2)
    before = agent.get_weights()["critic"]
    agent.train(100, progress=False)
    after = agent.get_weights()["critic"]
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert np.all(np.isfinite(y)) and not np.array_equal(x, y)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (dict(min_return=1.0, max_return=1.0), "min_return 1 must be below max_return 1"),
        (dict(critic_head="quantile", num_quantiles=2), "drop_quantiles 2 must be below num_quan"),
        (dict(return_limit=5.0), "return_limit bounds normalized rewards: it needs normalize_r"),
        (dict(histogram_sigma=0.75), "histogram_sigma is for categorical critics, not scalar"),
        (dict(critic_head="c51"), "critic_head must be one of scalar, categorical, quantile"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        find("sac").config_class(**settings)
