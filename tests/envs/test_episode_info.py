"""What environments report in `info`, per episode, for all kinds of host environments."""

import logging
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.envs.scripted import Faulty, Reporting, Scripted, actions_for, reported
from understudy.envs import EpisodeSeeds, ProcessEnvs, SerialEnvs
from understudy.envs.episode_info import (
    MOST_KEYS,
    EpisodeInfo,
    InfoTally,
    KeyLimit,
    describe,
    split_rows,
)
from understudy.envs.fault_guard import Guard
from understudy.envs.vector import UserVectorEnvs

ROWS, STEPS = 3, 41  # within an episode
SEEDS = EpisodeSeeds(7, ROWS)
FACTORIES = [partial(Reporting, row) for row in range(ROWS)]


def tell(*infos) -> EpisodeInfo | None:
    """What one episode with these infos has reported."""
    tally = InfoTally(1)
    for info in infos:
        tally.add(0, info)
    tally.end(0)
    return tally.take().get(0)


def test_numbers_are_averaged_over_the_steps_that_have_them():
    told = tell({"a": 1, "b": True}, {"a": np.float32(2.5)}, {"a": np.int64(4), "b": False})
    assert told == EpisodeInfo({"a": 2.5, "b": 0.5})
    assert all(type(mean) is float for mean in told.means.values())


@pytest.mark.parametrize(
    "value",
    [
        "text", None, 1j, np.array(1.0), np.zeros(2), [1.0], {"r": 1.0}, float("nan"),
        float("-inf"), np.float32("inf"), 10**400, np.timedelta64(1), object(),
    ],
)  # fmt: skip
def test_what_is_no_finite_number_is_left_out(value):
    assert tell({"a": value, "b": 1.0}) == EpisodeInfo({"b": 1.0})


@pytest.mark.parametrize(
    "key", ["episode", "TimeLimit.truncated", "final_info", 3, "", "two\nlines", "x" * 101, ("a",)]
)
def test_keys_that_are_not_collected(key):
    assert tell({key: 1.0}) is None


@pytest.mark.parametrize("info", [None, [], np.zeros(3), "text"])
def test_an_info_that_is_no_dict(info):
    assert tell(info) is None


def test_a_mean_beyond_floats_is_left_out():
    assert tell({"a": 1e308, "b": 1.0}, {"a": 1e308, "b": 3.0}) == EpisodeInfo({"b": 2.0})


@pytest.mark.parametrize(
    ("infos", "success"),
    [
        ([{"success": True}, {"success": False}], False),
        ([{"is_success": 0.0}, {"is_success": np.True_}, {}], True),
        ([{"success": True, "is_success": False}], True),
        ([{"is_success": False, "success": 1}], True),
        ([{"success": "yes", "is_success": 0}], False),
        ([{"success": float("nan")}], None),
    ],
)
def test_success_is_the_last_value(infos, success):
    told = tell(*infos, {"x": 1.0})
    assert told == EpisodeInfo({"x": 1.0}, success) and type(told.success) in (bool, type(None))


def test_keys_are_limited_and_more_are_warned_of_once(caplog):
    told = tell({f"key{i}": i for i in range(1_000)})
    assert len(told.means) == MOST_KEYS + 1
    limit = KeyLimit()
    assert list(limit.select(told.means)) == [f"key{i}" for i in range(MOST_KEYS)]
    assert limit.select({"key0": 1.0, "another": 2.0}) == {"key0": 1.0}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "more than 64 numbers" in caplog.text


def test_seeds_are_averaged():
    found = describe(
        [
            [EpisodeInfo({"a": 1.0}, True), EpisodeInfo({"a": 3.0}, False), None],
            [EpisodeInfo({"a": 6.0, "b": 1.0})],
        ]
    )
    assert found[0][0] == 0.5 and np.isnan(found[0][1])
    assert found[1] == {"a": 4.0, "b": 1.0}


def run(envs, episodes=None) -> list[list[EpisodeInfo]]:
    """What the episodes of each row have reported, in order."""
    found = [[] for _ in range(ROWS)]
    if episodes is None:
        envs.reset()
    for action in actions_for(STEPS, ROWS):
        step, infos = envs.step(action), envs.take_infos()
        assert set(infos) == set(np.flatnonzero(step.last).tolist())
        for row, info in infos.items():
            found[row].append(info)
    assert envs.take_infos() == {}
    return found


def verify(found):
    for row, infos in enumerate(found):
        assert len(infos) >= 10
        for episode, info in enumerate(infos):
            means, success = reported(row, episode)
            assert info.means == pytest.approx(means) and info.success is success


def test_in_this_process():
    envs = SerialEnvs(FACTORIES, SEEDS)
    verify(run(envs))
    assert all(len(info.means) == 2 for info in envs.read_open_infos().values())


@pytest.mark.processes
def test_in_other_processes():
    envs, here = ProcessEnvs(FACTORIES, SEEDS, num_workers=2), SerialEnvs(FACTORIES, SEEDS)
    verify(run(envs))
    run(here)
    assert envs.read_open_infos() == here.read_open_infos() != {}
    action = np.zeros((ROWS, 2), np.float32)
    assert envs.step(action).reward.tolist() == here.step(action).reward.tolist()
    envs.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_of_a_vector_environment(mode):
    envs = UserVectorEnvs(SyncVectorEnv(FACTORIES, autoreset_mode=mode), SEEDS)
    verify(run(envs))
    envs.reset()
    assert envs.read_open_infos() == {}


def test_vector_environments_that_give_one_dict_a_row():
    rows = np.array([True, False, True])
    infos = np.array([{"a": 1.0}, {"a": 2.0}, None], object)
    assert split_rows(infos, rows) == {0: {"a": 1.0}, 2: None}
    assert split_rows({"a": np.arange(3.0), "b": np.zeros((3, 2))}, rows)[2] == {"a": 2.0}
    assert split_rows({"a": np.arange(3.0), "_a": "no mask"}, rows)[2] == {"a": 2.0}
    assert split_rows(None, rows) == {}


def test_an_episode_that_was_cut_reports_nothing():
    class Failing(Faulty, Reporting):
        pass

    for fault in ("raise", "reward", "observation"):
        guard = Guard(non_finite="drop")
        envs = SerialEnvs([partial(Failing, fault)], EpisodeSeeds(0), guard=guard)
        envs.reset()
        infos = []
        for _ in range(3):  # the fault is in the second step of the second episode
            step = envs.step(np.zeros((1, 2), np.float32))
            infos.append(envs.take_infos())
        assert step.last.all() and not step.valid.any()
        assert [len(each) for each in infos] == [1, 0, 0]
        assert envs.read_open_infos() == {}


@pytest.mark.parametrize(
    "kind", [SerialEnvs, pytest.param(ProcessEnvs, marks=pytest.mark.processes)]
)
def test_replayed_steps_are_counted_again(kind):
    """In the middle of the second episode, which has three steps."""
    envs, past = kind(FACTORIES, SEEDS), actions_for(2, ROWS)
    envs.reset()
    envs.replay(np.ones(ROWS, np.int64), [past[:, row] for row in range(ROWS)])
    assert envs.take_infos() == {}
    assert [info.means["time"] for info in envs.read_open_infos().values()] == [1.5] * ROWS
    assert envs.step(past[0]).last.all()
    for row, info in envs.take_infos().items():
        assert (pytest.approx(info.means), info.success) == reported(row, 1)
    envs.close()


def test_rows_that_are_left_out_report_nothing():
    envs = SerialEnvs(FACTORIES, SEEDS)
    envs.reset()
    only = np.array([False, True, False])
    envs.step(np.zeros((ROWS, 2), np.float32), only)
    assert set(envs.take_infos()) == {1} and envs.read_open_infos() == {}


def test_an_environment_without_info_reports_nothing():
    envs = SerialEnvs([Scripted], EpisodeSeeds(0))
    envs.reset()
    assert envs.step(np.zeros((1, 2), np.float32)).last.all() and envs.take_infos() == {}
