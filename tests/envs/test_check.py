import subprocess
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from tests.envs.scripted import Faulty, Pixels, Scripted
from understudy.envs import check


class Replayable(Scripted):
    """Which episode it plays is the seed's choice, not a matter of what was played before."""

    def reset(self, *, seed=None, options=None):
        self.episode = seed % 6 - 1
        return super().reset(seed=seed)


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1", Replayable, Pixels, Replayable()])
def test_good_environments(env):
    report = check(env)
    assert report.ok, str(report)
    assert "replay bit for bit" in str(report)


def test_time_limit_is_noted():
    assert any("no declared time limit" in note for note in check(Replayable).notes)
    assert "time limit of 200 steps" in str(check("Pendulum-v1"))


def test_rude_environments_are_tolerated_and_noted():
    report = check(partial(Replayable, 0, True))
    assert report.ok
    assert any("same array" in note for note in report.notes)
    assert any("mutates" in note for note in report.notes)


class Forgetful(Scripted):
    """Its numbering goes on over resets: the first observation is not the seed's."""

    def _observe(self):
        return np.array([self.episode, 0.0, 0.0, 0.0])


class Noisy(Scripted):
    def _observe(self):
        noise = np.random.default_rng().normal() if self.time else 0.0
        return np.array([noise, 0.0, 0.0, 0.0])


class FourTuple(Scripted):
    def step(self, action):
        return super().step(action)[:4]


class Exits(Scripted):
    def step(self, action):
        raise SystemExit(3)

    def close(self):
        raise SystemExit(4)


class OddFlags(Pixels):
    def step(self, action):
        return super().step(action)[0], [1.0], 0, None, {}


class OddSpace(Scripted):
    action_space = gymnasium.spaces.Text(2)


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ("Pendulum-v9", "did you mean"),
        ("Blackjack-v1", "supported: Box"),
        (OddSpace, "supported: Box"),
        (Forgetful, "not reproducible"),
        (Noisy, "do not replay the same bits"),
        (FourTuple, "tuple of 5, got 4"),
        (Exits, "raised SystemExit: 3"),
        (Exits, "close() raised SystemExit: 4"),
        (OddFlags, "terminated is int, not bool"),
        (OddFlags, "rewards are list"),
        (partial(Faulty, "observation"), "NaN"),
        (partial(Faulty, "reward"), "NaN or infinity"),
        (partial(Faulty, "shape"), "of shape"),
        (partial(Faulty, "raise"), "ZeroDivisionError"),
        (partial(Faulty, "constructor"), "no such robot"),
        (lambda: SyncVectorEnv([Scripted]), "expected a gymnasium.Env"),
        (3, "raised"),
    ],
)
def test_problems_are_reported_and_nothing_is_raised(env, problem):
    report = check(env)
    assert not report.ok
    assert any(problem in text for text in report.problems), str(report)
    assert "✗" in str(report)


@pytest.mark.processes
def test_functions_are_not_hidden_by_modules_of_the_same_name():
    code = (
        "import understudy.envs.make, understudy.envs.conformance, understudy.envs.brax_envs; "
        "from understudy.envs import atari, brax, check;"
        "print(*map(callable, (atari, brax, check)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["True"] * 3, result.stderr
