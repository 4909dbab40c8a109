"""A worker process that dies or hangs is replaced; the others' steps are real ones."""

import logging
import multiprocessing
import os
import select
import signal
from functools import partial
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

from tests.faults.fault_env import LENGTH, UNTIL, FaultEnv, factories
from understudy.envs import EpisodeSeeds, Guard, ProcessEnvs
from understudy.envs.fault_guard import LONGEST_TIMEOUT
from understudy.types import EnvironmentError

pytestmark = pytest.mark.processes
ROWS, WORKERS = 4, 2  # rows 0 and 1 are the first worker's, 2 and 3 the second's
SEEDS = EpisodeSeeds(4, ROWS)
ZERO = np.zeros((ROWS, 2), np.float32)


@pytest.fixture
def make():
    made = []

    def build(plans, guard=None):
        parts = factories(plans, [[] for _ in range(ROWS)])
        envs = ProcessEnvs(parts, SEEDS, WORKERS, guard or Guard())
        made.append((envs, envs.pool.memory.name))
        return envs

    yield build
    for envs, segment in made:
        envs.close()
        with pytest.raises(FileNotFoundError):
            SharedMemory(segment)
    assert not multiprocessing.active_children()


def at(row, episode, step, what):
    return {row: {SEEDS(row, episode): (step, what)}}


def fresh(rows, episode):
    return [[row, SEEDS(row, episode) % 997, 0, 0] for row in rows]


def assert_cut(before, step, rows):
    """The rows of one worker begin episode 1; those of the other have taken a step."""
    assert (~step.valid).nonzero()[0].tolist() == rows
    assert step.last.nonzero()[0].tolist() == rows
    assert not step.terminated.any() and not step.reward[rows].any()
    assert step.next_observation[rows].tolist() == before[rows].tolist()
    assert step.observation[rows].tolist() == fresh(rows, 1)
    others = [row for row in range(ROWS) if row not in rows]
    assert (step.next_observation[others, 2] == before[others, 2] + 1).all()
    assert (step.reward[others] == -1).all()


@pytest.mark.fault(2, "the worker is restarted, its rows are cut, the others' steps are real")
@pytest.mark.parametrize(
    ("what", "how"),
    [("killed", "signal 9"), ("segfault", "signal 11"), ("exit", "code 3")],
)
def test_a_worker_that_dies_in_a_step_is_replaced(make, what, how, caplog):
    envs = make(at(1, 0, 3, what))
    envs.reset()
    seen = [envs.step(ZERO).observation for _ in range(2)][-1]
    assert_cut(seen, envs.step(ZERO), rows=[0, 1])
    assert envs.episodes.tolist() == [1, 1, 0, 0]
    following = [envs.step(ZERO) for _ in range(LENGTH)]
    assert all(step.valid.all() for step in following)
    assert envs.episodes.tolist() == [2, 2, 1, 1]  # in step with its new worker
    assert following[-1].observation[:2].tolist() == fresh([0, 1], 2)
    assert envs.faults["worker_restarts"] == 1
    [record] = caplog.records
    told = record.getMessage()
    assert f"environments 0 to 1 ended by {how}".replace("by code", "with code") in told
    assert f"environment 1: step 3 of episode 0, seed {SEEDS(1, 0)}" in told
    assert "last action [-1.0, 3.75]" in told


@pytest.mark.fault(2, "killed between two steps: the same reaction")
def test_a_worker_killed_while_idle_is_replaced(make):
    envs = make({})
    seen = envs.reset()
    os.kill(envs.pool.processes[1].pid, signal.SIGKILL)
    envs.pool.processes[1].join()
    assert_cut(seen, envs.step(ZERO), rows=[2, 3])
    assert envs.step(ZERO).valid.all()


@pytest.mark.fault(2, "noticed at once, while other workers step")
def test_a_death_is_noticed_while_others_are_at_work(make, tmp_path, monkeypatch):
    """The other worker's step ends when the death is logged, and not before."""
    noticed = tmp_path / "noticed"
    envs = make(at(0, 0, 1, f"{UNTIL}{noticed}") | at(2, 0, 1, "killed"))
    seen = envs.reset()
    log = logging.getLogger("understudy.envs")
    monkeypatch.setattr(log, "warning", lambda *_: noticed.touch())
    assert_cut(seen, envs.step(ZERO), rows=[2, 3])


@pytest.mark.fault(2, "dead after its answer: the others' steps end, the next step replaces it")
def test_a_worker_that_dies_after_its_answer_is_replaced(make, tmp_path, monkeypatch):
    """The other worker's step ends when the first one, which had a fault to report, is dead."""
    dead = tmp_path / "dead"
    envs = make(at(0, 0, 1, "raise") | at(2, 0, 1, f"{UNTIL}{dead}"))
    envs.reset()
    record = envs.record

    def kill_first(report):
        monkeypatch.setattr(envs, "record", record)
        os.kill(envs.pool.processes[0].pid, signal.SIGKILL)
        envs.pool.processes[0].join()
        dead.touch()
        return record(report)

    monkeypatch.setattr(envs, "record", kill_first)
    assert envs.step(ZERO).valid.tolist() == [False, True, True, True]
    assert envs.step(ZERO).valid.tolist() == [False, False, True, True]
    assert envs.step(ZERO).valid.all()
    assert envs.faults["worker_restarts"] == 1


@pytest.mark.fault(2, "workers that keep dying end the run; never a bare EOFError")
def test_workers_that_keep_dying_end_the_run(make):
    plan = {0: {SEEDS(0, episode): (1, "exit") for episode in range(9)}}
    envs = make(plan)
    envs.reset()
    with pytest.raises(EnvironmentError, match=r"failed 4 times(.|\n)*ended with code 3"):
        for _ in range(LENGTH):
            envs.step(ZERO)
    with pytest.raises(EnvironmentError, match="closed"):
        envs.reset()


@pytest.mark.fault(2, "a worker that dies whenever it resets: an error after 3 tries")
@pytest.mark.parametrize(("most", "problem"), [(9, "3 in a row"), (1, "failed 2 times")])
def test_workers_that_die_at_each_reset(make, most, problem):
    envs = make(at(3, 0, 0, "killed"), Guard(most_rebuilds=most))
    with pytest.raises(EnvironmentError, match=problem):
        envs.reset()
    assert envs.faults["worker_restarts"] == min(3, most + 1)


@pytest.mark.fault(2, "a worker that dies during a replay is replaced, and the replay starts again")
def test_a_worker_that_dies_in_a_replay(make):
    episodes, past = np.array([3, 0, 2, 0]), [np.zeros((n, 2), np.float32) for n in (2, 0, 3, 1)]
    wanted = make({}).replay(episodes, past)
    envs = make({})
    envs.reset()
    os.kill(envs.pool.processes[0].pid, signal.SIGKILL)
    assert envs.replay(episodes, past).tobytes() == wanted.tobytes()
    assert envs.episodes.tolist() == [3, 0, 2, 0]
    assert envs.step(ZERO).next_observation[:, 2].tolist() == [3, 1, 4, 2]


@pytest.mark.parametrize("goes_on", ["reset", "send"])
def test_an_interrupted_step_is_never_continued(make, goes_on):
    """Its answers, which were not read, would be taken for those of the next command."""
    envs = make({})
    envs.reset()
    envs.send(ZERO)  # Ctrl-C, twice
    with pytest.raises(EnvironmentError, match="was interrupted, so they are closed"):
        envs.reset() if goes_on == "reset" else envs.send(ZERO)


def test_the_time_for_a_long_replay_has_an_end(make):
    """Milliseconds of a poll are an int of 32 bits."""
    episodes, past = np.zeros(ROWS, int), [np.zeros((3, 2), np.float32)] * ROWS
    wanted = make({}).replay(episodes, past)
    envs = make({}, Guard(step_timeout=LONGEST_TIMEOUT))
    envs.reset()
    os.kill(envs.pool.processes[0].pid, signal.SIGKILL)
    assert envs.replay(episodes, past).tobytes() == wanted.tobytes()


class Impatient:
    """Stands for a poll object: waits for the answers that are `left`, and then not at all. None
    waits for all answers."""

    make, left = select.poll, None

    def __init__(self):
        self._poll = Impatient.make()
        self.register, self.unregister = self._poll.register, self._poll.unregister

    def poll(self, _):
        ready = self._poll.poll(0 if Impatient.left == 0 else None)
        if Impatient.left is not None:
            Impatient.left -= len(ready)
        return ready


@pytest.mark.fault(4, "killed after step_timeout and replaced; the others continue")
def test_a_worker_that_hangs_is_replaced(make, caplog, monkeypatch):
    monkeypatch.setattr(select, "poll", Impatient)
    envs = make(at(2, 0, 2, "hang"))
    envs.reset()
    seen, pids = envs.step(ZERO).observation, [process.pid for process in envs.pool.processes]
    with monkeypatch.context() as patch:
        patch.setattr(Impatient, "left", 1)
        assert_cut(seen, envs.step(ZERO), rows=[2, 3])
    now = [process.pid for process in envs.pool.processes]
    assert now[0] == pids[0] and now[1] != pids[1]
    assert envs.step(ZERO).valid.all()
    assert "environments 2 to 3 gave no answer in time" in caplog.records[0].getMessage()


@pytest.mark.fault(5, "an error before training with that worker's traceback; no orphans")
def test_a_constructor_that_fails_in_worker_7_of_8():
    parts = [partial(FaultEnv, row, {}, ["constructor"] if row == 6 else []) for row in range(8)]
    with pytest.raises(EnvironmentError, match="environment 6: the constructor raised") as caught:
        ProcessEnvs(parts, EpisodeSeeds(0, 8), num_workers=8)
    assert "no such robot" in str(caught.value) and "fault_env.py" in str(caught.value)
    assert not multiprocessing.active_children()
