"""Fault 30, the hard way: the process is killed, and another one goes on."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import understudy as us
from tests.faults.resume_cases import STEADY, assert_same_to_the_bit, make

pytestmark = pytest.mark.processes

VICTIM = """
import os
from tests.faults.resume_cases import STEADY, make

def kill(facts):
    if facts["time/total_steps"] >= {at}:
        os.kill(os.getpid(), {number})

make({kind!r}, {env!r}, num_seeds={seeds}, num_envs=2).train(
    240, run=STEADY, run_dir={run!r}, callbacks=(kill,), progress=False
)
"""
CASES = [
    ("SAC", "Pendulum-v1", 1, signal.SIGKILL),
    pytest.param("A2C", "jax:CartPole-v1", 2, signal.SIGTERM, marks=pytest.mark.slow),
]
LONG_CASES = [
    ("SAC", "jax:Pendulum-v1", 4),
    ("DDQN", "jax:CartPole-v1", 4),
    ("A2C", "CartPole-v1", 4),
    pytest.param("TD3", "Hopper-v5", 1, marks=pytest.mark.mujoco),
    ("MPO", "Pendulum-v1", 1),
    ("DDPG", "jax:Pendulum-v1", 1),
]


def kill_and_go_on(tmp_path, kind, env, seeds, number):
    run = tmp_path / "run"
    script = VICTIM.format(
        at=150, number=int(number), kind=kind, env=env, seeds=seeds, run=str(run)
    )
    victim = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert victim.returncode in (-number, 128 + number), victim.stderr
    resumed = us.load(run)
    # A kill costs what came after the last checkpoint; SIGTERM costs nothing.
    assert 40 <= resumed.steps <= 150 if number == signal.SIGKILL else resumed.steps >= 150
    resumed.train(240 - resumed.steps, run=STEADY, run_dir=run, progress=False)
    whole = make(kind, env, num_seeds=seeds, num_envs=2)
    whole.train(240, run=STEADY, run_dir=tmp_path / "whole", progress=False)
    assert_same_to_the_bit(whole, resumed, tmp_path)
    logs = [(tmp_path / name / "progress.csv").read_text() for name in ("run", "whole")]
    assert [without_times(log) for log in logs[:1]] == [without_times(log) for log in logs[1:]]


def without_times(log):
    """The rows of a log, but for what a clock has said."""
    header, *rows = (line.split(",") for line in log.splitlines())
    kept = [place for place, name in enumerate(header) if name[:9] not in ("time/fps", "time/time")]
    return sorted([header[place] for place in kept]), [
        dict((header[place], row[place]) for place in kept) for row in rows
    ]


@pytest.mark.fault(30, "after SIGKILL and after SIGTERM, including the log")
@pytest.mark.parametrize(("kind", "env", "seeds", "number"), CASES)
def test_a_killed_run_goes_on_to_the_bit(tmp_path, kind, env, seeds, number):
    kill_and_go_on(tmp_path, kind, env, seeds, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize(("kind", "env", "seeds"), LONG_CASES)
def test_others_go_on_as_well(tmp_path, kind, env, seeds, number):
    kill_and_go_on(tmp_path, kind, env, seeds, number)


@pytest.mark.fault(37, "workers of a killed run end with it")
def test_workers_do_not_outlive_a_killed_run(tmp_path):
    script = (
        "import os, signal\n"
        "from understudy.envs.make import resolve\n"
        "from understudy.envs.seeds import EpisodeSeeds\n"
        "envs = resolve('Pendulum-v1', 2).make_host(2, EpisodeSeeds(0, 2), workers=2)\n"
        "envs.reset()\n"
        "print(*[process.pid for process in envs.pool.processes], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    victim = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    workers = [int(pid) for pid in victim.stdout.split()]
    assert len(workers) == 2
    for _ in range(100):
        left = [pid for pid in workers if Path(f"/proc/{pid}").exists() and not _zombie(pid)]
        if not left:
            return
        signal.sigtimedwait([], 0.1)
    pytest.fail(f"still there: {left}")


def _zombie(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
