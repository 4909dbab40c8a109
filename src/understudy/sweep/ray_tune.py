"""Trials of a search as processes of a Ray cluster, several at a time.

Ray Tune starts the processes, counts cores and repeats trials whose process died. The study decides
what is tried and what is stopped, and it stores all results, as in a search without a cluster. What
Tune writes is never read.
"""

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import numpy as np

from understudy.distributed.config import Cluster
from understudy.distributed.connect import connect, cores, first_line, send_recipe
from understudy.errors import ConfigError, import_extra
from understudy.runs.csv_log import STEPS, LogRow, read_csv
from understudy.runs.run_directory import LOG
from understudy.sweep.result import FAILED, FINISHED, PRUNED
from understudy.sweep.space import Vary
from understudy.sweep.study import Study, Trial, settings_of
from understudy.sweep.task import SCORE, Report, Task, make_directory

RETRIES = 3  # of a trial whose process died


def check_cluster(cluster: Cluster | None, at_once: int | None) -> None:
    if at_once is not None and at_once < 1:
        raise ConfigError(f"at_once must be at least 1, got {at_once}")
    if at_once is not None and cluster is None:
        raise ConfigError("at_once needs a cluster: us.Cluster() starts Ray on this machine")
    if cluster is not None and (cluster.remote or cluster.devices > 1):
        raise ConfigError(
            "each trial of a search is one process: its cluster takes no collectors, "
            "gradient_workers or devices"
        )


def join(cluster: Cluster, at_once: int | None, task: Task) -> int:
    """Reach the cluster before anything is written, and return how many trials run at a time."""
    ray = connect(cluster.address, (at_once or 1) * cluster.cpus_each)
    _load_tune()
    have = cores(ray)
    if have < cluster.cpus_each:
        raise ConfigError(
            f"a trial needs {cluster.cpus_each:g} cores, the cluster has {have:g}: lower cpus_each"
        )
    send_recipe(ray, "trial", task)
    return at_once or int(have // cluster.cpus_each)


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
    tuned = TuneTrials(study, say)
    _tune(tuned, directory, cluster.cpus_each, min(concurrent, missing), missing)
    if len(study.done()) < trials:  # Tune ends without an error when it is interrupted
        raise KeyboardInterrupt


# -- in the process of the search ---------------------------------------------------------------


def _reduce_to_nothing(self: Any) -> Any:
    """Pickle as an empty dict: Tune stores its objects, and everything of value is in the study."""
    return dict, ()


@final
class TuneTrials:
    """The study's trials by Tune's identities."""

    def __init__(self, study: Study, say: Report):
        self.study, self._say = study, say
        self._trials: dict[str, Trial] = {}
        self._deaths: dict[str, str] = {}  # the reason of the last one

    __reduce__ = _reduce_to_nothing

    def suggest(self, identity: str) -> dict[str, Any]:
        trial = self._trials[identity] = self.study.ask()
        return {"run": f"trial-{trial.first_number}", "parameters": trial.parameters}

    def falls_behind(self, identity: str, result: dict[str, Any]) -> bool:
        """Take in the evaluations so far, and return whether the trial should be stopped."""
        behind = self._trials[identity].falls_behind(result.get("points", []))
        return behind and "state" not in result and not result.get("done")

    def end(self, identity: str, result: dict[str, Any] | None) -> None:
        trial, result = self._trials.pop(identity), result or {}
        if result.get("state") == FAILED:
            line = trial.end(FAILED, problem=result["problem"])
        elif "returns" in result:
            line = trial.end(result.get("state", PRUNED), np.array(result["returns"]))
        else:
            reason = self._deaths.get(identity, "")
            line = trial.end(FAILED, problem=f"its process died {RETRIES + 1} times{reason}")
        self._say(line)

    def note_death(self, identity: str, reason: str) -> None:
        self._deaths[identity] = reason
        number = self._trials[identity].number
        self._say(f"trial {number}: its process died and is replaced{reason}")


def _tune(tuned: TuneTrials, directory: Path, cpus: float, concurrent: int, count: int) -> None:
    tune, study = _load_tune(), tuned.study
    storage = directory / "tune"

    class Searcher(tune.search.Searcher):
        def suggest(self, trial_id: str) -> dict[str, Any]:
            return tuned.suggest(trial_id)

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            tuned.end(trial_id, None if error else result)

        def save(self, checkpoint_path: str) -> None:
            pass

        __reduce__ = _reduce_to_nothing

    class Deaths(tune.Callback):
        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            tuned.note_death(trial.trial_id, last_error(Path(trial.local_path, "error.txt")))

        __reduce__ = _reduce_to_nothing

    with _quiet(storage):
        trainable = tune.with_parameters(
            train_trial, task=study.task, vary=dict(study.vary), directory=directory
        )
        resources = {"cpu": cpus, "gpu": 1 if study.task.device == "gpu" else 0}
        tune.Tuner(
            tune.with_resources(trainable, resources),
            tune_config=tune.TuneConfig(
                search_alg=Searcher(),
                num_samples=count,
                max_concurrent_trials=concurrent,
                reuse_actors=False,
            ),
            run_config=tune.RunConfig(
                name="trials",
                storage_path=str(storage),
                stop=tuned.falls_behind,
                failure_config=tune.FailureConfig(max_failures=RETRIES),
                callbacks=[Deaths()],
                verbose=0,
            ),
        ).fit()


def last_error(report: Path) -> str:
    """Return the message of the last error in a trace that Tune wrote, in parentheses."""
    text = report.read_text(errors="replace") if report.exists() else ""
    found = re.findall(r"^[\w.]*Error: (.+)$", text, re.MULTILINE)
    return f" ({found[-1]})" if found else ""


def _load_tune() -> Any:
    return import_extra("ray.tune", "ray", "a search on a cluster needs Ray Tune")


@contextlib.contextmanager
def _quiet(storage: Path) -> Iterator[None]:
    """Keep Tune from printing (the study reports), from leaving files, and from changing the
    working directory of trials."""
    settings = {
        "RAY_AIR_NEW_OUTPUT": "0",  # which prints in spite of `verbose=0`
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    }
    before = {name: os.environ.get(name) for name in settings}
    logger = logging.getLogger("ray")
    level = logger.level
    os.environ.update(settings)
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(storage, ignore_errors=True)


# -- in the process of a trial ------------------------------------------------------------------


def train_trial(config: dict[str, Any], task: Task, vary: Vary, directory: Path) -> None:
    """Train one trial, and report its evaluations to Tune. An error is the outcome of the trial; a
    process that dies reports nothing, and is replaced."""
    from ray import tune

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
    return [
        (int(step), float(mean))
        for step, mean in zip(log[STEPS][scored], log[SCORE][scored], strict=True)
    ]
