"""A search by Optuna: one training after another, or several at once on a cluster. Trials whose
evaluations fall behind are stopped early.

Everything is stored in a SQLite file: the same call again continues the search.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from understudy.agent import Agent
from understudy.algorithms.config import Config
from understudy.distributed.config import Cluster
from understudy.distributed.connect import connect, cores, send_recipe
from understudy.errors import ConfigError, DivergedError, import_extra
from understudy.runs.csv_log import STEPS, LogRow
from understudy.sweep.result import FAILED, FINISHED, PRUNED, SweepResult
from understudy.sweep.space import Range, Vary, check_fields, check_given
from understudy.sweep.study import Study, opened
from understudy.sweep.task import SCORE, Report, Task

_log = logging.getLogger("understudy.sweep")


def search(
    kind: str | type[Agent],
    env: Any,
    vary: dict[str, Range | Sequence[Any]],
    database: str | Path,
    *,
    trials: int,
    steps: int,
    repeats: int = 1,
    config: Config | None = None,
    seed: int = 0,
    num_envs: int | None = None,
    env_args: dict[str, Any] | None = None,
    device: str | None = None,
    episodes: int = 10,
    cluster: Cluster | None = None,
    at_once: int | None = None,
    say: Report = _log.info,
) -> SweepResult:
    """Train until the study in the file `database` has `trials` trials in all.

    Any field may vary. A trial trains `repeats` agents, of seeds seed, seed + 1 … (the same in
    every trial), and stops when its evaluations fall below the median of earlier ones. A trial
    that was killed is tried again. The table and the picture are written beside the file. `say` is
    called with a line about each trial.

    With a `cluster` every trial is a process of it, and `at_once` of them run at a time (default:
    as many as there are cores for). Each has a run directory of its own beside the file.
    """
    optuna = import_extra("optuna", "optuna", "a search needs Optuna")
    database = Path(database)
    own = env_args or {}
    task = Task(kind, env, config, steps, repeats, seed, num_envs, device, episodes, own)
    _check(vary, task, trials)
    _check_cluster(cluster, at_once)
    # An environment that cannot be made is an error of the call, not of a trial.
    task.agent(task.config, repeats).close()
    concurrent = 1 if cluster is None else _join(cluster, at_once, task)
    with opened(optuna, database, task, vary) as study:

        def report(line: str) -> None:
            say(line)
            if study.done():
                study.result().write_csv(database.with_suffix(".csv"))

        study.repeat_killed_trials(say)
        if cluster is not None:
            from understudy.sweep.ray_tune import run_trials

            run_trials(study, cluster, concurrent, trials, database.with_suffix(""), report)
        else:
            while len(study.done()) < trials:
                report(_run_trial(study))
        result = study.result()
    from understudy.sweep.pictures import draw

    draw(result, database.with_suffix(".png"))
    return result


def _check(vary: Vary, task: Task, trials: int) -> None:
    """Refuse all wrong settings before the first trial."""
    if trials < 1:
        raise ConfigError(f"trials must be at least 1, got {trials}")
    check_given(vary)
    check_fields(vary, task.config)
    for name, varied in vary.items():
        for value in [varied.low, varied.high] if isinstance(varied, Range) else varied:
            try:
                task.with_settings({name: value})
            except ConfigError as error:
                # A value that only contradicts another field may suit the trial's own values.
                if f"{name} must be" in str(error):
                    raise


def _check_cluster(cluster: Cluster | None, at_once: int | None) -> None:
    if at_once is not None and at_once < 1:
        raise ConfigError(f"at_once must be at least 1, got {at_once}")
    if at_once is not None and cluster is None:
        raise ConfigError("at_once needs a cluster: us.Cluster() starts Ray on this machine")
    if cluster is not None and (cluster.remote or cluster.devices > 1):
        raise ConfigError(
            "each trial of a search is one process: its cluster takes no collectors, "
            "gradient_workers or devices"
        )


def _join(cluster: Cluster, at_once: int | None, task: Task) -> int:
    """Reach the cluster before anything is written, and return how many trials run at a time."""
    ray = connect(cluster.address, (at_once or 1) * cluster.cpus_each)
    import_extra("ray.tune", "ray", "a search on a cluster needs Ray Tune")
    have = cores(ray)
    if have < cluster.cpus_each:
        raise ConfigError(
            f"a trial needs {cluster.cpus_each:g} cores, the cluster has {have:g}: lower cpus_each"
        )
    send_recipe(ray, "trial", task)
    return at_once or int(have // cluster.cpus_each)


def _run_trial(study: Study) -> str:
    """Train once, and return a line about it."""
    trial, task = study.ask(), study.task

    def falls_behind(row: LogRow) -> bool:
        return SCORE in row and trial.falls_behind([(row[STEPS], row[SCORE])])

    try:
        returns, steps = task.train(trial.settings, falls_behind)
    except (ConfigError, DivergedError) as error:
        return trial.end(FAILED, problem=str(error))
    return trial.end(PRUNED if steps < task.steps else FINISHED, returns)
