"""A search whose trials are processes of a Ray cluster: as one after another, whatever becomes of
them."""

import csv
import os
import pickle
import signal
import threading

import gymnasium as gym
import numpy as np
import optuna
import pytest

import understudy as us
from understudy.distributed.connect import load_ray
from understudy.errors import ConfigError, UnderstudyError
from understudy.runs.csv_log import read_csv
from understudy.sweep import Range, search
from understudy.sweep.ray_tune import RETRIES, TuneTrials, last_error, points, train_trial
from understudy.sweep.study import open_study
from understudy.sweep.task import Task

pytestmark = pytest.mark.ray

STEPS = 100
A2C = us.A2CConfig(hidden_sizes=(8,))
VARY = {"learning_rate": Range(1e-3, 1e-2, log=True), "gamma": [0.9, 0.99]}
COMMON = dict(steps=STEPS, config=A2C, episodes=1, num_envs=1)


def deadly(mark):
    """CartPole; the process that is the first to come to step 50 of an environment is killed."""

    class Deadly(gym.Wrapper):
        taken = 0

        def step(self, action):
            self.taken += 1
            if self.taken == STEPS // 2 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return self.env.step(action)

    return lambda: Deadly(gym.make("CartPole-v1"))


@pytest.fixture(scope="module")
def searched(ray, tmp_path_factory):
    """A process is killed on the way; after two trials somebody presses Ctrl-C, and later repeats
    the call. Then the first trial to be judged falls behind."""
    directory = tmp_path_factory.mktemp("cluster")
    env = deadly(directory / "killed")
    said: list[str] = []

    def say(line):
        said.append(line)
        if line.startswith("trial") and len(ended(said)) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def repeat(say):
        return search("a2c", env, VARY, directory / "study.db", trials=4,
                      cluster=us.Cluster(cpus_each=0.5), at_once=2, say=say, **COMMON)  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        repeat(say)
    before, judged = list(said), []

    def should_prune(trial):
        judged.append(trial.number)
        return trial.number == judged[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optuna.trial.Trial, "should_prune", should_prune)
        result = repeat(said.append)
    return result, directory, before, said[len(before) :]


def ended(said):
    return [line for line in said if "learning_rate" in line]


@pytest.mark.slow
def test_every_trial_ends_and_the_best_comes_first(searched):
    result = searched[0]
    assert [outcome.state for outcome in result.outcomes] == ["finished"] * 3 + ["pruned"]
    finished = [outcome for outcome in result.outcomes if outcome.state == "finished"]
    assert result.best in finished
    assert result.best.mean == max(outcome.mean for outcome in finished)
    for outcome in finished:
        assert outcome.returns.shape == (1, 1)
        assert outcome.steps == list(range(STEPS // 10, STEPS + 1, STEPS // 10))


@pytest.mark.slow
def test_one_that_falls_behind_is_stopped(searched):
    pruned = searched[0].outcomes[-1]
    assert pruned.steps and pruned.steps[-1] < STEPS
    assert any(f"given up at {pruned.mean:.1f}" in line for line in searched[3])


@pytest.mark.slow
def test_the_same_files_as_one_after_another(searched):
    result, directory, *_ = searched
    with (directory / "study.csv").open() as file:
        means = [float(row["mean"]) for row in csv.DictReader(file)]
    assert means == [outcome.mean for outcome in result.outcomes]
    assert (directory / "study.png").stat().st_size > 10_000


@pytest.mark.slow
def test_every_trial_is_a_run_of_its_own_and_tune_leaves_nothing(searched):
    result, directory, *_ = searched
    runs = sorted((directory / "study").iterdir())
    assert all(run.name.startswith("trial-") for run in runs)
    lasts = [read_csv(run / "progress.csv")["eval/mean_reward"][-1] for run in runs]
    finished = [outcome.mean for outcome in result.outcomes if outcome.state == "finished"]
    assert set(finished) <= set(lasts) and len(runs) == 4
    assert us.load(runs[0] / "best", env="CartPole-v1").act(np.zeros(4)) in (0, 1)


@pytest.mark.slow
def test_a_trial_whose_process_is_killed_is_tried_again(searched):
    _, directory, before, _ = searched
    assert (directory / "killed").exists()
    deaths = [line for line in before if "its process died and is replaced" in line]
    assert len(deaths) == 1


@pytest.mark.slow
def test_an_interrupted_search_goes_on(searched):
    _, _, before, after = searched
    assert 2 <= len(ended(before)) < 4
    assert any("was killed: its settings are tried again" in line for line in after)
    assert len(ended(before)) + len(ended(after)) == 4


# -- without a cluster ---------------------------------------------------------------------------


@pytest.fixture
def task():
    return Task("a2c", "CartPole-v1", A2C, STEPS, 1, 0, 1, None, 1)


@pytest.fixture
def tuned(task, tmp_path):
    said: list[str] = []
    tuned = TuneTrials(open_study(optuna, tmp_path / "study.db", task, VARY), said.append)
    return tuned, said


def test_falling_behind_is_the_studys_judgement(tuned, monkeypatch):
    tuned, said = tuned
    tuned.suggest("a")
    report = {"points": [(10, 3.0)], "returns": [[3.0]]}
    assert not tuned.falls_behind("a", report)
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda trial: True)
    report = {"points": [(10, 3.0), (20, 4.0)], "returns": [[4.0]]}
    assert tuned.falls_behind("a", report)
    assert not tuned.falls_behind("a", {"points": [(STEPS, 5.0)]})  # it is at its end
    tuned.on_trial_complete("a", report)
    (outcome,) = tuned.study.result().outcomes
    assert (outcome.state, outcome.mean) == ("pruned", 4.0)
    assert "given up at 4.0" in said[0]


def test_a_failure_is_the_trials_own(tuned):
    tuned, said = tuned
    for identity in "abc":
        tuned.suggest(identity)
    tuned.on_trial_complete("a", {"state": "failed", "problem": "the environment is on fire"})
    tuned.note_death("b", " (no such module)")
    tuned.on_trial_complete("b", error=True)
    tuned.on_trial_complete("c", {"state": "finished", "returns": [[7.0]]})
    result = tuned.study.result()
    assert [outcome.state for outcome in result.outcomes] == ["finished", "failed", "failed"]
    assert result.best.mean == 7.0
    assert said[0].endswith(": the environment is on fire")
    assert said[2].endswith(f": its process died {RETRIES + 1} times (no such module)")


def test_why_a_process_ended(tmp_path):
    report = tmp_path / "error.txt"
    assert last_error(report) == ""
    report.write_text("Failure # 1\nTraceback:\nModuleNotFoundError: No module named 'maze'\n")
    assert last_error(report) == " (No module named 'maze')"


def test_the_trials_of_tune_are_not_stored(tuned):
    assert pickle.loads(pickle.dumps(tuned[0])) == {}


def test_a_run_goes_on_where_its_process_died(task, tmp_path):
    place, seen = tmp_path / "trial-0", []

    def die(facts):
        if facts["time/total_steps"] == 50:
            raise RuntimeError("dies, after a checkpoint")

    def look(facts):
        seen.append(facts["time/total_steps"])

    with pytest.raises(RuntimeError):
        task.train({"gamma": 0.9}, die, place)[0]
    returns = task.train({"gamma": 0.9}, look, place)[0]
    assert seen == [60, 70, 80, 90, 100]
    assert [step for step, _ in points(place)] == list(range(10, STEPS + 1, 10))
    straight = task.train({"gamma": 0.9}, look, tmp_path / "straight")[0]
    assert points(place) == points(tmp_path / "straight")
    np.testing.assert_array_equal(returns, straight)
    # One that died between its last step and its last word.
    np.testing.assert_array_equal(task.train({"gamma": 0.9}, look, place)[0], returns)


def test_what_a_trial_tells(task, tmp_path, monkeypatch):
    told: list[dict] = []
    monkeypatch.setattr("ray.tune.report", told.append)
    trial = {"run": "trial-0", "parameters": {"learning_rate": 1e-3, "gamma": "0.9"}}
    train_trial(trial, task, VARY, tmp_path)
    assert [len(report["points"]) for report in told] == [*range(1, 11), 10]
    assert told[-1]["state"] == "finished" and np.shape(told[-1]["returns"]) == (1, 1)
    told.clear()
    train_trial(trial | {"run": "no\0name"}, task, VARY, tmp_path)
    assert [report["state"] for report in told] == ["failed"] and told[0]["problem"]


def test_runs_of_another_search_are_left_alone(ray, tmp_path):
    (tmp_path / "study" / "trial-0").mkdir(parents=True)
    with pytest.raises(ConfigError, match="trial-0 is a run of another search"):
        search("a2c", "CartPole-v1", VARY, tmp_path / "study.db", trials=1,
               cluster=us.Cluster(), **COMMON)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(cluster=us.Cluster(collectors=2)), "takes no collectors"),
        (dict(cluster=us.Cluster(), at_once=0), "at_once must be at least 1"),
        (dict(at_once=2), "at_once needs a cluster"),
    ],
)
def test_wrong_use_leaves_nothing_behind(tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        search("a2c", "CartPole-v1", VARY, tmp_path / "a.db", trials=1, **options, **COMMON)
    assert not list(tmp_path.iterdir())


def test_a_cluster_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(load_ray(), "is_initialized", lambda: False)
    with pytest.raises(UnderstudyError, match=r"Ray does not answer at '127\.0\.0\.1:1'"):
        search("a2c", "CartPole-v1", VARY, tmp_path / "a.db", trials=1,
               cluster=us.Cluster(address="127.0.0.1:1"), **COMMON)  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_a_trial_larger_than_the_cluster(ray, tmp_path):
    with pytest.raises(ConfigError, match="a trial needs 5 cores, the cluster has 4"):
        search("a2c", "CartPole-v1", VARY, tmp_path / "a.db", trials=1,
               cluster=us.Cluster(cpus_each=5.0), **COMMON)  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_an_environment_that_cannot_travel(ray, tmp_path):
    lock = threading.Lock()

    def make():
        with lock:
            return gym.make("CartPole-v1")

    with pytest.raises(ConfigError, match="cannot be sent to a trial"):
        search("a2c", make, VARY, tmp_path / "a.db", trials=1, cluster=us.Cluster(), **COMMON)
