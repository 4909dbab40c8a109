"""Trials of a search as processes of a Ray cluster, many at a time.

Ray Tune starts them, counts cores and tries those again whose process died. What is tried, what is
given up and what is kept is the study's affair, as if they ran one after another; so nothing that
Tune writes is ever read.
"""

import contextlib
import dataclasses
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import numpy as np

from understudy.agent import Agent, load
from understudy.distributed.config import Cluster
from understudy.distributed.connect import connect, cores
from understudy.errors import ConfigError, import_extra
from understudy.runs import checkpoint
from understudy.runs.csv_log import STEPS, LogRow, read_csv
from understudy.runs.run import Callback
from understudy.runs.run_directory import LOG
from understudy.sweep.result import FAILED, FINISHED
from understudy.sweep.space import Settings, Vary
from understudy.sweep.study import Study, began_as, first_line, settings_of
from understudy.sweep.task import Task, make_directory, returns_of

RETRIES = 3  # of a trial whose process died
SCORE = "eval/mean_reward"


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
    """Reach the cluster before anything is written. How many trials it is to run at a time."""
    ray = connect(cluster.address, (at_once or 1) * cluster.cpus_each)
    _load_tune()
    have = cores(ray)
    if have < cluster.cpus_each:
        raise ConfigError(
            f"a trial needs {cluster.cpus_each:g} cores, the cluster has {have:g}: lower cpus_each"
        )
    try:
        ray.put(task)
    except TypeError as error:
        raise ConfigError(
            "this environment cannot be sent to a cluster: give an id, or a callable that makes "
            f"one ({first_line(error.__cause__ or error)})"
        ) from error
    return at_once or int(have // cluster.cpus_each)


def many_trials(
    study: Study,
    cluster: Cluster,
    at_once: int,
    trials: int,
    directory: Path,
    say: Callable[[str], Any],
) -> None:
    """Until the study has `trials` in all, each with a run in `directory`, which all machines of
    the cluster must see."""
    missing = trials - len(study.done())
    if missing < 1:
        return
    directory = directory.absolute()
    _refuse_others(directory, len(study.trials.get_trials()))
    make_directory(directory)
    _tune(Ledger(study, say), directory, cluster.cpus_each, min(at_once, missing), missing)
    if len(study.done()) < trials:  # Tune ends quietly when it is interrupted
        raise KeyboardInterrupt


def _refuse_others(directory: Path, known: int) -> None:
    """Runs that this study knows nothing of must not be taken for its own."""
    for path in directory.glob("trial-*"):
        number = re.fullmatch(r"trial-(\d+)", path.name)
        if number and int(number[1]) >= known:
            raise ConfigError(
                f"{path} is a run of another search: move {directory} away, or choose another file"
            )


# -- here ---------------------------------------------------------------------------------------


def _nothing(self: Any) -> Any:
    """Tune stores whatever it is given. All that is worth storing is in the study."""
    return dict, ()


@final
class Ledger:
    """Which of Tune's trials is which of the study's, and what has been told of them."""

    def __init__(self, study: Study, say: Callable[[str], Any]):
        self.study, self._say = study, say
        self._trials: dict[str, Any] = {}
        self._reported: dict[str, set[int]] = {}
        self._deaths: dict[str, str] = {}

    def __reduce__(self) -> Any:
        return _nothing(self)

    def suggest(self, identity: str) -> dict[str, Any]:
        trial = self._trials[identity] = self.study.ask()
        self._reported[identity] = set()
        return {"run": f"trial-{began_as(trial)}", "parameters": trial.params}

    def falls_behind(self, identity: str, result: dict[str, Any]) -> bool:
        """Takes in the evaluations so far. One that a process died after comes twice."""
        trial, known = self._trials[identity], self._reported[identity]
        for step, mean in result.get("points", []):
            if step not in known:
                trial.report(mean, step)
                known.add(step)
        on_the_way = "state" not in result and not result.get("done")
        return (
            on_the_way and max(known, default=0) < self.study.task.steps and (trial.should_prune())
        )

    def ended(self, identity: str, result: dict[str, Any] | None) -> None:
        trial, result = self._trials.pop(identity), result or {}
        state = result.get("state")
        if state == FINISHED:
            line = self.study.finish(trial, np.array(result["returns"]))
        elif state == FAILED:
            line = self.study.fail(trial, result["problem"])
        elif "returns" in result:
            steps = max(self._reported[identity])
            line = self.study.give_up(trial, np.array(result["returns"]), steps)
        else:
            reason = self._deaths.get(identity, "")
            line = self.study.fail(trial, f"its process died {RETRIES + 1} times{reason}")
        self._say(line)

    def died(self, identity: str, reason: str) -> None:
        self._deaths[identity] = reason
        number = self._trials[identity].number
        self._say(f"trial {number}: its process died and is replaced{reason}")


def _tune(ledger: Ledger, directory: Path, cpus: float, at_once: int, missing: int) -> None:
    tune = _load_tune()
    storage = directory / "tune"

    class Searcher(tune.search.Searcher):
        def suggest(self, trial_id: str) -> dict[str, Any]:
            return ledger.suggest(trial_id)

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            ledger.ended(trial_id, None if error else result)

        def save(self, checkpoint_path: str) -> None:
            pass

        __reduce__ = _nothing

    class Deaths(tune.Callback):
        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            ledger.died(trial.trial_id, _reason(Path(trial.local_path, "error.txt")))

        __reduce__ = _nothing

    study = ledger.study
    with _quietly(storage):
        trainable = tune.with_parameters(
            train_and_tell, task=study.task, vary=dict(study.vary), directory=directory
        )
        resources = {"cpu": cpus, "gpu": 1 if study.task.device == "gpu" else 0}
        tune.Tuner(
            tune.with_resources(trainable, resources),
            tune_config=tune.TuneConfig(
                search_alg=Searcher(),
                num_samples=missing,
                max_concurrent_trials=at_once,
                reuse_actors=False,
            ),
            run_config=tune.RunConfig(
                name="trials",
                storage_path=str(storage),
                stop=ledger.falls_behind,
                failure_config=tune.FailureConfig(max_failures=RETRIES),
                callbacks=[Deaths()],
                verbose=0,
            ),
        ).fit()


def _reason(report: Path) -> str:
    """The last error of a trace that Tune has written, if there is any."""
    text = report.read_text(errors="replace") if report.exists() else ""
    found = re.findall(r"^[\w.]*Error: (.+)$", text, re.MULTILINE)
    return f" ({found[-1]})" if found else ""


def _load_tune() -> Any:
    return import_extra("ray.tune", "ray", "a search on a cluster needs Ray Tune")


@contextlib.contextmanager
def _quietly(storage: Path) -> Iterator[None]:
    """Tune neither talks (our own lines say it), nor leaves files, nor moves trials elsewhere."""
    settings = {
        "RAY_AIR_NEW_OUTPUT": "0",  # which tells some of it however quiet it is to be
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


# -- in a trial's own process -------------------------------------------------------------------


def train_and_tell(config: dict[str, Any], task: Task, vary: Vary, directory: Path) -> None:
    """What Tune runs. Whatever goes wrong is the outcome of this trial; a process that dies tells
    nothing, and is replaced."""
    from ray import tune

    place = directory / config["run"]

    def tell(facts: LogRow) -> None:
        if SCORE in facts:  # of single episodes nothing is known here
            means = facts.get(f"{SCORE}_per_seed", [facts[SCORE]])
            tune.report({"points": points(place), "returns": [[mean] for mean in means]})

    try:
        returns = train_on(task, settings_of(vary, config["parameters"]), place, tell)
        outcome = {"state": FINISHED, "returns": returns.tolist(), "points": points(place)}
    except Exception as error:
        outcome = {"state": FAILED, "problem": f"{first_line(error)}"}
    tune.report(outcome)


def train_on(task: Task, settings: Settings, place: Path, tell: Callback) -> np.ndarray:
    """Begin the run in `place`, or go on with it: returns [repeats, episodes] at its end."""
    agent = _agent(task, settings, place)
    with contextlib.closing(agent):
        missing = task.steps - agent.steps
        if missing < 1:  # it died when all was done and nothing told
            return agent.selection_returns(task.episodes)
        run = dataclasses.replace(task.run, keep_checkpoints=1)
        summary = agent.train(missing, run=run, run_dir=place, callbacks=(tell,), progress=False)
    return returns_of(summary, task.seed)


def _agent(task: Task, settings: Settings, place: Path) -> Agent:
    if checkpoint.numbered(place):
        env = None if isinstance(task.env, str) else task.env
        return load(place, env=env, device=task.device)
    shutil.rmtree(place, ignore_errors=True)  # it died before there was anything to go on from
    return task.agent(task.with_settings(settings), task.repeats)


def points(place: Path) -> list[tuple[int, float]]:
    """Step and mean of every evaluation of a run, those before its process died among them."""
    log = read_csv(place / LOG)
    scored = np.isfinite(log[SCORE])
    return [
        (int(step), float(mean))
        for step, mean in zip(log[STEPS][scored], log[SCORE][scored], strict=True)
    ]
