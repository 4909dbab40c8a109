"""What counts as the best survives a second call of `train` and a member that broke."""

import numpy as np
import pytest

import understudy as us
from understudy.training.episode_runner import EpisodeResults

pytestmark = pytest.mark.agents

CONFIG = us.SACConfig(
    hidden_sizes=(8, 8), batch_size=16, buffer_size=512, start_steps=20, min_buffer_size=20
)
RUN = us.RunConfig(evaluate_every=0, evaluation_episodes=1)


class Judge:
    """An episode runner with the given returns."""

    def __init__(self, *returns):
        self.results = EpisodeResults(np.array(returns), np.ones(len(returns)), None)

    def run(self, policy):
        return self.results

    def close(self):
        pass


def judged(agent, *returns):
    agent.evaluator.runners[agent.evaluator.plan_selection(1)] = Judge(*returns)
    return agent


def test_a_worse_second_call_keeps_the_best_of_the_first(tmp_path):
    agent = us.SAC("jax:Pendulum-v1", CONFIG)
    for score in (5.0, 1.0):
        judged(agent, score).train(30, run=RUN, run_dir=tmp_path, progress=False)
    assert us.load(tmp_path).steps == 60
    assert us.load(tmp_path / "best").steps == 30
    judged(agent, 7.0).train(30, run=RUN, run_dir=tmp_path, progress=False)
    assert us.load(tmp_path / "best").steps == 90


def test_a_member_without_a_number_is_never_the_best():
    agent = judged(us.SAC("jax:Pendulum-v1", CONFIG, num_seeds=3), 1.0, np.nan, 3.0)
    agent.play_selection(1)
    assert agent.best.seed == 2
