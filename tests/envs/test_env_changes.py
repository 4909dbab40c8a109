"""Changes of environments: applied at resets, in order, again after a rebuild, and bounded."""

import json

import gymnasium
import numpy as np
import pytest

from understudy.envs.env_changes import CALL, GET, MOST_CALLS, SET, EnvChanges, is_state
from understudy.envs.fault_guard import Guard
from understudy.envs.gymnasium_envs import Stacked
from understudy.envs.host_envs import ProcessEnvs, SerialEnvs
from understudy.envs.seeds import EpisodeSeeds
from understudy.envs.vector import UserVectorEnvs
from understudy.types import ConfigError, EnvironmentError

WORKERS = [0, pytest.param(2, marks=pytest.mark.processes)]


class Leveled(gymnasium.Env):
    """Episodes of 2 + row steps, which show the level, the calls and whether it was made anew.
    Environment 0 fails once, if it is fragile."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (4,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, row=0, fragile=False):
        self.level, self.calls, self.row, self.fragile = 0, 0, row, fragile
        self.local = lambda: None

    def grow(self, by, text="x"):
        self.calls = 10 * self.calls + by

    def fail(self):
        raise ZeroDivisionError("mine")

    def _see(self):
        return np.array([self.shown, self.calls, self.time, self.row], float)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.shown, self.time = self.level, 0
        return self._see(), {}

    def step(self, action):
        self.time += 1
        if self.fragile and action == 1:
            raise RuntimeError("fragile")
        return self._see(), 1.0, False, self.time == 2 + self.row, {}


def make(workers, rows=3, fragile=False):
    factories = [lambda row=row: Leveled(row, fragile and row == 0) for row in range(rows)]
    seeds = EpisodeSeeds(3, rows)
    guard = Guard(most_rebuilds=5)
    if workers:
        return ProcessEnvs(factories, seeds, workers, guard)
    return SerialEnvs(factories, seeds, guard=guard)


@pytest.fixture(params=WORKERS)
def workers(request):
    return request.param


def step(envs, times=1, action=0):
    for _ in range(times):
        result = envs.step(np.full(envs.num_envs, action))
    return result.observation


def test_a_change_takes_effect_at_the_next_reset_of_each(workers):
    envs = make(workers)
    assert envs.reset()[:, 0].tolist() == [0, 0, 0]
    envs.change(SET, "level", 5)
    envs.change(CALL, "grow", [3])
    assert step(envs)[:, :2].tolist() == [[0, 0]] * 3
    assert step(envs)[:, :2].tolist() == [[5, 3], [0, 0], [0, 0]]  # lengths are 2, 3 and 4
    assert envs.applied.tolist() == [2, 0, 0]
    envs.change(CALL, "grow", [4, "a"])
    assert step(envs)[:, :2].tolist() == [[5, 3], [5, 34], [0, 0]]
    assert step(envs)[:, :2].tolist() == [[5, 34], [5, 34], [5, 34]]
    assert envs.applied.tolist() == [3, 3, 3]
    assert envs.inspect(GET, "level") == [5, 5, 5]
    envs.close()
    with pytest.raises(EnvironmentError, match="these environments are closed"):
        envs.change(SET, "level", 6)


def test_a_replayed_row_gets_exactly_its_changes(workers):
    """Stopped when the rows' open episodes have begun after 1, 0 and 2 changes."""
    envs = make(workers)
    envs.reset()
    envs.change(SET, "level", 1)
    step(envs, 2)  # row 0 begins again
    envs.change(SET, "level", 2)
    seen = step(envs)  # row 1 begins again
    assert seen[:, 0].tolist() == [1, 2, 0]
    other = make(workers)
    stored = json.loads(json.dumps(envs.changes.state_dict()))
    assert is_state(stored)
    other.use_changes(EnvChanges(**stored))
    past = [np.zeros(n, np.int64) for n in (1, 0, 3)]
    back = other.replay(envs.episodes, past, envs.applied)
    assert back.tolist() == seen.tolist() and other.applied.tolist() == [1, 2, 0]
    for _ in range(6):
        assert step(envs).tolist() == step(other).tolist()
    assert envs.applied.tolist() == other.applied.tolist() == [2, 2, 2]
    envs.close(), other.close()


@pytest.mark.fault(1, "an environment that is built again gets the changes by agent.envs again")
def test_an_environment_that_is_built_again_gets_its_changes(workers):
    envs = make(workers, fragile=True)
    envs.change(SET, "level", 1)
    envs.change(CALL, "grow", [7])
    envs.reset()
    envs.change(SET, "level", 2)
    seen = step(envs, action=1)  # environment 0 fails, is built again and reset
    assert seen[:, :2].tolist() == [[2, 7], [1, 7], [1, 7]]
    assert envs.faults["rebuilds"] == 1 and envs.applied.tolist() == [3, 2, 2]
    envs.close()


@pytest.mark.processes
@pytest.mark.fault(2, "a worker that takes the place of another gets the changes by agent.envs")
def test_a_replaced_worker_gets_the_changes():
    envs = make(2)
    envs.change(SET, "level", 4)
    envs.reset()
    envs.change(SET, "level", 6)
    envs.pool.processes[0].kill()
    envs.pool.processes[0].join()
    assert step(envs)[:, 0].tolist() == [6, 4, 4]
    assert envs.faults["worker_restarts"] == 1 and envs.applied.tolist() == [2, 1, 1]
    envs.close()


@pytest.mark.parametrize(
    ("kind", "name", "value", "problem"),
    [
        (SET, "levle", 1, r"environment 0 \(.*\) has no attribute 'levle'"),
        (CALL, "groww", [], "has no attribute 'groww'"),
        (CALL, "level", [], "'level' is no method"),
        (GET, "levle", None, "has no attribute 'levle'"),
    ],
)
def test_an_unknown_name(workers, kind, name, value, problem):
    envs = make(workers)
    envs.reset()
    with pytest.raises(EnvironmentError, match=problem):
        envs.inspect(kind, name) if kind == GET else envs.change(kind, name, value)
    assert envs.changes.total == 0
    step(envs)  # it goes on
    envs.close()


@pytest.mark.processes
def test_a_value_that_cannot_be_sent():
    envs = make(2)
    with pytest.raises(EnvironmentError, match="'local' cannot be sent by a worker process"):
        envs.inspect(GET, "local")
    envs.reset()  # it goes on
    envs.close()


def test_a_method_that_raises_is_named(workers):
    envs = make(workers)
    envs.change(CALL, "fail", [])
    with pytest.raises(EnvironmentError, match=r"envs.call\('fail'\) raised ZeroDivisionError"):
        envs.reset()
    envs.close()


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1),
        np.float64(1),
        (1, 2),
        {1: 2},
        {"a": {2}},
        float("nan"),
        object(),
        "x" * 200_000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_no_json_are_refused(value):
    envs = make(0)
    with pytest.raises(ConfigError, match=r"agent.envs.set_attr\('level', .*cannot be stored"):
        envs.change(SET, "level", value)
    assert envs.changes.total == 0


def test_superseded_values_are_dropped():
    """Each row may need the value with which its open episode began, and the last one."""
    changes, applied = EnvChanges(), np.zeros(3, np.int64)
    for number in range(1_000):
        if number in (10, 600):
            applied[0 if number == 10 else 1] = changes.total
        changes.add(SET, "level", number, applied)
        changes.add(SET, "other", -number, applied)
    assert len(changes.entries) <= 2 * 4
    assert changes.total == 2_000

    def level(stop):
        values = {one.name: one.value for one in changes.between(0, stop)}
        return values.get("level"), values.get("other")

    assert [level(int(stop)) for stop in applied] == [(9, -9), (599, -599), (None, None)]
    assert level(changes.total) == (999, -999)


def test_a_call_is_never_dropped_nor_what_came_before_it():
    changes, applied = EnvChanges(), np.zeros(1, np.int64)
    changes.add(SET, "level", 1, applied)
    changes.add(CALL, "grow", [1], applied)
    applied[:] = 2
    changes.add(SET, "level", 2, applied)
    changes.add(SET, "level", 3, applied)
    assert [(one.kind, one.value) for one in changes.entries] == [(SET, 1), (CALL, [1]), (SET, 3)]
    with pytest.raises(ConfigError, match=r"agent.envs.call was used 1,000 times"):
        for _ in range(MOST_CALLS):
            changes.add(CALL, "grow", [1], applied)


@pytest.mark.parametrize(
    "stored",
    [
        None, {}, {"total": 1, "entries": {}}, {"total": 1, "entries": [[0, "exec", "a", 1]]},
        {"total": 1, "entries": [[1, SET, "a", 1]]}, {"total": 1, "entries": [[0, SET, 3, 1]]},
        {"total": 2, "entries": [[1, SET, "a", 1], [0, SET, "a", 1]]},
        {"total": 1, "entries": [[0, CALL, "a", 1]]}, {"total": True, "entries": []},
        {"total": -1, "entries": []},
    ],
)  # fmt: skip
def test_a_forged_list(stored):
    assert not is_state(stored)


def test_wrappers_are_looked_through():
    class Pictures(Leveled):
        observation_space = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)

        def _see(self):
            return np.full((2, 2), self.level, np.uint8)

    envs = SerialEnvs([lambda: Stacked(gymnasium.wrappers.TimeLimit(Pictures(), 9), 2)],
                      EpisodeSeeds(0))  # fmt: skip
    envs.change(SET, "level", 9)
    assert (envs.reset() == 9).all() and envs.inspect(GET, "level") == [9]


def test_a_users_vector_environment_is_changed_at_once():
    def make_vector():
        vector = gymnasium.vector.SyncVectorEnv([Leveled, lambda: Leveled(1)])
        return UserVectorEnvs(vector, EpisodeSeeds(0, 2))

    envs = make_vector()
    envs.reset()
    envs.change(SET, "level", [1, 2])
    envs.change(CALL, "grow", [3])
    assert envs.inspect(GET, "level") == [[1, 2]] * 2 and envs.inspect(GET, "calls") == [3, 3]
    with pytest.raises(EnvironmentError, match=r"vector environment's .*levle.* raised"):
        envs.change(SET, "levle", 1)
    with pytest.raises(EnvironmentError, match=r"call\('fail'\) raised ZeroDivisionError"):
        envs.change(CALL, "fail", [])
    assert envs.changes.total == 2
    other = make_vector()
    other.use_changes(EnvChanges(**envs.changes.state_dict()))
    assert other.inspect(GET, "calls") == [3, 3]
    envs.close(), other.close()
