"""A search by Optuna: one training after another, or many at once on a cluster; those that fall
behind are given up early.

All of it is in a SQLite file: the same call again goes on where the last one ended.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from understudy.agent import Agent
from understudy.algorithms.config import Config
from understudy.distributed.config import Cluster
from understudy.errors import ConfigError, DivergedError
from understudy.runs.csv_log import LogRow
from understudy.runs.run import Callback
from understudy.sweep.ray_tune import check_cluster, join, many_trials
from understudy.sweep.result import SweepResult
from understudy.sweep.space import Range, Settings, Vary, check_fields, check_given
from understudy.sweep.study import Study, load_optuna, opened, settings_of
from understudy.sweep.task import Task, make_task, returns_of

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
    device: str | None = None,
    episodes: int = 10,
    cluster: Cluster | None = None,
    at_once: int | None = None,
    say: Callable[[str], Any] = _log.info,
) -> SweepResult:
    """Train until the study in the file `database` has `trials` trials in all.

    Any field may vary. A trial trains `repeats` agents, of seeds seed, seed + 1 … (the same in
    every trial), and stops when its evaluations fall below the median of earlier ones. A trial
    that was killed is tried again. The table and the picture are written beside the file, and
    each trial is told to `say`.

    With a `cluster` trials are processes of it, `at_once` of them at a time (default: as many as
    there are cores for), each with a run directory of its own beside the file.
    """
    optuna = load_optuna()
    database = Path(database)
    task = make_task(kind, env, config, steps, repeats, seed, num_envs, device, episodes)
    _check(vary, task, trials)
    check_cluster(cluster, at_once)
    task.agent(task.config, repeats).close()  # an environment that cannot be is no trial's fault
    together = 1 if cluster is None else join(cluster, at_once, task)
    with opened(optuna, database, task, vary) as study:

        def tell(line: str) -> None:
            say(line)
            if study.done():
                study.result().write_csv(database.with_suffix(".csv"))

        study.try_killed_ones_again(say)
        if cluster is not None:
            many_trials(study, cluster, together, trials, database.with_suffix(""), tell)
        else:
            while len(study.done()) < trials:
                tell(_one_trial(study))
        result = study.result()
    from understudy.sweep.pictures import draw

    draw(result, database.with_suffix(".png"))
    return result


def _check(vary: Vary, task: Task, trials: int) -> None:
    """Everything that can be wrong before the first trial."""
    if trials < 1:
        raise ConfigError(f"trials must be at least 1, got {trials}")
    check_given(vary)
    check_fields(vary, task.config)
    for name, varied in vary.items():
        ends = [varied.low, varied.high] if isinstance(varied, Range) else varied
        for value in ends:
            _check_value(task, name, value)


def _check_value(task: Task, name: str, value: Any) -> None:
    """A value that is wrong by itself. One that is wrong only beside another field's value is
    found, and answered, when the two meet."""
    try:
        task.with_settings({name: value})
    except ConfigError as error:
        if f"{name} must be" in str(error):
            raise


def _one_trial(study: Study) -> str:
    """Train once, and say how it went."""
    trial, task = study.ask(), study.task

    def prune(facts: LogRow) -> bool:
        if "eval/mean_reward" not in facts:
            return False
        trial.report(facts["eval/mean_reward"], facts["time/total_steps"])
        return facts["time/total_steps"] < task.steps and trial.should_prune()

    try:
        returns, steps = _train(task, settings_of(study.vary, trial.params), prune)
    except (ConfigError, DivergedError) as error:
        return study.fail(trial, str(error))
    if steps < task.steps:
        return study.give_up(trial, returns, steps)
    return study.finish(trial, returns)


def _train(task: Task, settings: Settings, prune: Callback) -> tuple[np.ndarray, int]:
    """Returns [repeats, episodes] of the last evaluation, and the steps that were made."""
    agent = task.agent(task.with_settings(settings), task.repeats)
    with contextlib.closing(agent):
        summary = agent.train(task.steps, run=task.run, callbacks=(prune,), progress=False)
    return returns_of(summary, task.seed), summary.steps
