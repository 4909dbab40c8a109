import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from multiprocessing.shared_memory import SharedMemory

import gymnasium
import numpy as np
import pytest

from tests.envs.scripted import Faulty, Pixels, Scripted, actions_for, collect, expected, same
from understudy.envs import EpisodeSeeds, ProcessEnvs, SerialEnvs
from understudy.types import EnvironmentError

pytestmark = pytest.mark.processes
STEPS = 40


def segment_of(envs: ProcessEnvs) -> str:
    return envs.pool.memory.name


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(autouse=True)
def no_orphans():
    yield
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("rude", [False, True])
def test_no_false_and_no_lost_rows(rude):
    seeds = EpisodeSeeds(7, 3)
    envs = ProcessEnvs([partial(Scripted, row, rude) for row in range(3)], seeds, num_workers=2)
    for row, got in enumerate(collect(envs, STEPS)):
        same(got, expected(row, STEPS, 3, seeds))
    envs.close()


def test_the_same_bits_as_serial():
    seeds = EpisodeSeeds(1, 3)
    factories = [partial(gymnasium.make, "Pendulum-v1", max_episode_steps=7)] * 3
    serial, processes = SerialEnvs(factories, seeds), ProcessEnvs(factories, seeds, 2)
    assert serial.reset().tobytes() == processes.reset().tobytes()
    for action in actions_for(30, 3)[..., :1]:
        one, other = serial.step(action), processes.step(action)
        assert one.descriptor is None and other.descriptor is None
        for left, right in zip(one[:-1], other[:-1], strict=True):
            assert left.dtype == right.dtype and left.tobytes() == right.tobytes()
    assert serial.episodes.tolist() == processes.episodes.tolist() == [4, 4, 4]
    history = [actions_for(4, 3)[:count, row, :1] for row, count in enumerate((0, 2, 4))]
    episodes = np.array([3, 0, 9])
    one, other = serial.replay(episodes, history), processes.replay(episodes, history)
    assert one.tobytes() == other.tobytes()
    assert processes.episodes.tolist() == [3, 0, 9]
    processes.close()


def step_in_parts(envs, action, parts):
    for part, rows in enumerate(parts):
        envs.send(action[rows], part)
    return [envs.receive(part) for part in range(len(parts))]


@pytest.mark.skipif(sys.platform == "win32", reason="workers have no sockets there")
def test_a_temporary_directory_with_a_long_path(tmp_path):
    directory = tmp_path / ("a" * 100)
    directory.mkdir()
    code = textwrap.dedent("""\
        import gymnasium
        from understudy.envs import EpisodeSeeds, ProcessEnvs
        ProcessEnvs([lambda: gymnasium.make("Pendulum-v1")], EpisodeSeeds(0, 1), num_workers=1)
    """)
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(directory)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"temporary directory, {directory}, is too long" in done.stderr
    assert "set TMPDIR to a shorter one" in done.stderr.splitlines()[-1]


def test_two_parts_are_the_whole():
    seeds = EpisodeSeeds(1, 6)
    factories = [partial(gymnasium.make, "Pendulum-v1", max_episode_steps=7)] * 6
    serial, processes = SerialEnvs(factories, seeds), ProcessEnvs(factories, seeds, 3)
    parts = processes.divide(2)  # 3 workers of 2 environments
    assert parts == [slice(0, 2), slice(2, 6)] and serial.divide(2) == [slice(0, 6)]
    assert serial.reset().tobytes() == processes.reset().tobytes()
    for action in actions_for(20, 6)[..., :1]:
        whole = serial.step(action)
        for rows, part in zip(parts, step_in_parts(processes, action, parts), strict=True):
            for left, right in zip(whole[:-1], part[:-1], strict=True):
                assert left[rows].tobytes() == right.tobytes()
    assert serial.episodes.tolist() == processes.episodes.tolist()
    processes.close()


def test_environments_of_one_seed_are_never_in_two_parts():
    envs = ProcessEnvs([Scripted] * 6, EpisodeSeeds(0, 6), num_workers=2)  # 3 each
    assert envs.divide(2) == [slice(0, 6)]
    envs.close()


def test_a_worker_that_dies_in_one_part_cuts_its_own_rows_only():
    factory = partial(gymnasium.make, "Pendulum-v1")
    envs = ProcessEnvs([factory] * 4, EpisodeSeeds(3, 4), num_workers=4)
    parts = envs.divide(1)
    assert parts == [slice(0, 2), slice(2, 4)]
    before = envs.reset()
    action = np.zeros((4, 1), np.float32)
    os.kill(envs.pool.processes[2].pid, 9)
    envs.pool.processes[2].join()
    first, second = step_in_parts(envs, action, parts)
    assert first.valid.tolist() == [True, True] and not first.last.any()
    assert second.valid.tolist() == [False, True] and second.last.tolist() == [True, False]
    assert second.next_observation[0].tolist() == before[2].tolist()
    assert envs.episodes.tolist() == [0, 0, 1, 0]
    for result in step_in_parts(envs, action, parts):
        assert result.valid.all()
    envs.close()


def test_bytes_and_choices():
    envs = ProcessEnvs([Pixels, Pixels], EpisodeSeeds(1, 2), num_workers=1)
    assert envs.reset().dtype == np.uint8
    assert envs.step(np.array([0, 2])).observation[:, 0, 0, 0].tolist() == [5, 7]
    envs.close()


def test_workers_never_import_jax_nor_the_main_script():
    class Spy(Scripted):
        def reset(self, *, seed=None, options=None):
            jax = any(name.split(".")[0] in ("jax", "jaxlib", "jaxtyping") for name in sys.modules)
            return np.array([jax, "pytest" in sys.modules, 0.0, 0.0]), {}

    envs = ProcessEnvs([Spy], EpisodeSeeds(0))
    assert envs.reset().tolist() == [[0, 0, 0, 0]]
    envs.close()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"environment 2: step\(\) raised ZeroDivisionError(.|\n)*Traceback"),
        ("observation", r"environment 2: the observation is nan at index \[2\].*last action"),
        ("reward", r"environment 2: the reward is inf .*last action"),
        ("shape", r"environment 2: expected the observation to have shape \(4,\), got \(3,\)"),
        ("constructor", r"environment 2: the constructor raised RuntimeError: no such robot"),
    ],
)
def test_faults_name_the_environment_and_leave_nothing(fault, message):
    factories = [Scripted, Scripted, partial(Faulty, fault, 2), Scripted]
    with pytest.raises(EnvironmentError, match=message):
        collect(ProcessEnvs(factories, EpisodeSeeds(0, 4), num_workers=3), STEPS)
    assert not multiprocessing.active_children()


def test_unsupported_spaces_leave_nothing():
    with pytest.raises(EnvironmentError, match="supported: Box"):
        ProcessEnvs([partial(gymnasium.make, "Blackjack-v1")] * 2, EpisodeSeeds(0, 2))


def test_close_leaves_nothing_and_is_safe_twice():
    envs = ProcessEnvs([Scripted] * 2, EpisodeSeeds(0, 2), num_workers=2)
    envs.reset()
    pids, segment = [process.pid for process in envs.pool.processes], segment_of(envs)
    envs.close()
    envs.close()
    assert all(is_gone(pid) for pid in pids)
    with pytest.raises(FileNotFoundError):
        SharedMemory(segment)


SCRIPT = """
    import os, sys
    import numpy as np, gymnasium
    from understudy.envs import EpisodeSeeds, ProcessEnvs

    class Mine(gymnasium.Env):  # known to this script only, which has no __main__ guard
        observation_space = gymnasium.spaces.Box(-1, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None): return np.zeros(1, np.float32), {}
        def step(self, action): return np.zeros(1, np.float32), 0.0, False, False, {}

    envs = ProcessEnvs([Mine] * 2, EpisodeSeeds(0, 2), num_workers=2)
    envs.reset()
    print(*(process.pid for process in envs.pool.processes), envs.pool.memory.name, flush=True)
    ENDING
"""


@pytest.mark.parametrize(
    "ending",
    [
        *(pytest.param(end, marks=pytest.mark.slow) for end in ("", "raise ValueError")),
        "os.kill(os.getpid(), 9)",
    ],
)
def test_nothing_outlives_the_program_however_it_ends(tmp_path, ending):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).replace("ENDING", ending))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=300
    )
    *pids, segment = done.stdout.split()
    assert len(pids) == 2, done.stderr
    deadline = time.monotonic() + 300  # against a hang only
    while not all(is_gone(int(pid)) for pid in pids) or os.path.exists(f"/dev/shm/{segment}"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "leaked" not in done.stderr or "kill" in ending


class Unsendable(Scripted):
    """Its observation space cannot be pickled."""

    def __init__(self):
        super().__init__(0)
        self.observation_space.lock = threading.Lock()


def test_a_space_that_cannot_be_sent_is_an_error_with_its_reason():
    with pytest.raises(EnvironmentError, match="cannot pickle"):
        ProcessEnvs([Unsendable], EpisodeSeeds(0), num_workers=1)
