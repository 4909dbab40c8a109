"""A study: all trials of a search, in a SQLite file of Optuna."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from understudy.distributed.connect import first_line
from understudy.errors import ConfigError
from understudy.runs.files import lock_file, make_directory
from understudy.sweep.result import FAILED, FINISHED, PRUNED, Outcome, SweepResult
from understudy.sweep.space import Range, Settings, Vary, is_whole, short, spell, spell_value
from understudy.sweep.task import Report, Task

# Attributes of a study and its trials, beside Optuna's own.
RETURNS, TASK, STATE, BEGAN_AS = "returns", "task", "state", "began_as"


@final
@dataclasses.dataclass(frozen=True)
class Study:
    """Asks Optuna for settings, and stores in the file what came of them."""

    optuna: Any
    trials: Any  # Optuna's own study
    task: Task
    vary: Vary

    def ask(self) -> "Trial":
        spaces = {name: self._distribution(name, varied) for name, varied in self.vary.items()}
        return Trial(self, self.trials.ask(spaces))

    def _distribution(self, name: str, varied: Range | Sequence[Any]) -> Any:
        kinds = self.optuna.distributions
        if not isinstance(varied, Range):
            # As words: Optuna stores neither tuples nor 1 beside True.
            return kinds.CategoricalDistribution([spell_value(value) for value in varied])
        if is_whole({f.name: f.type for f in dataclasses.fields(self.task.config)}[name]):
            return kinds.IntDistribution(int(varied.low), int(varied.high), varied.log)
        return kinds.FloatDistribution(varied.low, varied.high, log=varied.log)

    def repeat_killed_trials(self, say: Report) -> None:
        """Queue the settings of trials again whose process was killed."""
        for trial in self.trials.get_trials(states=(self.optuna.trial.TrialState.RUNNING,)):
            say(f"trial {trial.number} was killed: its settings are tried again")
            self.trials.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
            first = trial.user_attrs.get(BEGAN_AS, trial.number)
            self.trials.enqueue_trial(trial.params, {BEGAN_AS: first})

    def done(self) -> list[Any]:
        """Return all trials that have ended. A killed trial has not."""
        states = self.optuna.trial.TrialState
        return [
            trial
            for trial in self.trials.get_trials()
            if trial.state in (states.COMPLETE, states.PRUNED)
            or trial.user_attrs.get(STATE) == FAILED
        ]

    def result(self) -> SweepResult:
        outcomes, nothing = [], np.empty((self.task.repeats, 0))
        for trial in self.done():
            settings, state = settings_of(self.vary, trial.params), trial.user_attrs[STATE]
            returns = np.array(trial.user_attrs.get(RETURNS, nothing))
            means = dict(sorted(trial.intermediate_values.items()))  # by step
            curve = np.array([list(means.values())])
            outcomes.append(Outcome(settings, self.task.seed, returns, list(means), curve, state))
        return self.task.result(self.vary, outcomes)


@final
class Trial:
    """One setting of a study that is being tried."""

    def __init__(self, study: Study, trial: Any):
        self._study, self._trial = study, trial
        self._reported: set[int] = set()  # steps of evaluations
        self.number, self.parameters = trial.number, trial.params
        # The first trial of these settings, of which this one is the continuation.
        self.first_number: int = trial.user_attrs.get(BEGAN_AS, trial.number)
        self.settings = settings_of(study.vary, trial.params)

    def falls_behind(self, points: Sequence[tuple[int, float]]) -> bool:
        """Take in evaluations (step, mean), and return whether the trial should be stopped. A point
        may come twice: a process that was replaced repeats it."""
        for step, mean in points:
            if step not in self._reported:
                self._trial.report(mean, step)
                self._reported.add(step)
        at_end = max(self._reported, default=0) >= self._study.task.steps
        return not at_end and self._trial.should_prune()

    def end(self, state: str, returns: np.ndarray | None = None, problem: str = "") -> str:
        """Store the end of the trial (FINISHED, PRUNED or FAILED), and return a line about it."""
        states = self._study.optuna.trial.TrialState
        # None: Optuna completes the trial if the value is finite.
        stored = {PRUNED: states.PRUNED, FAILED: states.FAIL}.get(state)
        mean, end = None, problem
        if returns is not None:
            mean = float(returns.mean())
            given_up = f"given up at {mean:.1f}, {max(self._reported, default=0):,} steps"
            end = f"{mean:.1f}" if state == FINISHED else given_up
            self._trial.set_user_attr(RETURNS, returns.tolist())
        self._trial.set_user_attr(STATE, state)
        self._study.trials.tell(self._trial, mean if state == FINISHED else None, stored)
        settings = [f"{name} {spell_value(value)}" for name, value in self.settings.items()]
        return f"trial {self.number}: {', '.join(settings)}: {end}"


def settings_of(vary: Vary, parameters: dict[str, Any]) -> Settings:
    """Return the parameters of a trial as the config takes them."""
    found = {}
    for name, varied in vary.items():
        if isinstance(varied, Range):
            found[name] = short(parameters[name], varied)
        else:
            found[name] = {spell_value(value): value for value in varied}[parameters[name]]
    return found


@contextlib.contextmanager
def opened(optuna: Any, database: Path, task: Task, vary: Vary) -> Iterator[Study]:
    """Open a study for this process alone, in which the running trial of another process would look
    like a killed one. The operating system holds the lock, so it never outlives its process."""
    make_directory(database.parent)
    verbosity = optuna.logging.get_verbosity()

    def in_use(holder: str) -> ConfigError:
        return ConfigError(f"{database} is in use by another search ({holder})")

    with lock_file(database.with_suffix(".lock"), in_use):
        try:
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            yield open_study(optuna, database, task, vary)
        finally:
            optuna.logging.set_verbosity(verbosity)


def open_study(optuna: Any, database: Path, task: Task, vary: Vary) -> Study:
    """Return the study of this task, new or with the trials of earlier calls."""
    about = {
        "algorithm": task.kind.algorithm_class.name,
        "env": task.env_name,
        "env_args": json.loads(json.dumps(dict(task.env_args))),
        "vary": {name: spell(varied) for name, varied in vary.items()},
        **{name: getattr(task, name) for name in ("steps", "repeats", "seed", "episodes")},
        "config": json.loads(json.dumps(dataclasses.asdict(task.config))),
    }
    try:
        study = optuna.create_study(
            study_name="understudy",
            storage=optuna.storages.RDBStorage(f"sqlite:///{database}"),
            load_if_exists=True,
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_warmup_steps=task.steps // 5),
        )
        # Sampling continues instead of repeating itself, and avoids settings that are being tried
        # at the moment.
        seed = task.seed + len(study.trials)
        study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
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
