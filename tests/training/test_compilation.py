"""The compilation cache of a user, and the warning about repeated compilation."""

import logging
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import understudy as us
from understudy.envs.native import CartPole
from understudy.training import compilation
from understudy.training.program_cache import forget_programs

COMPILED = "/jax/core/compile/backend_compile_duration"
SMALL = dict(hidden_sizes=(8,), batch_size=4, buffer_size=64, start_steps=4, min_buffer_size=8)


@pytest.fixture
def set_up(monkeypatch, tmp_path):
    """Set compilation up as in a new process in which JAX has no cache; returns the directory."""
    monkeypatch.delenv(compilation.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax.monitoring, "register_event_duration_secs_listener", lambda _: None)
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)

    def call():
        compilation.set_up_compilation.__wrapped__()
        return jax.config.jax_compilation_cache_dir

    yield call
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_cache_is_on_by_default_and_says_so(set_up, tmp_path, caplog):
    caplog.set_level(logging.INFO, "understudy.compilation")
    assert set_up() == str(tmp_path / "understudy" / "jax")
    (message,) = caplog.messages
    assert str(tmp_path) in message and "UNDERSTUDY_COMPILATION_CACHE=off" in message


@pytest.mark.parametrize("value", ["off", "OFF", "0", ""])
def test_the_cache_can_be_turned_off(set_up, tmp_path, monkeypatch, value):
    monkeypatch.setenv("UNDERSTUDY_COMPILATION_CACHE", value)
    assert set_up() is None and list(tmp_path.iterdir()) == []


def test_the_cache_can_be_elsewhere(set_up, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_COMPILATION_CACHE", str(tmp_path / "mine"))
    assert set_up() == str(tmp_path / "mine")


def test_the_users_own_cache_stays(set_up, tmp_path):
    jax.config.update("jax_compilation_cache_dir", "chosen")  # as by JAX_COMPILATION_CACHE_DIR
    assert set_up() == "chosen" and list(tmp_path.iterdir()) == []


def test_without_a_place_to_write_there_is_no_cache(set_up, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "understudy.compilation")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert set_up() is None
    assert "are not cached: " in caplog.text


@pytest.fixture
def compiled(caplog):
    """Count a compilation: compiled(seconds, name). Only what a test counts is counted."""
    caplog.set_level(logging.WARNING, "understudy.compilation")
    forget_programs()
    counter = compilation.CompilationCounter()

    def count(seconds, name="understudy_learn"):
        counter(COMPILED, seconds, fun_name=f"jit({name})")

    return count


def test_often_and_long_is_one_warning(compiled, caplog):
    for _ in range(25):
        compiled(2.0)
        compiled(0.1, "understudy_quick")
        compiled(9.0, "a_users_own")
    (message,) = caplog.messages
    assert message.startswith("the program 'learn' has been compiled 10 times in this process, ")
    assert "in 20 s. " in message


def test_a_few_long_ones_are_no_warning(compiled, caplog):
    for _ in range(9):
        compiled(30.0)
    assert caplog.messages == []


@pytest.mark.agents
def test_the_causes_are_named(compiled, caplog, monkeypatch):
    monkeypatch.setattr(compilation, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(compilation, "MOST_COMPILATIONS", 8)
    counter = compilation.CompilationCounter()
    jax.monitoring.register_event_duration_secs_listener(counter)
    agent = us.SAC("Pendulum-v1", us.SACConfig(**SMALL))
    for rows in range(1, 10):
        agent.act(np.zeros((rows, 3), np.float32))
    jax.monitoring.unregister_event_duration_listener(counter)
    messages = [text for text in caplog.messages if "'act'" in text]
    assert messages and "other numbers of rows in agent.act" in messages[0]


@pytest.mark.agents
def test_a_native_environment_of_the_user_is_compiled_once_for_an_agent(caplog, monkeypatch):
    class Own(CartPole):
        shareable = False

    names = []
    listener = lambda event, seconds, **about: names.append(about.get("fun_name"))  # noqa: E731
    agent = us.A2C(Own())
    agent.evaluate(2)
    jax.monitoring.register_event_duration_secs_listener(listener)
    agent.evaluate(2)
    jax.monitoring.unregister_event_duration_listener(listener)
    assert not [name for name in names if name and "run_episodes" in name]


def test_gpus_alone_have_options_of_their_own():
    gpu, cpu = SimpleNamespace(platform="gpu"), SimpleNamespace(platform="cpu")
    assert compilation.compiler_options([cpu]) is compilation.compiler_options([gpu, cpu]) is None
    options = compilation.compiler_options([gpu, gpu])
    assert options == compilation.GPU_OPTIONS
    # XLA knows them: it refuses others.
    assert jax.jit(lambda x: x + 1, compiler_options=options)(1) == 2
    with pytest.raises(RuntimeError, match="xla_gpu_unknown"):
        jax.jit(lambda x: x + 1, compiler_options={"xla_gpu_unknown": "1"})(1)
