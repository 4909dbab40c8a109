"""A2C in whole runs: in both loops, with several choices at once, with minibatches."""

from functools import cache
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from understudy.agent import agent_class
from understudy.algorithms.a2c import A2CConfig
from understudy.types import ConfigError

pytestmark = pytest.mark.agents


class Signs(gymnasium.Env):
    """Two signs, each answered by a pair of choices; every right choice of the pair pays 1."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])
    answers = ((0, 2), (1, 0))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 8
        return self._draw(), {}

    def step(self, action):
        reward = float(np.sum(np.asarray(action) == self.answers[self._sign]))
        self._left -= 1
        return self._draw(), reward, False, self._left == 0, {}

    def _draw(self):
        self._sign = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self._sign]


@pytest.mark.slow
def test_several_choices_at_once_are_learned():
    """16 is perfect, guessing gives 6.7."""
    settings = A2CConfig(hidden_sizes=(16,), learning_rate=1e-2, gamma=0.0)
    agent = agent_class("a2c")(Signs, settings)
    assert agent.num_envs == 8
    agent.train(4_000, progress=False)
    assert np.min(agent.evaluate(10)["returns"]) > 15.0
    action = agent.act(np.eye(2, dtype=np.float32))
    np.testing.assert_array_equal(action, Signs.answers)
    asked = agent.evaluate_actions(np.eye(2), action)
    assert [part.shape for part in asked] == [(2,)] * 3
    agent.close()


both_loops = pytest.mark.parametrize("env", ["CartPole-v1", "jax:CartPole-v1"])


@cache
def ran(env):
    """A run of 60 steps in each of two environments: its end, its summary, and every rollout that
    was learned from."""
    settings = A2CConfig(hidden_sizes=(8,), horizon=6, minibatches=3, anneal_learning_rate=True)
    agent = agent_class("a2c")(env, settings, num_envs=2)
    seen, prepare = [], agent.algorithm.prepare

    def watched(state, batch):
        jax.debug.callback(lambda steps: seen.append(jax.tree.map(np.asarray, steps)), batch)
        return prepare(state, batch)

    agent.algorithm.prepare = watched
    summary = agent.train(120, progress=False)  # ten rollouts; the host learns one step later
    jax.effects_barrier()
    trainer: Any = agent.trainer
    state, updates = jax.device_get(trainer.learner.state), trainer.position.updates
    agent.close()
    return state, updates, summary, seen, 10 if env.startswith("jax:") else 9


@both_loops
def test_minibatches_are_updates_of_their_own_and_the_step_size_falls(env):
    state, updates, summary, _, rollouts = ran(env)
    assert updates == int(state.updates[0]) == 3 * rollouts
    assert 0 < float(state.hyper["learning_rate"][0]) < 0.101 * 7e-4
    assert 0 < summary.history[-1]["train/value_loss"] < 6**2  # of six rewards of 1
    with pytest.raises(ConfigError, match="cannot be split"):
        agent_class("a2c")(env, A2CConfig(minibatches=3), num_envs=1).train(1, progress=False)


@both_loops
def test_a_rollout_is_in_the_order_it_happened(env):
    """In both loops: traces run along time."""
    *_, seen, rollouts = ran(env)
    assert len(seen) == rollouts
    for steps in seen:
        follows = (steps.next_observation[:-1] == steps.observation[1:]).all(axis=-1)
        assert steps.valid.all() and (follows | steps.last[:-1]).all()
        assert follows.any()
    assert any(steps.last.any() for steps in seen)
