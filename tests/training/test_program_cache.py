"""Agents of equal settings share their compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from understudy.envs.native import Hidden, Pendulum

pytestmark = pytest.mark.agents

SMALL = dict(hidden_sizes=(8,), batch_size=4, buffer_size=64, start_steps=4, min_buffer_size=8)
LOOPS = pytest.mark.parametrize("env", ["Pendulum-v1", "jax:Pendulum-v1"])


@pytest.fixture
def compiled():
    """The names of functions that are compiled while a test runs, or read from the cache."""
    names = []

    def note(event, _, **about):
        if event.endswith("backend_compile_duration"):
            names.append(about["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    jax.monitoring.unregister_event_duration_listener(note)


def train(env, seed=0, loss_addons=(), **changed):
    settings = us.SACConfig(**SMALL | changed)
    agent = us.SAC(env, settings, seed=seed, loss_addons=loss_addons)
    agent.train(20, run=us.RunConfig(evaluation_episodes=1), progress=False)
    agent.act(np.zeros(agent.spec.observation.shape, np.float32))
    return agent


@LOOPS
def test_a_second_agent_of_the_same_settings_compiles_nothing(env, compiled):
    first = train(env, seed=0)
    compiled.clear()
    second = train(env, seed=1)
    assert compiled == []
    weights = [jax.tree.leaves(agent.get_weights())[0] for agent in (first, second)]
    assert not (weights[0] == weights[1]).all()  # and yet they are two


@LOOPS
def test_another_setting_makes_programs_of_its_own(env, compiled):
    train(env)
    compiled.clear()
    train(env, hidden_sizes=(7,))
    assert compiled


def test_what_a_user_adds_to_a_loss_is_traced_for_every_agent():
    """A closure may have changed since it was traced last."""
    factors = []

    def pull(actor, batch, key):
        return factors[-1] * jnp.sum(jax.tree.leaves(actor)[0] ** 2), {}

    weights = []
    for factor in (0.0, 100.0):
        factors.append(factor)
        agent = train("jax:Pendulum-v1", loss_addons=(pull,))
        weights.append(jax.tree.leaves(agent.get_weights()["actor"])[0])
    assert not (weights[0] == weights[1]).all()


def test_a_descriptor_of_the_users_is_traced_for_every_agent():
    """A closure may have changed since it was traced last."""
    places = [0.25]

    def place(state, observation):
        return jnp.full(1, places[-1])

    descriptor = us.Descriptor(place, low=(0.0,), high=(1.0,), over="last")
    for expected in (0.25, 0.75):
        places.append(expected)
        described = train("jax:Pendulum-v1").evaluate(1, descriptor=descriptor)["descriptors"]
        np.testing.assert_allclose(described, expected)


def test_a_native_environment_of_the_users_is_traced_for_every_agent():
    """Nothing keeps a user from changing it in between."""

    class Own(Pendulum):
        scale = 1.0

        def step(self, state, action, key):
            step = super().step(state, action, key)
            return step._replace(reward=self.scale * step.reward)

    env = Own()
    once = train(env).evaluate(1)["mean"]
    object.__setattr__(env, "scale", 0.0)
    assert once != 0 and train(env).evaluate(1)["mean"] == 0
    assert not env.shareable and Pendulum().shareable
    assert not Hidden(env, (0, 1)).shareable
