"""A study: all trials of a search, in a SQLite file, and what Optuna makes of them."""

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from understudy.errors import ConfigError, import_extra
from understudy.runs.files import open_for_appending
from understudy.sweep.result import FAILED, FINISHED, PRUNED, Outcome, SweepResult
from understudy.sweep.space import Range, Settings, Vary, is_whole, short, spell, spell_value
from understudy.sweep.task import Task, make_directory

# What a study keeps beside Optuna's own.
RETURNS, TASK, STATE, BEGAN_AS = "returns", "task", "state", "began_as"


@final
@dataclasses.dataclass(frozen=True)
class Study:
    """Asks Optuna for settings, and tells it and the file what came of them. Ends of trials are
    answered with a line for the user."""

    optuna: Any
    trials: Any  # Optuna's own study
    task: Task
    vary: Vary

    def ask(self) -> Any:
        spaces = {name: self._distribution(name, varied) for name, varied in self.vary.items()}
        return self.trials.ask(spaces)

    def _distribution(self, name: str, varied: Range | Sequence[Any]) -> Any:
        kinds = self.optuna.distributions
        if not isinstance(
            varied, Range
        ):  # as words: Optuna stores neither tuples nor 1 beside True
            return kinds.CategoricalDistribution([spell_value(v) for v in varied])
        if is_whole({f.name: f.type for f in dataclasses.fields(self.task.config)}[name]):
            return kinds.IntDistribution(int(varied.low), int(varied.high), varied.log)
        return kinds.FloatDistribution(varied.low, varied.high, log=varied.log)

    def finish(self, trial: Any, returns: np.ndarray) -> str:
        trial.set_user_attr(RETURNS, returns.tolist())
        trial.set_user_attr(STATE, FINISHED)
        self.trials.tell(trial, float(returns.mean()))
        return f"{self._told(trial)}: {returns.mean():.1f}"

    def give_up(self, trial: Any, returns: np.ndarray, steps: int) -> str:
        trial.set_user_attr(RETURNS, returns.tolist())
        trial.set_user_attr(STATE, PRUNED)
        self.trials.tell(trial, state=self.optuna.trial.TrialState.PRUNED)
        return f"{self._told(trial)}: given up at {returns.mean():.1f}, {steps:,} steps"

    def fail(self, trial: Any, problem: str) -> str:
        trial.set_user_attr(STATE, FAILED)
        self.trials.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        return f"{self._told(trial)}: {problem}"

    def _told(self, trial: Any) -> str:
        settings = settings_of(self.vary, trial.params)
        told = ", ".join(f"{name} {spell_value(value)}" for name, value in settings.items())
        return f"trial {trial.number}: {told}"

    def try_killed_ones_again(self, say: Callable[[str], Any]) -> None:
        for trial in self.trials.get_trials(states=(self.optuna.trial.TrialState.RUNNING,)):
            say(f"trial {trial.number} was killed: its settings are tried again")
            self.trials.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
            self.trials.enqueue_trial(trial.params, {BEGAN_AS: began_as(trial)})

    def done(self) -> list[Any]:
        """Trials that count, which killed ones do not."""
        states = self.optuna.trial.TrialState
        return [
            trial
            for trial in self.trials.get_trials()
            if trial.state in (states.COMPLETE, states.PRUNED)
            or trial.user_attrs.get(STATE) == FAILED
        ]

    def result(self) -> SweepResult:
        outcomes = []
        for trial in self.done():
            points = sorted(trial.intermediate_values.items())
            nothing = np.empty((self.task.repeats, 0))
            outcomes.append(
                Outcome(
                    settings=settings_of(self.vary, trial.params),
                    seed=self.task.seed,
                    returns=np.array(trial.user_attrs.get(RETURNS, nothing)),
                    steps=[step for step, _ in points],
                    curve=np.array([[value for _, value in points]]),
                    state=trial.user_attrs[STATE],
                )
            )
        return self.task.result(self.vary, outcomes)


def began_as(trial: Any) -> int:
    """The number of the first trial of these settings, of which this one is the continuation."""
    return trial.user_attrs.get(BEGAN_AS, trial.number)


def settings_of(vary: Vary, parameters: dict[str, Any]) -> Settings:
    """A trial's parameters as the config takes them."""
    found = {}
    for name, varied in vary.items():
        if isinstance(varied, Range):
            found[name] = short(parameters[name], varied)
        else:
            found[name] = {spell_value(value): value for value in varied}[parameters[name]]
    return found


def load_optuna() -> Any:
    return import_extra("optuna", "optuna", "a search needs Optuna")


@contextlib.contextmanager
def opened(optuna: Any, database: Path, task: Task, vary: Vary) -> Iterator[Study]:
    with _alone(database), _quiet(optuna):
        yield open_study(optuna, database, task, vary)


@contextlib.contextmanager
def _alone(database: Path) -> Iterator[None]:
    """One process at a time: another one's running trial would look like one that was killed.
    The operating system holds the lock, so it never outlives its process."""
    make_directory(database.parent)
    with open_for_appending(database.with_suffix(".lock")) as file:
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


def open_study(optuna: Any, database: Path, task: Task, vary: Vary) -> Study:
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
            # Drawing goes on where it was, instead of repeating itself; and it keeps away from
            # settings that are being tried at the moment.
            sampler=optuna.samplers.TPESampler(seed=task.seed + trials, constant_liar=True),
            pruner=optuna.pruners.MedianPruner(n_warmup_steps=task.steps // 5),
        )
    except Exception as error:  # Optuna's, SQLAlchemy's or SQLite's own
        raise ConfigError(f"{database} cannot be used as a study: {first_line(error)}") from error
    before = study.user_attrs.get(TASK)
    if before is None:
        study.set_user_attr(TASK, about)
    elif before != about:
        differing = ", ".join(name for name in about if about[name] != before.get(name))
        raise ConfigError(
            f"{database} holds a search that differs in {differing}: repeat its command, or choose "
            "another file"
        )
    return Study(optuna, study, task, vary)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
