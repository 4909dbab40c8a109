"""SIGINT while a command starts: the process ends at once, with 130, and leaves nothing."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.processes

COMMAND = ["train", "sac", "Pendulum-v1", "--steps", "100000", "--run", "run", "--quiet"]

# Runs the command, and strikes when a function is called or, for "compile", at each compilation.
STRIKE = """
import importlib, os, signal, sys
import jax
from understudy import cli

def strike():
    os.kill(os.getpid(), signal.SIGINT)

module, _, name = sys.argv.pop(1).partition(":")
if module == "compile":
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: strike() if event.endswith("backend_compile_duration") else None)
else:
    place = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        place = getattr(place, part)
    original = getattr(place, last)
    def struck(*arguments, **named):
        strike()
        try:  # an exception could be lost here, as in JAX
            return original(*arguments, **named)
        except KeyboardInterrupt:
            return original(*arguments, **named)
    setattr(place, last, struck)
sys.argv[0] = "understudy"
cli.entry()
"""
POINTS = [
    "understudy.cli:_find",
    pytest.param("understudy.envs.make:resolve", marks=pytest.mark.slow),
    "understudy.agent.agent:Agent.__init__",
    pytest.param("understudy.training.loop:HostTrainer.__init__", marks=pytest.mark.slow),
    pytest.param("understudy.training.trainer:Trainer.initialize", marks=pytest.mark.slow),
    "compile",
]


@pytest.mark.fault(
    58, "a signal while starting and compiling: exit code 130, no files or processes remain"
)
@pytest.mark.parametrize("point", POINTS)
def test_struck_while_it_starts(tmp_path, point):
    ended = subprocess.run(
        [sys.executable, "-c", STRIKE, point, *COMMAND],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 130, ended.stderr
    assert ended.stderr.strip() == "understudy: interrupted"
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.fault(
    58, "a signal at 30 instants of the first 15 seconds: exit code 130, or the signal's own"
)
@pytest.mark.parametrize("tenths", range(0, 150, 5))
def test_struck_at_any_instant(tmp_path, tenths):
    cold = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-m", "understudy.cli", *COMMAND],
        cwd=tmp_path,
        env=cold,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(tenths / 10)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    # Before Python's own start is over, the signal ends the process as it does any other.
    assert process.returncode in (130, -signal.SIGINT), said
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
