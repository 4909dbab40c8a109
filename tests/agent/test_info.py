"""What environments report reaches the log, evaluations, `episodes.csv` and a resumed run."""

import contextlib
import csv
import json
import re
import shutil
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import understudy as us
from tests.envs.goal import Goal
from understudy.cli import main
from understudy.envs.episode_info import EpisodeInfo
from understudy.errors import CheckpointError, ConfigError
from understudy.runs import checkpoint
from understudy.runs.csv_log import read_csv
from understudy.training import episode_runner
from understudy.training.open_episodes import EndedEpisode, pack_episodes, unpack_episodes

pytestmark = pytest.mark.agents

CONFIG = us.SACConfig(
    hidden_sizes=(8,), batch_size=8, buffer_size=256, start_steps=10, min_buffer_size=16
)
OFTEN = us.RunConfig(
    log_every=30, evaluate_every=60, evaluation_episodes=2, checkpoint_every=50, keep_checkpoints=9
)
QUIET = dict(run=OFTEN, progress=False)


def lines_of(run_dir):
    with (run_dir / "episodes.csv").open() as file:
        return list(csv.DictReader(file))


def without_time(run_dir):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines_of(run_dir)]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """Two seeds on two environments each, 120 steps per seed."""
    run_dir = tmp_path_factory.mktemp("run")
    agent = us.SAC(Goal, CONFIG, seed=5, num_seeds=2, num_envs=2)
    agent.train(120, run_dir=run_dir, **QUIET)
    agent.close()
    return run_dir


def test_every_episode_has_a_line(run_dir):
    lines = lines_of(run_dir)
    assert {line["seed"] for line in lines} == {"5", "6"}
    for seed in "56":
        for env in "01":
            own = [line for line in lines if (line["seed"], line["env"]) == (seed, env)]
            # Without gaps: 60 steps of each environment, in episodes of at most 7.
            ends = np.cumsum([int(line["length"]) for line in own])
            assert [int(line["step"]) for line in own] == (2 * ends).tolist()
            assert 60 - 7 < ends[-1] <= 60
    for line in lines:
        length, success = int(line["length"]), line["success"]
        assert float(line["info/time"]) == (length + 1) / 2
        assert float(line["return"]) == pytest.approx(-length * float(line["info/distance"]), 1e-5)
        assert success in ("0", "1") and (success == "1" or length == 7)
        assert 0 <= float(line["seconds"]) < 1_000
    assert {line["success"] for line in lines} == {"0", "1"}
    steps = [int(line["step"]) for line in lines]
    assert steps == sorted(steps)


def test_the_log_has_means_over_seeds_of_the_episodes_since_the_last_row(run_dir):
    log, lines = read_csv(run_dir / "progress.csv"), lines_of(run_dir)
    rows = log["time/total_steps"].tolist()
    assert rows == [30, 60, 90, 120]
    for place, (after, until) in enumerate(zip([0, *rows], rows, strict=False)):
        ended = [line for line in lines if after < int(line["step"]) <= until]

        def mean(column, seed, ended=ended):
            return np.mean([float(line[column]) for line in ended if line["seed"] == seed])

        rates = [mean("success", seed) for seed in "56"]
        assert log["rollout/success_rate"][place] == pytest.approx(np.mean(rates))
        for index, rate in enumerate(rates):
            assert log[f"rollout/success_rate/seed{index}"][place] == pytest.approx(rate)
        for key in ("info/distance", "info/time"):
            both = [mean(key, seed) for seed in "56"]
            assert log[key][place] == pytest.approx(np.mean(both))
    assert not any(name.startswith("info/time/") for name in log)


def test_evaluations_are_logged(run_dir):
    log = read_csv(run_dir / "progress.csv")
    known = np.isfinite(log["eval/mean_reward"])
    for name in ("eval/success_rate", "eval/info/distance", "eval/info/time"):
        assert (np.isfinite(log[name]) == known).all()
    assert (log["eval/info/distance"][known] < 10).all()
    assert "eval/success_rate/seed1" in log


def test_an_evaluation_has_success_and_info(run_dir):
    with contextlib.closing(us.load(run_dir, env=Goal)) as agent:
        found = agent.evaluate(4)
        assert found == json.loads(json.dumps(found)) | {"ci95": found["ci95"]}
        assert found["success_rate"] * 8 == round(found["success_rate"] * 8)
        assert set(found["info"]) == {"distance", "time"}
        results = agent.play_selection(3)
        for info, length in zip(results.infos.flat, results.lengths.flat, strict=True):
            assert info.means["time"] == (length + 1) / 2 and (info.success or length == 7)


def test_an_episode_that_an_evaluation_cuts_off_counts(run_dir, monkeypatch):
    """Otherwise the rate would be that of the episodes that ended, all of them with success."""
    monkeypatch.setattr(episode_runner, "ENDLESS_STEPS", 9)
    endless = partial(Goal, limit=None)
    with contextlib.closing(us.load(run_dir, env=endless)) as agent:
        results, found = agent.play_selection(20), agent.evaluate(20)
    assert (results.lengths == 9).any() and (results.lengths < 9).any()
    for info, length in zip(results.infos.flat, results.lengths.flat, strict=True):
        assert info.means["time"] == (length + 1) / 2
        assert info.success or length == 9
    assert 0 < found["success_rate"] < 1


def test_what_is_not_reported_is_not_there(tmp_path):
    agent = us.SAC(partial(Goal, reports=False), CONFIG)
    agent.train(60, run_dir=tmp_path, **QUIET)
    assert {"success_rate", "info"}.isdisjoint(agent.evaluate(2))
    agent.close()
    log = read_csv(tmp_path / "progress.csv")
    assert not any("success" in name or "info/" in name for name in log)
    lines = lines_of(tmp_path)
    assert lines and all(line["success"] == "" and len(line) == 7 for line in lines)


@pytest.mark.fault(30, "the numbers in info, success and the log of episodes are the same")
@pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=[pytest.mark.processes, pytest.mark.slow])]
)
def test_a_resumed_run_logs_the_same(tmp_path, workers):
    """The checkpoint is in the middle of an episode, and of the interval between two rows; the log
    and the log of episodes know of later steps."""
    num_envs = 2 if workers else 1
    for name in ("whole", "resumed"):
        agent = us.SAC(Goal, CONFIG, seed=1, num_envs=num_envs, env_workers=workers)
        agent.train(120, run_dir=tmp_path / name, **QUIET)
        agent.close()
    for place in checkpoint.numbered(tmp_path / "resumed")[1:]:
        shutil.rmtree(place)
    resumed = us.load(tmp_path / "resumed", env=Goal)
    assert resumed.steps == 50
    ends = [int(line["step"]) for line in lines_of(tmp_path / "resumed")]
    assert 50 not in ends and any(30 < step < 50 for step in ends)
    resumed.train(70, run_dir=tmp_path / "resumed", **QUIET)
    resumed.close()
    assert without_time(tmp_path / "resumed") == without_time(tmp_path / "whole")
    one, other = (read_csv(tmp_path / name / "progress.csv") for name in ("whole", "resumed"))
    assert one.keys() == other.keys() and "info/distance" in one
    for name in one:
        if not name.startswith("time/"):
            np.testing.assert_array_equal(one[name], other[name], name)


def test_callbacks_get_the_numbers_and_success():
    class Watch(us.Callback):
        def __init__(self):
            self.told = []

        def on_episode(self, agent, episode):
            self.told.append(episode)

    watch, agent = Watch(), us.SAC(Goal, CONFIG)
    summary = agent.train(30, run=OFTEN, progress=False, callbacks=[watch])
    agent.close()
    for episode in watch.told:
        assert set(episode.info) == {"distance", "time", "success"}
        assert episode.info["time"] == (episode.length + 1) / 2
        assert episode.info["success"] in (0.0, 1.0)
    rate = np.mean([episode.info["success"] for episode in watch.told])
    assert summary.history[0]["rollout/success_rate"] == rate


def test_the_command_prints_success_and_means(run_dir, capsys):
    main(["eval", str(run_dir), "--env", "tests.envs.goal:Goal", "--episodes", "2"])
    printed = capsys.readouterr().out
    assert re.search(r"^success rate \d+\.\d%$", printed, re.MULTILINE)
    assert re.search(r"^means of info: distance \S+, time \S+$", printed, re.MULTILINE)


def test_a_vector_environment_reports_as_well(tmp_path):
    envs = SyncVectorEnv([Goal] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = us.SAC(envs, CONFIG)
    agent.train(60, run_dir=tmp_path, **QUIET)
    agent.close()
    for line in lines_of(tmp_path):
        assert float(line["info/time"]) == (int(line["length"]) + 1) / 2


def test_episodes_of_native_environments(tmp_path):
    """The device does not store when and where they ended."""
    run = us.RunConfig(log_every=100, evaluate_every=0, evaluation_episodes=1)
    agent = us.DDQN("jax:CartPole-v1", us.DDQNConfig(hidden_sizes=(8,), buffer_size=1_000))
    agent.train(200, run=run, run_dir=tmp_path, progress=False)
    lines = lines_of(tmp_path)
    assert {line["step"] for line in lines} == {"100", "200"}
    assert {(line["env"], line["success"]) for line in lines} == {("", "")}
    assert 0 < sum(int(line["length"]) for line in lines) <= 200
    agent.close()


def test_without_a_log_of_episodes(tmp_path):
    run = us.RunConfig(log_every=30, evaluate_every=0, evaluation_episodes=1, log_episodes=False)
    agent = us.SAC(Goal, CONFIG)
    agent.train(30, run=run, run_dir=tmp_path, progress=False)
    agent.close()
    assert not (tmp_path / "episodes.csv").exists()
    assert "rollout/success_rate" in read_csv(tmp_path / "progress.csv")


def test_a_log_of_episodes_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "episodes.csv").symlink_to(tmp_path / "victim")
    agent = us.SAC(Goal, CONFIG)
    with pytest.raises(ConfigError, match=r"episodes\.csv is a link"):
        agent.train(30, run_dir=tmp_path, **QUIET)
    agent.close()
    assert (tmp_path / "victim").read_text() == "precious"


EPISODE = EndedEpisode(1, -0.1, 7, 0, 40, 0.0, EpisodeInfo({"a": 0.1}, True))


def test_episodes_are_stored_exactly():
    bare = EPISODE._replace(env=None, info=None)
    loaded = unpack_episodes(pack_episodes([EPISODE, bare]), 2)
    assert [one._replace(clock=0.0) for one in loaded] == [EPISODE, bare]


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "{}1", "3", "[3]", "[[1, 2]]", '[[0, 1, 1, 0, 1, {"a": 1}]]', "[" * 10**5,
        "[[0, 1, 1e999, 0, 1, null]]", "[[2, 1, 1, 0, 1, null]]", '[["x", 1, 1, 0, 1, null]]',
    ],
)  # fmt: skip
def test_stored_episodes_may_be_anything(text):
    with pytest.raises(CheckpointError, match="ended episodes cannot be read"):
        unpack_episodes(np.frombuffer(text.encode(), np.uint8), 2)
