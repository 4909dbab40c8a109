"""Keyword arguments of environments that are given by their names."""

import gymnasium
import numpy as np
import pytest

from tests.envs.scripted import Scripted
from understudy.envs import EpisodeSeeds, resolve
from understudy.envs.names import refuse_foreign_module
from understudy.types import CheckpointError, ConfigError, EnvironmentError

SEEDS = EpisodeSeeds(0)


class Weighted(gymnasium.Env):
    """Every step gives `weight`; an episode has `length` steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, weight=1.0, length=5, limits=(0.0, 1.0), render_mode=None):
        self.weight, self.length, self.limits = float(weight), length, limits

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), self.weight, False, self.steps == self.length, {}


@pytest.fixture
def weighted():
    gymnasium.register("Weighted-v0", Weighted, max_episode_steps=50)
    yield "Weighted-v0"
    del gymnasium.registry["Weighted-v0"]


def rewards(source, workers=0):
    envs = source.make_host(2, EpisodeSeeds(0, 2), workers)
    envs.reset()
    found = envs.step(np.zeros((2, source.spec.action.size), np.float32)).reward
    envs.close()
    return found.tolist()


def test_an_id_takes_arguments(weighted):
    assert rewards(resolve(weighted)) == [1.0, 1.0]
    assert rewards(resolve(weighted, env_args={"weight": 3})) == [3.0, 3.0]
    limited = resolve(weighted, env_args={"max_episode_steps": 7})  # an argument of gymnasium.make
    assert limited.time_limit == 7


@pytest.mark.parametrize("plain", ["Weighted", "Weighted-v0"])
def test_a_class_or_an_id_of_a_module_takes_arguments(weighted, plain):
    source = resolve(f"tests.envs.test_arguments:{plain}", env_args={"weight": 2.5})
    assert rewards(source) == [2.5, 2.5]


@pytest.mark.processes
def test_workers_get_the_arguments(weighted):
    source = resolve("tests.envs.test_arguments:Weighted", env_args={"weight": 2.0})
    assert rewards(source, workers=1) == [2.0, 2.0]
    assert rewards(resolve(weighted, env_args={"weight": 4.0}), workers=1) == [4.0, 4.0]


def test_native_environments_take_their_parameters():
    assert resolve("jax:Pendulum-v1", env_args={"gravity": 3, "max_steps": 9}).max_steps == 9
    same = {"gravity": 3.0}
    assert resolve("jax:Pendulum-v1", env_args=same) is resolve("jax:Pendulum-v1", env_args=same)
    assert resolve("jax:Pendulum-v1", env_args=same) != resolve("jax:Pendulum-v1")


def test_lists_become_tuples(weighted):
    """A checkpoint stores tuples as lists."""
    source = resolve(weighted, env_args={"limits": [0.5, 2.0]})
    (factory,), _ = source.provide(1, True)
    assert factory().unwrapped.limits == (0.5, 2.0)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("Weighted-v0", {"wieght": 2}, r"wieght.*\(weight=1.0, length=5, limits=\(0.0, 1.0\)"),
        ("Weighted-v0", {"weight": "x"}, r"Weighted-v0 cannot be made with env_args weight='x': "),
        ("tests.envs.test_arguments:Weighted", {"w": 1}, r"'w'; its arguments are \(weight=1.0,"),
        ("Pendulum-v1", {"gravity": 2}, r"\(render_mode=None, g=10.0\)"),
        ("Pendulum-v1", {"id": 2}, r"cannot be made with env_args id=2"),
        ("jax:Pendulum-v1", {"g": 2}, r"no such name; its arguments are \(max_steps=200, gravity"),
        ("jax:Pendulum-v1", {"mass": "x"}, r"mass must be of type float; its arguments are"),
        ("jax:Pendulum-v1", {"max_steps": 0}, r"max_steps must be at least 1, got 0"),
        ("jax:Pendulum-P-v1", {"mass": 2}, r"does not take env_args mass=2: it has no parameters"),
        ("Pendulum-v1", {"g": object()}, r"g must be a number, a bool, None, a string or a tuple"),
        ("Pendulum-v1", {"g": {"a": 1}}, r"g must be a number, a bool, None, a string or a tuple"),
        ("Pendulum-v1", {"a b": 1}, r"'a b' cannot be the name of an argument"),
        ("Pendulum-v1", {3: 1}, r"3 cannot be the name of an argument"),
        ("Pendulum-v1", "g=2", r"env_args must be a dict of names and values, got 'g=2'"),
        (Scripted, {"g": 2}, r"for an environment that is given by its name: .*callable use g=2"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_helpful_line(weighted, name, args, message):
    with pytest.raises((ConfigError, EnvironmentError), match=message) as told:
        resolve(name, env_args=args)
    assert "\n" not in str(told.value)


@pytest.mark.atari
def test_a_game_takes_its_settings():
    source = resolve("atari:Pong", env_args={"frame_skip": 2, "life_loss": True})
    assert source.time_limit == 54_000
    (training,), _ = source.provide(1, True)
    (evaluation,), _ = source.provide(1, False)
    assert training.life_loss and not evaluation.life_loss and evaluation.frame_skip == 2
    with pytest.raises(EnvironmentError, match=r"its arguments are \(noops=30, frame_skip=4"):
        resolve("atari:Pong", env_args={"frameskip": 2})


def test_a_file_names_no_module_and_no_path():
    refuse_foreign_module("Ant-v5", {"frame_skip": 2, "word": "plain", "none": None})
    for value in ("module:Id", "../other.xml", "C:\\other.xml", ("plain", "/etc/passwd")):
        with pytest.raises(CheckpointError, match=r"xml_file=.*--env-arg.*--trust-environment"):
            refuse_foreign_module("Ant-v5", {"xml_file": value})
