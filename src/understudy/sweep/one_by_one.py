"""A search by Optuna: one training after another, those that fall behind given up early.

All of it is in a SQLite file: the same call again goes on where the last one ended.
"""

import contextlib
import dataclasses
import fcntl
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from understudy.agent import Agent
from understudy.algorithms.settings import Config
from understudy.errors import ConfigError, UnderstudyError
from understudy.runs.run import Facts, Observer
from understudy.sweep.result import FAILED, FINISHED, PRUNED, Outcome, SweepResult
from understudy.sweep.space import (
    Range,
    Settings,
    Vary,
    check_fields,
    check_given,
    is_whole,
    short,
    spell,
    spell_value,
)
from understudy.sweep.task import Task, diverged_member, make_directory, make_task

RETURNS, TASK, STATE = "returns", "task", "state"  # what a study keeps beside Optuna's own

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
    say: Callable[[str], Any] = _log.info,
) -> SweepResult:
    """Train until the study in the file `database` has `trials` trials in all.

    Any field may vary. A trial trains `repeats` agents, of seeds seed, seed + 1 … (the same in
    every trial), and stops when its evaluations fall below the median of earlier ones. A trial
    that was killed is tried again. The table and the picture are written beside the file, and
    each trial is told to `say`.
    """
    optuna = _optuna()
    database = Path(database)
    task = make_task(kind, env, config, steps, repeats, seed, num_envs, device, episodes)
    _check(vary, task, trials)
    task.agent(task.config, repeats).close()  # an environment that cannot be is no trial's fault
    with _alone(database), _quiet(optuna):
        study = _open(optuna, database, task, vary)
        _try_killed_ones_again(optuna, study, say)
        while len(_done(optuna, study)) < trials:
            say(_one_trial(optuna, study, task, vary))
            _result(optuna, study, task, vary).write_csv(database.with_suffix(".csv"))
        result = _result(optuna, study, task, vary)
    from understudy.sweep.pictures import draw

    draw(result, database.with_suffix(".png"))
    return result


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        problem = 'a search needs Optuna: pip install "understudy[optuna]"'
        raise ConfigError(problem) from error
    return optuna


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


def _distribution(optuna: Any, task: Task, name: str, varied: Range | Sequence[Any]) -> Any:
    if not isinstance(varied, Range):  # as words: Optuna stores neither tuples nor 1 beside True
        return optuna.distributions.CategoricalDistribution([spell_value(v) for v in varied])
    if is_whole({f.name: f.type for f in dataclasses.fields(task.config)}[name]):
        return optuna.distributions.IntDistribution(int(varied.low), int(varied.high), varied.log)
    return optuna.distributions.FloatDistribution(varied.low, varied.high, log=varied.log)


def _settings(vary: Vary, parameters: dict[str, Any]) -> Settings:
    """A trial's parameters as the config takes them."""
    found = {}
    for name, varied in vary.items():
        if isinstance(varied, Range):
            found[name] = short(parameters[name], varied)
        else:
            found[name] = {spell_value(value): value for value in varied}[parameters[name]]
    return found


@contextlib.contextmanager
def _alone(database: Path) -> Iterator[None]:
    """One process at a time: another one's running trial would look like one that was killed.
    The operating system holds the lock, so it never outlives its process."""
    make_directory(database.parent)
    with database.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{database} is in use by another search") from None
        yield


@contextlib.contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _open(optuna: Any, database: Path, task: Task, vary: Vary) -> Any:
    """The study of this task, new or as it was left."""
    about = {
        "algorithm": task.kind.algorithm_class.name,
        "env": task.env_name,
        "vary": {name: spell(varied) for name, varied in vary.items()},
        "steps": task.steps,
        "repeats": task.repeats,
        "seed": task.seed,
        "episodes": task.episodes,
        "config": json.loads(json.dumps(dataclasses.asdict(task.config))),
    }
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{database}")
        names = optuna.get_all_study_names(storage)
        trials = len(optuna.load_study(study_name=None, storage=storage).trials) if names else 0
        study = optuna.create_study(
            study_name="understudy",
            storage=storage,
            load_if_exists=True,
            direction="maximize",
            # Drawing goes on where it was, instead of repeating itself.
            sampler=optuna.samplers.TPESampler(seed=task.seed + trials),
            pruner=optuna.pruners.MedianPruner(n_warmup_steps=task.steps // 5),
        )
    except Exception as error:  # Optuna's, SQLAlchemy's or SQLite's own
        raise ConfigError(f"{database} cannot be used as a study: {_first_line(error)}") from error
    before = study.user_attrs.get(TASK)
    if before is None:
        study.set_user_attr(TASK, about)
    elif before != about:
        differing = ", ".join(name for name in about if about[name] != before.get(name))
        raise ConfigError(
            f"{database} holds a search that differs in {differing}: repeat its command, or choose "
            "another file"
        )
    return study


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _try_killed_ones_again(optuna: Any, study: Any, say: Callable[[str], Any]) -> None:
    states = optuna.trial.TrialState
    for trial in study.get_trials(states=(states.RUNNING,)):
        say(f"trial {trial.number} was killed: its settings are tried again")
        study.tell(trial.number, state=states.FAIL)
        study.enqueue_trial(trial.params)


def _done(optuna: Any, study: Any) -> list[Any]:
    """Trials that count, which killed ones do not."""
    ended = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    return [
        trial
        for trial in study.get_trials()
        if trial.state in ended or trial.user_attrs.get(STATE) == FAILED
    ]


def _one_trial(optuna: Any, study: Any, task: Task, vary: Vary) -> str:
    """Train once, and say how it went."""
    spaces = {name: _distribution(optuna, task, name, varied) for name, varied in vary.items()}
    trial = study.ask(spaces)
    settings = _settings(vary, trial.params)
    states = optuna.trial.TrialState
    told = ", ".join(f"{name} {spell_value(value)}" for name, value in settings.items())

    def prune(facts: Facts) -> bool:
        if "eval/mean_reward" not in facts:
            return False
        trial.report(facts["eval/mean_reward"], facts["time/total_steps"])
        return facts["time/total_steps"] < task.steps and trial.should_prune()

    try:
        returns, steps = _train(task, settings, prune)
    except UnderstudyError as error:
        if not isinstance(error, ConfigError) and diverged_member(error) is None:
            raise
        trial.set_user_attr(STATE, FAILED)
        study.tell(trial, state=states.FAIL)
        return f"trial {trial.number}: {told}: {error}"
    trial.set_user_attr(RETURNS, returns.tolist())
    if steps < task.steps:
        trial.set_user_attr(STATE, PRUNED)
        study.tell(trial, state=states.PRUNED)
        return f"trial {trial.number}: {told}: given up at {returns.mean():.1f}, {steps:,} steps"
    trial.set_user_attr(STATE, FINISHED)
    study.tell(trial, float(returns.mean()))
    return f"trial {trial.number}: {told}: {returns.mean():.1f}"


def _train(task: Task, settings: Settings, prune: Observer) -> tuple[np.ndarray, int]:
    """Returns [repeats, episodes] of the last evaluation, and the steps that were made."""
    agent = task.agent(task.with_settings(settings), task.repeats)
    with contextlib.closing(agent):
        summary = agent.train(task.steps, run=task.run, observers=(prune,), progress=False)
    assert summary.returns is not None
    return summary.returns, summary.steps


def _result(optuna: Any, study: Any, task: Task, vary: Vary) -> SweepResult:
    outcomes = []
    for trial in _done(optuna, study):
        points = sorted(trial.intermediate_values.items())
        outcomes.append(
            Outcome(
                settings=_settings(vary, trial.params),
                seed=task.seed,
                returns=np.array(trial.user_attrs.get(RETURNS, np.empty((task.repeats, 0)))),
                steps=[step for step, _ in points],
                curve=np.array([[value for _, value in points]]),
                state=trial.user_attrs[STATE],
            )
        )
    return task.result(vary, outcomes)
