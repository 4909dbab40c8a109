"""Bad input is refused before anything starts, with words that say how to mend it."""

import gymnasium
import numpy as np
import pytest

import understudy as us
from understudy.types import ConfigError, EnvironmentError


class Unbounded(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


def test_mistakes_are_refused_before_anything_starts():
    for problem, make in {
        "TD3 takes a TD3Config, got a SACConfig": lambda: us.TD3("Pendulum-v1", us.SACConfig()),
        "num_seeds must be at least 1": lambda: us.SAC("Pendulum-v1", num_seeds=0),
        "num_envs must be at least 1": lambda: us.SAC("Pendulum-v1", num_envs=-1),
        "num_envs must be at least 1, got 0": lambda: us.SAC("Pendulum-v1", num_envs=0),
        "steps must be at least 1": lambda: us.SAC("Pendulum-v1").train(0),
        "episodes must be at least 1": lambda: us.SAC("Pendulum-v1").evaluate(0),
        "env_workers is for": lambda: us.SAC("jax:Pendulum-v1", env_workers=2),
        "seed must be": lambda: us.SAC("Pendulum-v1", seed=-1),
    }.items():
        with pytest.raises(ConfigError, match=problem):
            make()


def test_environments_that_cannot_be_learned():
    for problem, make in {
        "TD3 needs continuous .* are Discrete": lambda: us.TD3("CartPole-v1"),
        "needs a bounded action Box": lambda: us.SAC(Unbounded),
        r'no environment "Pendulum-v9"; did you mean "Pendulum-v1"': lambda: us.SAC("Pendulum-v9"),
        r'did you mean "jax:Pendulum-v1"': lambda: us.SAC("jax:Pendlum-v1"),
        "cannot use 3 as an environment": lambda: us.SAC(3),
        "must make a gymnasium.Env": lambda: us.SAC(lambda: 3),
        "cannot serve num_envs=2": lambda: us.SAC(gymnasium.make("Pendulum-v1"), num_envs=2),
    }.items():
        with pytest.raises(EnvironmentError, match=problem):
            make()
