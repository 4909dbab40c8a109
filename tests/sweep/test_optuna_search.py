"""A search by Optuna: any field, pruning, and a study that goes on after a kill."""

import csv
import sys

import optuna
import pytest

import understudy as us
from understudy.errors import ConfigError
from understudy.sweep import Range, search
from understudy.sweep.study import open_study
from understudy.sweep.task import Task

pytestmark = pytest.mark.agents

TINY = dict(batch_size=16, buffer_size=512, start_steps=20, min_buffer_size=20)
SAC = us.SACConfig(hidden_sizes=(4,), **TINY)  # as some trials have it: they share programs
VARY = {
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "hidden_sizes": [(4,), (4, 4)],
    "n_step": Range(1, 2),
}
COMMON = dict(steps=40, config=SAC, episodes=1)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """One trial, and then a second by a second call."""
    database = tmp_path_factory.mktemp("search") / "study.db"
    said: list[str] = []
    for trials in (1, 2):
        result = search(
            "sac", "jax:Pendulum-v1", VARY, database, trials=trials, say=said.append, **COMMON
        )
    return result, database, said


def test_the_same_call_goes_on(searched):
    result, database, said = searched
    assert len(result.outcomes) == 2
    assert [line.split(":")[0] for line in said] == ["trial 0", "trial 1"]
    rates = {outcome.settings["learning_rate"] for outcome in result.outcomes}
    assert len(rates) == 2  # drawing does not repeat itself
    again = search("sac", "jax:Pendulum-v1", VARY, database, trials=2, say=said.append, **COMMON)
    assert again.table() == result.table() and len(said) == 2


def test_any_field_varies_with_its_own_type(searched):
    for outcome in searched[0].outcomes:
        settings = outcome.settings
        assert settings["hidden_sizes"] in [(4,), (4, 4)]
        assert type(settings["n_step"]) is int and 1 <= settings["n_step"] <= 2
        assert 1e-4 <= settings["learning_rate"] <= 1e-2
    command = searched[0].command()
    sizes = searched[0].best.settings["hidden_sizes"]
    assert f"--hidden-sizes {','.join(map(str, sizes))} " in command + " "


def test_a_search_leaves_a_table_and_a_picture(searched):
    result, database, _ = searched
    with database.with_suffix(".csv").open() as file:
        assert [float(row["mean"]) for row in csv.DictReader(file)] == [
            outcome.mean for outcome in result.outcomes
        ]
    assert database.with_suffix(".png").stat().st_size > 10_000
    assert [outcome.mean for outcome in result.outcomes] == sorted(
        (outcome.mean for outcome in result.outcomes), reverse=True
    )


def test_optuna_keeps_silent(searched, capfd):
    search("sac", "jax:Pendulum-v1", VARY, searched[1], trials=1, **COMMON)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == optuna.logging.INFO


def test_another_search_in_the_same_file_is_refused(searched):
    with pytest.raises(ConfigError, match="holds a search that differs in steps"):
        search("sac", "jax:Pendulum-v1", VARY, searched[1], trials=3, **COMMON | {"steps": 41})
    with pytest.raises(ConfigError, match="differs in vary"):
        vary = {"gamma": [0.9, 0.99]}
        search("sac", "jax:Pendulum-v1", vary, searched[1], trials=3, **COMMON)


@pytest.mark.parametrize(
    ("vary", "options", "words"),
    [
        ({"gama": [0.9]}, {}, "did you mean 'gamma'"),
        ({"gamma": [0.9, 2.0]}, {}, "gamma must be at most 1, got 2"),
        ({"n_step": Range(1.5, 3)}, {}, "n_step must be a whole number"),
        ({"activation": ["relu", "rely"]}, {}, "did you mean 'relu'"),
        ({"gamma": [0.9]}, {"trials": 0}, "trials must be at least 1"),
    ],
)
def test_wrong_use_leaves_nothing_behind(tmp_path, vary, options, words):
    with pytest.raises(ConfigError, match=words):
        search(
            "sac", "jax:Pendulum-v1", vary, tmp_path / "a.db", **COMMON | {"trials": 1} | options
        )
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_study(tmp_path):
    (tmp_path / "notes.db").write_text("years of work " * 100)
    with pytest.raises(ConfigError, match=r"notes\.db cannot be used as a study"):
        search("sac", "jax:Pendulum-v1", VARY, tmp_path / "notes.db", trials=1, **COMMON)
    assert (tmp_path / "notes.db").read_text().startswith("years of work")


def test_without_optuna_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r'pip install "understudy\[optuna\]"'):
        search("sac", "jax:Pendulum-v1", VARY, tmp_path / "a.db", trials=1, **COMMON)


@pytest.mark.slow
def test_settings_that_do_not_go_together_fail_alone(tmp_path):
    vary = {"batch_size": [16, 1024], "gamma": [0.9]}  # the ring holds 512
    said: list[str] = []
    result = search(
        "sac", "jax:Pendulum-v1", vary, tmp_path / "a.db", trials=4, say=said.append, **COMMON
    )
    by_size = {outcome.settings["batch_size"]: outcome.state for outcome in result.outcomes}
    assert by_size == {16: "finished", 1024: "failed"}
    assert any("batch_size 1024 is larger than buffer_size 512" in line for line in said)


@pytest.mark.slow
def test_a_trial_that_falls_behind_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda trial: trial.number == 1)
    vary = {"learning_rate": VARY["learning_rate"]}
    result = search("sac", "jax:Pendulum-v1", vary, tmp_path / "a.db", trials=2, **COMMON)
    assert [outcome.state for outcome in result.outcomes] == ["finished", "pruned"]
    assert result.outcomes[1].steps[-1] < 40 == result.outcomes[0].steps[-1]


@pytest.mark.slow
def test_two_searches_do_not_share_a_study(tmp_path):
    vary = {"gamma": [0.9]}

    def during(facts):
        with pytest.raises(ConfigError, match="in use by another search"):
            search("sac", "jax:Pendulum-v1", vary, tmp_path / "a.db", trials=1, **COMMON)

    search("sac", "jax:Pendulum-v1", vary, tmp_path / "a.db", trials=1, say=during, **COMMON)


@pytest.mark.slow
def test_a_killed_trial_is_tried_again(tmp_path):
    """A process that was killed leaves its trial running."""
    task = Task("sac", "jax:Pendulum-v1", SAC, 40, 1, 0, None, None, 1)
    vary = {"learning_rate": Range(1e-4, 1e-2, log=True)}
    study = open_study(optuna, tmp_path / "study.db", task, vary)
    trial = study.ask()
    running = trial.parameters["learning_rate"]
    said: list[str] = []
    result = search(
        "sac", "jax:Pendulum-v1", vary, tmp_path / "study.db", trials=2, say=said.append, **COMMON
    )
    assert said[0] == "trial 0 was killed: its settings are tried again"
    assert len(result.outcomes) == 2
    tried = [outcome.settings["learning_rate"] for outcome in result.outcomes]
    assert any(rate == pytest.approx(running, rel=1e-4) for rate in tried)
    states = [trial.state for trial in study.trials.get_trials(deepcopy=False)]
    assert states.count(optuna.trial.TrialState.FAIL) == 1
