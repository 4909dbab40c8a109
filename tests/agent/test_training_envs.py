"""Changes of environments by whole agents: curricula that are stopped and resumed, refusals."""

import numpy as np
import pytest

import understudy as us
from tests.faults.resume_cases import QUICK, Walk, assert_same_to_the_bit, make, stop_at
from understudy.callbacks import Curriculum
from understudy.runs import checkpoint

pytestmark = pytest.mark.agents

QUIET = dict(run=QUICK, progress=False)
STEPS, STOP = 240, 120


class Levels(Walk):
    """A walk whose level makes its episodes longer and its steps smaller."""

    level = 0

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.left = self.left // 4 + 2 + self.level
        return observation, info

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        truncated = self.left <= 0
        return observation / (1 + self.level), reward, terminated, truncated, info


def curriculum():
    return Curriculum("level", list(range(50)), threshold=-1e9, window=3)


def manifest_of(agent):
    return agent.capture(True)[1]


def resume(tmp_path, kind, **settings):
    """A whole run and one that was stopped at STOP and resumed, each with its curriculum."""
    whole, one = make(kind, Levels, **settings), curriculum()
    whole.train(STEPS, callbacks=one, **QUIET)
    stopped = make(kind, Levels, **settings)
    first, second = curriculum(), curriculum()
    stopped.train(STEPS, callbacks=[first, stop_at(STOP)], **QUIET)
    world = stopped.trainer.snapshot().world
    stopped.save(tmp_path / "stopped")
    again = us.load(tmp_path / "stopped", env=Levels)
    again.train(STEPS - STOP, callbacks=second, **QUIET)
    return whole, stopped, again, (one, first, second), world


WITH_WORKERS = [0, pytest.param(2, marks=[pytest.mark.processes, pytest.mark.slow])]


@pytest.mark.fault(30, "a curriculum, stopped in the middle of an episode, and later changes")
@pytest.mark.parametrize("env_workers", WITH_WORKERS)
def test_a_curriculum_goes_on_to_the_bit(tmp_path, env_workers):
    counts = dict(num_envs=3, env_workers=env_workers)
    whole, stopped, again, (one, first, second), world = resume(tmp_path, "DDPG", **counts)
    assert whole.env_workers == again.env_workers == env_workers
    # An episode is open that began before the latest change.
    open_rows = world["acting.environments.lengths"] > 0
    assert (open_rows & (world["acting.environments.applied"] < first.level + 1)).any()
    assert 1 < first.level < second.level == one.level
    assert second.results == one.results
    assert_same_to_the_bit(whole, again, tmp_path)
    for entry in ("env_changes", "callbacks"):
        assert manifest_of(whole)[entry] == manifest_of(again)[entry]
    assert whole.envs.get_attr("level") == again.envs.get_attr("level")
    assert len(manifest_of(whole)["env_changes"]["entries"]) <= 4  # of one.level + 1 changes
    for agent in (whole, stopped, again):
        agent.close()


@pytest.mark.fault(30, "a curriculum, stopped in the middle of a rollout")
def test_a_curriculum_goes_on_within_a_rollout(tmp_path):
    whole, _, again, (one, first, second), _ = resume(tmp_path, "A2C", horizon=7, num_envs=1)
    assert first.level < second.level == one.level
    assert_same_to_the_bit(whole, again, tmp_path)
    assert manifest_of(whole)["env_changes"] == manifest_of(again)["env_changes"]


class Restless(us.Callback):
    """Calls methods and sets attributes at every chunk, as its own count says."""

    count = 0

    def on_chunk(self, agent):
        self.count += 1
        if self.count % 17 == 0:
            agent.envs.call("grow", self.count)
        if self.count % 5 == 0:
            agent.envs.set_attr("level", self.count % 4)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Growing(Levels):
    size = 1

    def grow(self, by):
        self.size = (3 * self.size + by) % 7

    def step(self, action):
        observation, *rest = super().step(action)
        return observation + self.size, *rest


def test_calls_and_values_go_on_to_the_bit(tmp_path):
    whole, stopped = (make("TD3", Growing, num_envs=3) for _ in range(2))
    whole.train(240, callbacks=Restless(), **QUIET)
    stopped.train(240, callbacks=[Restless(), stop_at(120)], **QUIET)
    stopped.save(tmp_path / "stopped")
    again = us.load(tmp_path / "stopped", env=Growing)
    again.train(120, callbacks=Restless(), **QUIET)
    assert_same_to_the_bit(whole, again, tmp_path)
    assert whole.envs.get_attr("size") == again.envs.get_attr("size") != [1, 1, 1]


def test_changes_without_experience(tmp_path):
    """A checkpoint without experience, and a single seed, have the level too."""
    agent = make("DDPG", Levels, num_seeds=2)
    agent.train(60, callbacks=curriculum(), run_dir=tmp_path, **QUIET)
    level = agent.envs.get_attr("level")[0]
    best = us.load(tmp_path / checkpoint.BEST, env=Levels, refill=True)
    single = agent[1]
    for other in (best, single):
        other.train(30, **QUIET)
        assert other.envs.get_attr("level")[0] >= level > 0
    assert agent.evaluate(1) and Levels.level == 0  # evaluations keep theirs


def test_environments_that_cannot_change():
    agent = make("DDQN", "jax:CartPole-v1")
    with pytest.raises(us.UnderstudyError, match=r"agent.envs changes Gymnasium environments"):
        agent.envs.set_attr("gravity", 3.0)
    agent = make("DDPG", Levels)
    with pytest.raises(us.UnderstudyError, match=r"environment 0 .* has no attribute 'levle'"):
        agent.train(30, callbacks=Curriculum("levle", [1, 2], 0.0), **QUIET)
    with pytest.raises(us.UnderstudyError, match="cannot be stored in a checkpoint"):
        agent.envs.set_attr("level", np.int64(3))
