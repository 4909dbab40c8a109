"""Environments that answer with the wrong types, or whose code ends where it should not."""

import gymnasium as gym
import numpy as np
import pytest

import understudy as us
from understudy.envs.fault_guard import DEFAULT_GUARD
from understudy.envs.host_envs import SerialEnvs
from understudy.envs.seeds import EpisodeSeeds

SMALL = dict(hidden_sizes=(8,), batch_size=4, buffer_size=64, start_steps=4, min_buffer_size=8)


class Answers(gym.Env):
    """Ends each episode after five steps; answers with what it is told to."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, reward=0.5, terminated=False, truncated=False, closing=None, stepping=None):
        self.answer = reward, terminated, truncated
        self.closing, self.stepping, self.time = closing, stepping, 0

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        if self.stepping is not None and self.time == 3:
            raise self.stepping
        reward, terminated, truncated = self.answer
        return np.zeros(2, np.float32), reward, terminated, truncated or self.time == 5, {}

    def close(self):
        if self.closing is not None:
            raise self.closing


def step_of(**answers):
    envs = SerialEnvs([lambda: Answers(**answers)], EpisodeSeeds(0, 1), True, DEFAULT_GUARD)
    envs.reset()
    return envs.step(np.zeros((1, 1), np.float32))


@pytest.mark.fault(59, "values with the same meaning are converted exactly")
@pytest.mark.parametrize(
    "reward", [1, np.float32(1), np.ones(1), np.ones((1, 1)), True, np.int8(1)]
)
def test_rewards_that_are_one_number(reward):
    assert step_of(reward=reward).reward.tolist() == [1.0]


@pytest.mark.parametrize("true", [True, np.True_, 1, 1.0, np.ones(1, bool), np.array(1)])
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_flags_that_are_truth_values(name, true):
    step = step_of(**{name: true})
    assert step.last.tolist() == [True]
    assert step.terminated.tolist() == [name == "terminated"]


@pytest.mark.fault(59, "anything else is an error that names it; nothing is rebuilt")
@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"terminated": "False"}, "terminated is 'False', which is no truth value"),
        ({"terminated": None}, "terminated is None, which is no truth value"),
        ({"truncated": 2}, "truncated is 2, which is no truth value"),
        ({"truncated": [True, False]}, r"truncated is \[True, False\], which is no truth value"),
        ({"reward": None}, "the reward is None, which is no number"),
        ({"reward": "1"}, "the reward is '1', which is no number"),
        ({"reward": np.ones(2)}, "the reward is array.*, which is no number"),
    ],
)
def test_answers_of_the_wrong_type(answers, words):
    with pytest.raises(us.UnderstudyError, match=f"environment 0: {words}"):
        step_of(**answers)


@pytest.mark.fault(60, "a close() that raises gives one warning, also at construction")
@pytest.mark.parametrize("error", [OSError("the robot has gone"), SystemExit(3)])
def test_a_close_that_raises(error, caplog):
    agent = us.SAC(lambda: Answers(closing=error), us.SACConfig(**SMALL))
    assert f"close() of the environment raised {type(error).__name__}" in caplog.text
    agent.close()


@pytest.mark.agents
@pytest.mark.fault(60, "a step() that exits counts as a failure: rebuilt, then an error")
def test_a_step_that_exits(tmp_path):
    agent = us.SAC(lambda: Answers(stepping=SystemExit(3)), us.SACConfig(**SMALL))
    run = us.RunConfig(checkpoint_every=2, evaluate_every=0)
    with pytest.raises(us.UnderstudyError, match=r"step\(\) raised SystemExit: 3"):
        agent.train(200, run=run, run_dir=tmp_path, progress=False)
    agent.close()
    assert us.load(tmp_path, env=Answers).steps >= 2
