"""Fault 30 for agents that see images and dicts, choose several things and remember: a run that
was stopped in the middle of an episode is the run that was never stopped, to the bit."""

import pytest

from tests.faults.resume_cases import compare
from tests.faults.seeing_cases import Both, Picture, Switches

pytestmark = pytest.mark.agents

MEMORY = dict(memory_size=4, sequence_length=4, burn_in=2)
PRIORITIZED = dict(prioritized=True, n_step=2)
PENDULUM, CART = "Pendulum-v1", "CartPole-v1"


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.fault(30, "the recurrent state is restored in the middle of an episode")
@pytest.mark.parametrize(
    ("kind", "env", "settings"),
    [
        slow("SAC", PENDULUM, MEMORY | dict(memory="gru")),
        slow("SAC", f"jax:{PENDULUM}", MEMORY | dict(memory="gru")),
        ("A2C", f"jax:{CART}", dict(memory="lstm", memory_size=4)),
        slow("DDQN", CART, MEMORY | PRIORITIZED | dict(memory="lstm", num_envs=2)),
        slow("A2C", CART, dict(memory="lstm", memory_size=4, num_envs=3)),
        slow("DDQN", f"jax:{CART}", MEMORY | PRIORITIZED | dict(memory="gru")),
        slow("DDPG", PENDULUM, MEMORY | dict(memory="gru")),
        slow("TD3", f"jax:{PENDULUM}", MEMORY | dict(memory="lstm", num_seeds=2)),
        slow("MPO", PENDULUM, MEMORY | dict(memory="gru")),
    ],
    ids=str,
)
def test_memory_goes_on_to_the_bit(tmp_path, kind, env, settings):
    compare(tmp_path, kind, env, **settings)


@pytest.mark.slow
@pytest.mark.fault(30, "images, stacks of images, dicts and multi-discrete actions")
@pytest.mark.parametrize(
    ("kind", "env", "settings"),
    [
        ("DDQN", Picture, PRIORITIZED | dict(frame_stack=3, encoder_features=8)),
        slow("DDQN", Picture, MEMORY | PRIORITIZED | dict(memory="gru", encoder_features=8)),
        slow("TD3", Both, dict(encoder_features=8)),
        slow("DDQN", Switches, {}),
        slow("A2C", Picture, dict(frame_stack=3, encoder_features=8, num_envs=2)),
        slow("SAC", Both, MEMORY | dict(memory="lstm", encoder_features=8, num_envs=2)),
        slow("A2C", Switches, {}),
    ],
    ids=str,
)
def test_what_is_seen_goes_on_to_the_bit(tmp_path, kind, env, settings):
    plain = settings if kind != "A2C" else settings | dict(normalize_observations=False)
    plain = plain if kind != "TD3" else plain | dict(normalize_observations=False)
    compare(tmp_path, kind, env, again=env, **plain)
