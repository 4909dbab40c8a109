"""Wrong use of what agents see, choose and remember: one line each, which says what is wrong."""

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import understudy as us
from tests.faults.resume_cases import REPLAY
from tests.faults.seeing_cases import Both, Picture
from understudy.runs import checkpoint
from understudy.types import CheckpointError, ConfigError, EnvironmentError

pytestmark = pytest.mark.agents

VECTOR, CHOICE = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3)
FLOATS = spaces.Box(0.0, 1.0, (12, 12, 3), np.float32)
MEMORY = dict(memory="gru", memory_size=4, sequence_length=4, burn_in=2)


class Showing(gymnasium.Env):
    """Has these spaces, and is never stepped."""

    def __init__(self, seen, done):
        self.observation_space, self.action_space = seen, done


def showing(seen, done=CHOICE):
    return lambda: Showing(seen, done)


class Shaped(eqx.Module):
    """Sees the same in everything: ones of a shape."""

    shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, observation):
        return jnp.ones(self.shape)


def seeing(shape):
    networks = us.Networks(encoder=lambda spec, key: Shaped(shape))
    return us.DDQN(Picture, us.DDQNConfig(**REPLAY), networks=networks)


def remembering(**settings):
    return us.SAC("Pendulum-v1", us.SACConfig(**(REPLAY | MEMORY | settings)))


def refused(problems, kind):
    for problem, make in problems.items():
        with pytest.raises(kind, match=problem) as caught:
            make()
        assert "\n" not in str(caught.value)


@pytest.mark.fault(11, "unsupported observation and action spaces")
def test_spaces_that_cannot_be_learned():
    ten = spaces.MultiBinary(10)  # 1,024 combinations
    us.DDQN(showing(VECTOR, ten)), us.A2C(showing(VECTOR, spaces.MultiDiscrete([11] * 3)))
    problems = {
        r"observation space Tuple\(.* is not supported": lambda: us.A2C(
            showing(spaces.Tuple((VECTOR, VECTOR)))
        ),
        r'Tuple\(.*\(entry "hand/left"\) is not supported': lambda: us.A2C(
            showing(spaces.Dict(hand=spaces.Dict(left=spaces.Tuple((VECTOR,)))))
        ),
        "action space Tuple.* is not supported": lambda: us.A2C(
            showing(VECTOR, spaces.Tuple((CHOICE, CHOICE)))
        ),
        "an image of dtype float32; an image must be uint8": lambda: us.DDQN(showing(FLOATS)),
        r'\(entry "camera"\) .* of dtype float32': lambda: us.DDQN(
            showing(spaces.Dict(camera=FLOATS, speed=VECTOR))
        ),
        r"frame_stack=4 is for images, but .* vectors of shape \(4,\)": lambda: us.DDQN(
            "CartPole-v1", us.DDQNConfig(frame_stack=4)
        ),
        r"frame_stack=4 is for images, but .* vectors of shape \(3,\)": lambda: us.SAC(
            "jax:Pendulum-v1", us.SACConfig(frame_stack=4)
        ),
        "frame_stack=4 is for images, but .* are dicts": lambda: us.TD3(
            Both, us.TD3Config(frame_stack=4)
        ),
        r"DDQN .* 1,331 of them are too many \(at most 1,024\); A2C": lambda: us.DDQN(
            showing(VECTOR, spaces.MultiDiscrete([11] * 3))
        ),
        "TD3 needs continuous .* are MultiDiscrete": lambda: us.TD3(
            showing(VECTOR, spaces.MultiBinary(3))
        ),
        "SAC .* 2,048 of them are too many": lambda: us.SAC(
            showing(VECTOR, spaces.MultiBinary(11))
        ),
    }
    refused(problems, EnvironmentError)


@pytest.mark.fault(16, "settings for images and memory that do not fit the observation")
def test_settings_that_do_not_fit():
    problems = {
        "whole rollouts: minibatches must be 1": lambda: us.A2CConfig(memory="gru", minibatches=2),
        "memory .* needs share_encoder": lambda: us.SACConfig(memory="gru", share_encoder=False),
        "no use without share_encoder": lambda: us.TD3Config(
            share_encoder=False, actor_trains_encoder=True
        ),
        r"memory must be one of gru, lstm, got 'gruu' \(did you mean 'gru'": lambda: us.SACConfig(
            memory="gruu"
        ),
        "a sequence of 25 steps .* shorter than buffer_size 20": lambda: us.SACConfig(
            memory="gru", buffer_size=20, batch_size=8, min_buffer_size=8
        ),
        "SAC: random_shift is for images": lambda: us.SAC(
            "Pendulum-v1", us.SACConfig(random_shift=2)
        ),
        "DDQN: normalize_observations is for vectors": lambda: us.DDQN(
            Picture, us.DDQNConfig(normalize_observations=True)
        ),
        "TD3: normalize_observations is for vectors": lambda: us.TD3(
            Both, us.TD3Config(normalize_observations=True)
        ),
    }
    refused(problems, ConfigError)


@pytest.mark.fault(16, "an encoder that does not fit the images, or returns no features")
def test_encoders_that_do_not_fit():
    small = spaces.Box(0, 255, (2, 2), np.uint8)
    problems = {
        "'nature' needs images of 36×36 or more, got 12×12: use 'small'": lambda: us.DDQN(
            Picture, us.DDQNConfig(encoder="nature", **REPLAY)
        ),
        "needs images of .* or more, got 2×2": lambda: us.DDQN(
            showing(small), us.DDQNConfig(**REPLAY)
        ),
        r"an encoder must map an observation to \[features\], got \(2, 3\)": lambda: seeing((2, 3)),
        r"an encoder must map an observation to \[features\], got \(\)": lambda: seeing(()),
        r"the encoder cannot see observations of shape \(12, 12\): .*dot": lambda: us.DDQN(
            Picture,
            us.DDQNConfig(**REPLAY),
            networks=us.Networks(encoder=lambda spec, key: eqx.nn.Linear(3, 4, key=key)),
        ),
    }
    refused(problems, ConfigError)


@pytest.mark.fault(17, "a memory of the wrong shape, or for an agent without one")
def test_memories_that_do_not_fit():
    seen, two = np.zeros(3, np.float32), np.zeros((2, 3), np.float32)
    agent, forgetful = remembering(), us.SAC("Pendulum-v1", us.SACConfig(**REPLAY))
    problems = {
        r"a memory here has shape \(4,\), got \(5,\)": lambda: agent.act(seen, np.zeros(5)),
        r"a memory here has shape \(4,\), got \(1, 4\)": lambda: agent.act(seen, np.zeros((1, 4))),
        r"a memory here has shape \(2, 4\), got \(4,\)": lambda: agent.act(two, np.zeros(4)),
        r"a memory here has shape \(8,\), got \(4,\)": lambda: remembering(memory="lstm").act(
            seen, np.zeros(4)
        ),
        r"a memory here is an array of shape \(4,\): could not": lambda: agent.act(seen, "much"),
        r"has no memory: call act\(observation\)": lambda: forgetful.act(seen, np.zeros(4)),
    }
    refused(problems, EnvironmentError)


@pytest.mark.fault(29, "a recurrent state of another kind or size is refused")
def test_a_checkpoint_of_another_memory(tmp_path):
    remembering().save(tmp_path / "a")
    stored = checkpoint.read(tmp_path / "a")
    for change in ({"memory": None}, {"memory": "lstm"}, {"memory_size": 5}):
        config = stored.manifest["config"] | change
        checkpoint.write(tmp_path / "b", stored.groups, stored.manifest | {"config": config})
        with pytest.raises(CheckpointError, match="does not fit this agent: state") as caught:
            us.load(tmp_path / "b")
        assert "\n" not in str(caught.value)
    forgetful = us.SAC("Pendulum-v1", us.SACConfig(**REPLAY))
    with pytest.raises(ConfigError, match="weights of actor: not the structure"):
        forgetful.set_weights(us.load(tmp_path / "a").get_weights())
