"""The library runs where the modules and calls of POSIX are missing, as on Windows."""

import ctypes
import os
import subprocess
import sys
import textwrap

import pytest

from tests.contracts.sources import REPOSITORY
from understudy.runs import files
from understudy.runs.files import lock_directory
from understudy.training.replay_placement import windows_memory
from understudy.types import CheckpointError

# What Windows does not have. `msvcrt` is added where a test says so.
HIDE = """
import importlib, multiprocessing, os, select, signal, sys
import multiprocessing.connection, multiprocessing.shared_memory, resource, socket, tempfile

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
del select.poll, signal.SIGHUP, os.O_NOFOLLOW, os.O_NONBLOCK, os.sysconf, os.posix_fallocate
del os.sched_getaffinity
multiprocessing.get_all_start_methods = lambda: ["spawn"]
"""


def run(code: str, cwd) -> str:
    code = HIDE + textwrap.dedent(code)
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.processes
@pytest.mark.agents
def test_training_saving_and_loading_work_without_posix(tmp_path):
    """With environments in this process and in workers, a run directory, a resume, and a lock."""
    said = run(
        """
        import understudy as us

        small = dict(hidden_sizes=(8,), batch_size=8, buffer_size=64, start_steps=9)
        small |= dict(min_buffer_size=9, replay_storage="disk")
        config = us.RunConfig(evaluation_episodes=1, evaluate_every=0, checkpoint_every=10)
        agent = us.SAC("Pendulum-v1", num_envs=2, env_workers=2, **small)
        agent.train(20, run=config, run_dir="run", progress=False)
        agent.close()
        agent = us.load("run")
        agent.train(20, run=config, run_dir="run", progress=False)
        place = agent.save("agent")
        agent.close()
        print(us.load(place).steps, agent.act([0.0, 0.0, 0.0]).shape)

        import understudy.cli.train, understudy.cli.sweep, understudy.sweep.study
        """,
        tmp_path,
    )
    assert said.split()[:1] == ["40"] and not (tmp_path / "run" / "run.lock").exists()


def test_the_file_is_the_lock_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FCNTL", None)
    monkeypatch.setattr(files, "EXCLUSIVE", os.O_EXCL)
    with lock_directory(tmp_path):
        with pytest.raises(CheckpointError, match=r"in use.*process \d+ on .*; remove .*run\.lock"):
            lock_directory(tmp_path).__enter__()
        assert (tmp_path / "run.lock").exists()
    with lock_directory(tmp_path):
        pass
    assert not (tmp_path / "run.lock").exists()


class Msvcrt:
    """Locks of Windows: of bytes, by an open file."""

    LK_NBLCK = 2

    def __init__(self):
        self.holder = None

    def locking(self, file, mode, count):
        assert (mode, count) == (self.LK_NBLCK, 1) and os.lseek(file, 0, os.SEEK_CUR) > 200
        if self.holder is not None:
            raise PermissionError("locked")
        self.holder = file


def test_locks_of_windows(tmp_path, monkeypatch):
    locks = Msvcrt()
    monkeypatch.setattr(files, "FCNTL", None)
    monkeypatch.setattr(files, "MSVCRT", locks)
    (tmp_path / "run.lock").write_text("process 1 on another-machine\n")  # its holder is gone
    with lock_directory(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / "run.lock").read_text()
        holder = rf"in use by another run \(process {os.getpid()} on"
        with pytest.raises(CheckpointError, match=holder):
            lock_directory(tmp_path).__enter__()
    assert not (tmp_path / "run.lock").exists()


def test_the_memory_of_windows(monkeypatch):
    class Kernel:
        def GetPhysicallyInstalledSystemMemory(self, kilobytes):
            ctypes.cast(kilobytes, ctypes.POINTER(ctypes.c_ulonglong))[0] = 2**20
            return 1

    class Windows:
        kernel32 = Kernel()

    assert windows_memory() == sys.maxsize
    monkeypatch.setattr(ctypes, "windll", Windows(), raising=False)
    assert windows_memory() == 2**30


@pytest.mark.processes
def test_help_can_be_written_in_any_encoding():
    """A pipe of Windows has no Greek letters."""
    result = subprocess.run(
        [sys.executable, "-m", "understudy.cli", "train", "ddqn", "--help"],
        env=os.environ | {"PYTHONIOENCODING": "cp1252"}, capture_output=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0 and b"--gamma" in result.stdout, result.stderr
