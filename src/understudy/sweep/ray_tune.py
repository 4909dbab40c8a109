"""Trials of a search as processes of a Ray cluster, several at a time.

Ray Tune starts the processes, counts cores and repeats trials whose process died. The study decides
what is tried and what is stopped, and it stores all results, as in a search without a cluster. What
Tune writes is never read. This module imports Ray: only a search on a cluster imports it.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from ray import tune
from ray.tune.search import Searcher

from understudy.distributed.config import Cluster
from understudy.distributed.connect import environment_variables, first_line
from understudy.errors import ConfigError
from understudy.runs.csv_log import STEPS, LogRow, read_csv
from understudy.runs.files import make_directory
from understudy.runs.run_directory import LOG
from understudy.sweep.result import FAILED, FINISHED, PRUNED
from understudy.sweep.space import Vary
from understudy.sweep.study import Study, Trial, settings_of
from understudy.sweep.task import SCORE, Report, Task

RETRIES = 3  # of a trial whose process died


def run_trials(
    study: Study, cluster: Cluster, concurrent: int, trials: int, directory: Path, say: Report
) -> None:
    """Run trials until the study has `trials` of them, each with a run in `directory`, which all
    machines of the cluster must see."""
    missing = trials - len(study.done())
    if missing < 1:
        return
    directory = directory.absolute()
    # Runs of another study must not be taken for runs of this one.
    known = len(study.trials.get_trials())
    for path in directory.glob("trial-*"):
        number = re.fullmatch(r"trial-(\d+)", path.name)
        if number and int(number[1]) >= known:
            raise ConfigError(
                f"{path} is a run of another search: move {directory} away, or choose another file"
            )
    make_directory(directory)
    limit = min(concurrent, missing)
    _tune(TuneTrials(study, say), directory, cluster.cpus_each, limit, missing)
    if len(study.done()) < trials:  # Tune ends without an error when it is interrupted
        raise KeyboardInterrupt


# -- in the process of the search ---------------------------------------------------------------


def _reduce_to_nothing(self: Any) -> Any:
    """Pickle as an empty dict: Tune stores its objects, and everything of value is in the study."""
    return dict, ()


@final
class TuneTrials(Searcher):
    """The study's trials by Tune's identities."""

    def __init__(self, study: Study, say: Report):
        super().__init__()
        self.study, self._say = study, say
        self._trials: dict[str, Trial] = {}
        self._deaths: dict[str, str] = {}  # the reason of the last one

    __reduce__ = _reduce_to_nothing

    def suggest(self, trial_id: str) -> dict[str, Any]:
        trial = self._trials[trial_id] = self.study.ask()
        return {"run": f"trial-{trial.first_number}", "parameters": trial.parameters}

    def falls_behind(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Take in the evaluations so far, and return whether the trial should be stopped."""
        behind = self._trials[trial_id].falls_behind(result.get("points", []))
        return behind and "state" not in result and not result.get("done")

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        trial, result = self._trials.pop(trial_id), {} if error else result or {}
        if result.get("state") == FAILED:
            line = trial.end(FAILED, problem=result["problem"])
        elif "returns" in result:
            line = trial.end(result.get("state", PRUNED), np.array(result["returns"]))
        else:
            reason = self._deaths.get(trial_id, "")
            line = trial.end(FAILED, problem=f"its process died {RETRIES + 1} times{reason}")
        self._say(line)

    def note_death(self, trial_id: str, reason: str) -> None:
        self._deaths[trial_id] = reason
        number = self._trials[trial_id].number
        self._say(f"trial {number}: its process died and is replaced{reason}")

    def save(self, checkpoint_path: str) -> None:
        pass


@final
class Deaths(tune.Callback):
    """Passes on the deaths of processes."""

    def __init__(self, trials: TuneTrials):
        self._trials = trials

    __reduce__ = _reduce_to_nothing

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self._trials.note_death(trial.trial_id, last_error(Path(trial.local_path, "error.txt")))


def _tune(trials: TuneTrials, directory: Path, cpus: float, concurrent: int, count: int) -> None:
    study, storage = trials.study, directory / "tune"
    with _quiet(storage):
        trainable = tune.with_parameters(
            train_trial, task=study.task, vary=dict(study.vary), directory=directory
        )
        resources = {"cpu": cpus, "gpu": 1 if study.task.device == "gpu" else 0}
        tune.Tuner(
            tune.with_resources(trainable, resources),
            tune_config=tune.TuneConfig(
                search_alg=trials,
                num_samples=count,
                max_concurrent_trials=concurrent,
                reuse_actors=False,
            ),
            run_config=tune.RunConfig(
                name="trials",
                storage_path=str(storage),
                stop=trials.falls_behind,
                failure_config=tune.FailureConfig(max_failures=RETRIES),
                callbacks=[Deaths(trials)],
                verbose=0,
            ),
        ).fit()


def last_error(report: Path) -> str:
    """Return the message of the last error in a trace that Tune wrote, in parentheses."""
    text = report.read_text(errors="replace") if report.exists() else ""
    found = re.findall(r"^[\w.]*Error: (.+)$", text, re.MULTILINE)
    return f" ({found[-1]})" if found else ""


@contextlib.contextmanager
def _quiet(storage: Path) -> Iterator[None]:
    """Keep Tune from printing (the study reports), from leaving files, and from changing the
    working directory of trials."""
    settings = {
        "RAY_AIR_NEW_OUTPUT": "0",  # which prints in spite of `verbose=0`
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    }
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with environment_variables(settings):
            yield
    finally:
        logger.setLevel(level)
        shutil.rmtree(storage, ignore_errors=True)


# -- in the process of a trial ------------------------------------------------------------------


def train_trial(config: dict[str, Any], task: Task, vary: Vary, directory: Path) -> None:
    """Train one trial, and report its evaluations to Tune. An error is the outcome of the trial; a
    process that dies reports nothing, and is replaced."""
    run_dir = directory / config["run"]

    def report(row: LogRow) -> None:
        if SCORE in row:  # returns of single episodes are not in the log
            means = row.get(f"{SCORE}_per_seed", [row[SCORE]])
            tune.report({"points": points(run_dir), "returns": [[mean] for mean in means]})

    try:
        returns, _ = task.train(settings_of(vary, config["parameters"]), report, run_dir)
        outcome = {"state": FINISHED, "returns": returns.tolist(), "points": points(run_dir)}
    except Exception as error:
        outcome = {"state": FAILED, "problem": first_line(error)}
    tune.report(outcome)


def points(run_dir: Path) -> list[tuple[int, float]]:
    """Return step and mean of every evaluation of a run, also of those before a process died."""
    log = read_csv(run_dir / LOG)
    scored = np.isfinite(log[SCORE])
    steps, means = log[STEPS][scored].astype(int), log[SCORE][scored].astype(float)
    return list(zip(steps.tolist(), means.tolist(), strict=True))
