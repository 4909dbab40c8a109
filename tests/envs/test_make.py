import builtins
import subprocess
import sys
import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.envs.scripted import Faulty, Scripted, collect
from understudy.envs import EnvSource, EpisodeSeeds, Guard, NativeEnv, resolve
from understudy.envs.native import NATIVE
from understudy.types import ConfigError, EnvironmentError

SEEDS = EpisodeSeeds(0)


def plays(source: EnvSource, rows: int, seeds: EpisodeSeeds, **settings) -> None:
    envs = source.make_host(rows, seeds, **settings)
    assert envs.reset().shape == (rows, *source.spec.observation.shape)
    assert envs.spec == source.spec and envs.num_envs == rows
    envs.step(np.zeros((rows, source.spec.action.size), np.float32))
    envs.close()


@pytest.mark.processes
def test_an_id():
    source = resolve("Pendulum-v1", 2)
    assert (source.name, source.num_envs) == ("Pendulum-v1", 2)
    plays(source, 2, EpisodeSeeds(0, 2))
    plays(source, 2, EpisodeSeeds(0, 2).for_evaluation(), workers=2)


@pytest.mark.processes
def test_an_id_that_only_this_process_registered():
    gymnasium.register("Understudy/Scripted-v0", entry_point=Scripted)
    try:
        plays(resolve("Understudy/Scripted-v0"), 1, SEEDS, workers=1)
    finally:
        gymnasium.registry.pop("Understudy/Scripted-v0")


def test_an_id_of_ones_own_that_is_called_like_a_game(caplog, monkeypatch):
    gymnasium.register("OwnNoFrameskip-v4", entry_point=Scripted)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    try:
        plays(resolve("OwnNoFrameskip-v4"), 1, SEEDS)
    finally:
        gymnasium.registry.pop("OwnNoFrameskip-v4")
    assert not caplog.records


@pytest.mark.mujoco
def test_gymnasiums_warnings_are_no_errors():
    plays(resolve("Hopper-v4"), 1, SEEDS)


def test_a_native_id():
    for name in NATIVE:
        assert isinstance(resolve(f"jax:{name}"), NativeEnv)
    native = resolve(f"jax:{next(iter(NATIVE))}")
    assert resolve(native) is native


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Pendulum-v9", r'no environment "Pendulum-v9"; did you mean "Pendulum-v1"'),
        ("Pendulum", r'did you mean "Pendulum-v1"'),  # a run must say which version it is of
        ("halfcheetah-v5", r'did you mean "HalfCheetah-v5"'),
        ("jax:Pendulun-v1", r'did you mean "jax:Pendulum'),
        ("playground:CartpoleBalance", r"understudy\[playground\]"),
        ("no_such_package:Thing-v0", r"no_such_package"),
        ("entirely / wrong", r'no environment "entirely / wrong"'),
    ],
)
def test_unknown_names_are_one_helpful_line(name, message):
    with pytest.raises(EnvironmentError, match=message) as caught:
        resolve(name)
    assert "\n" not in str(caught.value)


def test_a_missing_package_names_the_extra(monkeypatch):
    real_import, real_find = builtins.__import__, __import__("importlib.util").util.find_spec
    for name in [name for name in sys.modules if "mujoco" in name]:
        monkeypatch.delitem(sys.modules, name)

    def without_mujoco(name, *rest, **more):
        if name.split(".")[0] == "mujoco":
            raise ImportError("No module named 'mujoco'")
        return real_import(name, *rest, **more)

    def not_found(name, *rest):
        return None if name == "mujoco" else real_find(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_mujoco)
    monkeypatch.setattr("importlib.util.find_spec", not_found)
    with pytest.raises(EnvironmentError, match=r'pip install "understudy\[mujoco\]"$') as caught:
        resolve("Hopper-v5")
    assert "\n" not in str(caught.value)


@pytest.mark.processes
def test_a_callable():
    source = resolve(partial(Scripted, 3), 2)
    assert source.name is None
    plays(source, 4, EpisodeSeeds(0, 2, 2))
    plays(source, 2, EpisodeSeeds(0, 2), workers=1)
    with pytest.raises(EnvironmentError, match=r"must make a gymnasium\.Env"):
        resolve(lambda: 3)
    with pytest.raises(EnvironmentError, match="ZeroDivisionError"):
        resolve(lambda: 1 / 0)


def test_an_instance_trains_itself_and_is_evaluated_on_a_copy():
    env = Scripted()
    source = resolve(env)
    plays(source, 1, SEEDS)
    assert env.episode == 1 and not env.closed  # one step ends the first episode
    plays(source, 2, EpisodeSeeds(0, 2).for_evaluation())
    plays(source, 3, EpisodeSeeds(0, 1, 3))
    assert env.episode == 1
    with pytest.raises(EnvironmentError, match="num_envs=2"):
        resolve(env, 2)
    with pytest.raises(EnvironmentError, match="worker processes"):
        source.make_host(1, SEEDS, workers=1)


class Uncopyable(Scripted):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_an_instance_that_cannot_be_copied_fails_at_evaluation_only():
    source = resolve(Uncopyable())
    plays(source, 1, SEEDS)
    with pytest.raises(EnvironmentError, match="give a callable"):
        source.make_host(1, SEEDS.for_evaluation())


def test_an_instance_that_gymnasium_made_is_made_again():
    gymnasium.register("Understudy/Uncopyable-v0", entry_point=Uncopyable)
    try:
        source = resolve(gymnasium.make("Understudy/Uncopyable-v0", disable_env_checker=True))
        plays(source, 1, SEEDS.for_evaluation())
    finally:
        gymnasium.registry.pop("Understudy/Uncopyable-v0")


def test_a_vector_environment():
    vector = SyncVectorEnv([Scripted] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    source = resolve(vector)
    assert source.num_envs == 3
    plays(source, 3, EpisodeSeeds(0, 3))
    assert not vector.closed
    plays(source, 5, EpisodeSeeds(0, 5).for_evaluation())
    with pytest.raises(EnvironmentError, match="num_envs=2, but"):
        resolve(vector, 2)


@pytest.mark.parametrize(("env", "count"), [(7, None), (None, 1), ("Pendulum-v1", 0)])
def test_anything_else_is_refused(env, count):
    refusal = (EnvironmentError, ConfigError)
    with pytest.raises(refusal, match=r"accepted: a Gymnasium id|at least 1"):
        resolve(env, count)


@pytest.mark.processes
def test_the_room_is_lazy():
    code = (
        "import sys, understudy.envs as envs; assert 'numpy' not in sys.modules;"
        "envs.EpisodeSeeds; assert 'jax' not in sys.modules;"
        "envs.CheckReport; assert callable(envs.check)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=300)


def test_a_vector_environment_stays_in_this_process():
    vector = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * 2)
    source = resolve(vector)
    with pytest.raises(EnvironmentError, match="cannot move to worker processes"):
        source.make_host(2, EpisodeSeeds(0, 2), workers=1)
    vector.close()


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.processes)])
def test_the_guard_reaches_the_environments(workers):
    source = resolve(partial(Faulty, "raise"))
    envs = source.make_host(1, SEEDS, workers, guard=Guard(most_rebuilds=0))
    with pytest.raises(EnvironmentError, match="failed once within"):
        collect(envs, 9)
    envs.close()
