"""`agent.evaluate`: which episodes are played, and how actions are chosen."""

import numpy as np
import pytest

import understudy as us
from understudy.envs.seeds import EVALUATION, SELECTION
from understudy.envs.worker_pool import WorkerPool
from understudy.types import ConfigError

pytestmark = pytest.mark.agents

SMALL = dict(hidden_sizes=(8,), batch_size=8, buffer_size=64, start_steps=8, min_buffer_size=8)
QUIET = dict(progress=False, run=us.RunConfig(evaluation_episodes=2, evaluate_every=0))


@pytest.fixture(scope="module", params=["CartPole-v1", "jax:CartPole-v1"])
def agent(request):
    agent = us.DDQN(request.param, us.DDQNConfig(**SMALL), seed=3)
    agent.train(20, **QUIET)
    yield agent
    agent.close()


def returns(agent, *arguments, **named):
    return agent.evaluate(*arguments, **named)["returns"]


def test_episodes_are_not_those_by_which_the_best_is_picked(agent):
    """The best of many policies on some episodes is worse on others."""
    selecting = agent.play_selection(6).returns[0].tolist()
    found = returns(agent, 6)
    assert found != selecting
    assert found == returns(agent, 6) == returns(agent, 6, seed=3)
    assert returns(agent, 6, seed=4) not in (found, selecting)
    before = agent.evaluator.scores.copy()
    agent.evaluate(3, seed=11)
    np.testing.assert_array_equal(agent.evaluator.scores, before)


def test_environments_of_earlier_evaluations_are_closed(agent):
    for seed in range(20, 25):
        agent.evaluate(2, seed=seed)
    agent.play_selection(2)
    kept = [(plan.seeds.stream, plan.seeds.seed) for plan in agent.evaluator.runners]
    assert sorted(kept) == [(SELECTION, agent.seed), (EVALUATION, 24)]


@pytest.mark.processes
@pytest.mark.parametrize("place", ["command", "wait"])
def test_an_interrupted_evaluation_can_be_repeated(monkeypatch, place):
    """Worker processes have a command whose answer was not read, or are closed."""
    agent = us.DDQN("CartPole-v1", us.DDQNConfig(**SMALL), seed=3, env_workers=2)
    found, undisturbed = returns(agent, 2), getattr(WorkerPool, place)

    def interrupted(pool, workers, *arguments):
        if place == "command":
            undisturbed(pool, workers, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WorkerPool, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            agent.evaluate(2)
    assert not agent.evaluator.runners
    assert returns(agent, 2) == found
    agent.close()


def test_random_actions(agent):
    greedy, random = returns(agent, 8), returns(agent, 8, epsilon=1.0)
    assert returns(agent, 8, epsilon=0) == greedy
    assert random == returns(agent, 8, epsilon=1.0) != greedy
    assert returns(agent, 8, epsilon=1.0, seed=5) != random
    assert 10 < np.mean(random) < 40  # of random play: about 22


def test_exploring_as_in_training(agent):
    """DDQN's own share of random actions is still nearly 1 after 20 steps."""
    exploring = returns(agent, 8, deterministic=False)
    assert exploring == returns(agent, 8, deterministic=False) != returns(agent, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(epsilon=1.5), "epsilon must be between 0 and 1, got 1.5"),
        (dict(epsilon="0.1"), "epsilon must be a number, got '0.1'"),
        (dict(seed=-1), "seed must be at least 0, got -1"),
        (dict(episodes=0), "episodes must be at least 1, got 0"),
    ],
)
def test_wrong_options(agent, options, words):
    with pytest.raises(ConfigError, match=words):
        agent.evaluate(**options)


def test_continuous_actions_are_drawn():
    agent = us.SAC("jax:Pendulum-v1", us.SACConfig(**SMALL), num_seeds=2)
    drawn = np.array(returns(agent, 3, deterministic=False))
    assert drawn.shape == (2, 3)
    assert (drawn != np.array(returns(agent, 3))).any()
    assert (drawn == np.array(returns(agent, 3, deterministic=False))).all()
    with pytest.raises(ConfigError, match="epsilon is for discrete actions"):
        agent.evaluate(1, epsilon=0.1)


def test_default_intervals_reach_the_run():
    agent = us.SAC("jax:Pendulum-v1", us.SACConfig(**SMALL, updates_per_step=0.01), num_envs=4)
    summary = agent.train(17_000, progress=False)
    steps = [facts["time/total_steps"] for facts in summary.history if "eval/mean_reward" in facts]
    assert steps == [8_500, 17_000]  # 4,250 vector steps: twice 200 are less than a tenth of them
