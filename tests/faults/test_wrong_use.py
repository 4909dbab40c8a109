"""Bad input is refused before anything starts, with words that say how to mend it."""

import gymnasium
import numpy as np
import pytest

import understudy as us
from understudy.types import ConfigError, EnvironmentError


class Unbounded(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


@pytest.mark.fault(16, "wrong settings are refused before any process starts")
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
        "there is no 'prioritized' here: A2C": lambda: us.A2CConfig(prioritized=True),
        "n_step 64 must be below buffer_size 64": lambda: us.DDQNConfig(
            n_step=64, buffer_size=64, batch_size=8, min_buffer_size=8
        ),
        "critic_subset 3 is larger than num_critics 2": lambda: us.SACConfig(critic_subset=3),
        "DDQN has no actor for loss add-ons": lambda: us.DDQN(
            "CartPole-v1", loss_addons=(us.action_penalty(0.1),)
        ),
        "cannot be split into 3 equal minibatches": lambda: us.A2C(
            "CartPole-v1", us.A2CConfig(minibatches=3)
        ).train(10),
        "state_dependent_exploration is for continuous": lambda: us.A2C(
            "CartPole-v1", us.A2CConfig(state_dependent_exploration=True)
        ),
    }.items():
        with pytest.raises(ConfigError, match=problem):
            make()


@pytest.mark.fault(11, "an unsupported environment is refused at construction")
def test_environments_that_cannot_be_learned():
    for problem, make in {
        "TD3 needs continuous .* are Discrete": lambda: us.TD3("CartPole-v1"),
        "DDQN needs Discrete .* are continuous": lambda: us.DDQN("Pendulum-v1"),
        "needs a bounded action Box": lambda: us.SAC(Unbounded),
        r'no environment "Pendulum-v9"; did you mean "Pendulum-v1"': lambda: us.SAC("Pendulum-v9"),
        r'did you mean "jax:Pendulum-v1"': lambda: us.SAC("jax:Pendlum-v1"),
        "cannot use 3 as an environment": lambda: us.SAC(3),
        "must make a gymnasium.Env": lambda: us.SAC(lambda: 3),
        "cannot serve num_envs=2": lambda: us.SAC(gymnasium.make("Pendulum-v1"), num_envs=2),
    }.items():
        with pytest.raises(EnvironmentError, match=problem):
            make()


def test_an_addon_of_the_wrong_shape_is_refused_before_training():
    def per_row(actor, batch, key):
        return batch.reward, {}

    agent = us.SAC("Pendulum-v1", us.SACConfig(hidden_sizes=(4,)), loss_addons=(per_row,))
    with pytest.raises(ConfigError, match=r"add-on 'per_row': a term must be a scalar") as caught:
        agent.train(10, progress=False)
    assert "\n" not in str(caught.value)
