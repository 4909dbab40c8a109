"""The loop around the loop: train, log, evaluate, save, until the end or until asked to stop."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import jax
import numpy as np

from understudy.algorithms.config import Config, setting
from understudy.runs.signals import Interrupted, Interruption
from understudy.training.trainer import Trainer
from understudy.training.update_schedule import next_multiple
from understudy.types import ClusterError, ConfigError, UnderstudyError

SECONDS_BETWEEN = 60.0  # checkpoints, where no number of steps is asked for
LEAST_BETWEEN_LOGS, VECTOR_STEPS_BETWEEN_LOGS, MOST_EVALUATIONS = 1_000, 100, 20  # by default


@final
@dataclass(frozen=True)
class RunConfig(Config):
    """Settings of logging, evaluation and checkpoints. Steps are environment steps per seed."""

    log_every: int | None = setting(None, at_least=1)
    """Steps between rows of the log (default: 1,000, or 100 steps of all environments)."""
    evaluate_every: int | None = setting(None, at_least=0)
    """Steps between evaluations; 0 evaluates only at the end (default: a twentieth of the run, or
    more, so that evaluation takes at most a tenth of the run's steps in time)."""
    evaluation_episodes: int = setting(10, at_least=1)
    """Episodes per seed and evaluation."""
    checkpoint_every: int | None = setting(None, at_least=0)
    """Steps between checkpoints; 0 saves only at the end (default: about every minute)."""
    keep_checkpoints: int = setting(2, at_least=1)
    """Number of newest checkpoints to keep, besides `best`."""

    def completed(self, steps: int, num_envs: int, episode_steps: int) -> "RunConfig":
        """Fill in the intervals of a run of `steps` in all on `num_envs` environments per seed,
        whose episodes take at most `episode_steps`.

        Environments are stepped together, in training and in evaluation. An evaluation takes
        as many such vector steps as the longest episode has steps. Evaluations are so few that they
        take at most a tenth of training's vector steps, the one at the end aside."""
        log_every, evaluate_every = self.log_every, self.evaluate_every
        if log_every is None:
            log_every = max(LEAST_BETWEEN_LOGS, VECTOR_STEPS_BETWEEN_LOGS * num_envs)
        if evaluate_every is None:
            affordable = steps // num_envs // (10 * episode_steps)
            evaluate_every = -(-steps // min(max(affordable, 1), MOST_EVALUATIONS))
        return replace(self, log_every=log_every, evaluate_every=evaluate_every)


LogRow = dict[str, Any]


@runtime_checkable
class Callback(Protocol):
    """Receives facts; may only ask to stop, by returning True."""

    def __call__(self, facts: LogRow) -> bool | None: ...


def check_callbacks(given: Any, observers: Any) -> tuple[Any, ...]:
    """Return the callbacks, one or several; refuse the argument's old name."""
    if observers is not None:
        raise ConfigError("'observers' is called 'callbacks' now")
    several = (given,) if callable(given) else given
    if not isinstance(several, tuple | list) or not all(map(callable, several)):
        raise ConfigError(f"callbacks are functions of the row, one or several, got {given!r}")
    return tuple(several)


@final
@dataclass
class Summary:
    """What `train` returns."""

    steps: int
    seconds: float
    returns: np.ndarray | None  # the last evaluation, [seeds, episodes]
    history: list[LogRow] = field(default_factory=list)
    diverged: tuple[int, ...] = ()  # seeds whose updates were not finite, and who are frozen

    @property
    def mean(self) -> float:
        return float("nan") if self.returns is None else float(self.returns.mean())

    def __repr__(self) -> str:
        rate = self.steps / max(self.seconds, 1e-9)
        return (
            f"Summary(steps={self.steps}, seconds={self.seconds:.1f}, "
            f"steps_per_second={rate:.0f}, evaluation_mean={self.mean:.1f})"
        )


@runtime_checkable
class Keeper(Protocol):
    """Keeps checkpoints (`Records`)."""

    saved_at: float

    def checkpoint(self, steps: int) -> None: ...

    def newest(self) -> Path | None: ...


@final
@dataclass
class Run:
    """One call of `train`, from the first step to the last."""

    trainer: Trainer
    evaluate: Callable[[], np.ndarray]
    callbacks: Sequence[Callback]
    config: RunConfig
    keeper: Keeper | None = None

    def train(self, steps: int) -> Summary:
        """Train on for `steps` transitions per seed, logging, evaluating and saving."""
        trainer, begun = self.trainer, time.perf_counter()
        start, stop = trainer.steps, trainer.steps + steps
        self._summary = Summary(steps=0, seconds=0.0, returns=None)
        self._clock, self._clock_steps, self._ticked = begun, start, begun
        trainer.interrupted = False
        trainer.goal = -(-stop // trainer.setup.num_envs)

        def stop_stepping() -> None:
            trainer.interrupted = True

        with Interruption(stop_stepping) as interruption:
            with explaining(self.keeper, self._sizes(), self._keep):
                while self._report(stop, interruption) and trainer.steps < stop:
                    self._advance(stop)
                    if trainer.interrupted:
                        break
            self._keep()
            interruption.leave()
        self._summary.steps = trainer.steps - start
        self._summary.diverged = tuple(np.flatnonzero(trainer.diverged()).tolist())
        self._summary.seconds = time.perf_counter() - begun
        return self._summary

    def _advance(self, stop: int) -> None:
        """To the next step at which something is due."""
        trainer, config = self.trainer, self.config
        intervals = (config.log_every, config.evaluate_every, config.checkpoint_every)
        until = min([stop, *(next_multiple(trainer.steps, every) for every in intervals if every)])
        before = trainer.steps
        trainer.advance(-(-(until - before) // trainer.setup.num_envs))
        if config.checkpoint_every is None:
            due = self.keeper and time.monotonic() - self.keeper.saved_at > SECONDS_BETWEEN
        else:
            due = crossed(before, trainer.steps, config.checkpoint_every)
        if due and not trainer.interrupted:
            self._keep()

    def _report(self, stop: int, interruption: Interruption) -> bool:
        """Tell the callbacks how it goes, where that is due; False if one wants to stop.

        What is due follows from what the log has told so far, so that a run that was stopped
        before it could tell does so when it goes on."""
        trainer, config = self.trainer, self.config
        told = trainer.position.logged * trainer.setup.num_envs
        ended = trainer.steps >= stop and trainer.steps > told
        evaluating = ended or crossed(told, trainer.steps, config.evaluate_every)
        if not evaluating and not crossed(told, trainer.steps, config.log_every):
            return True
        trainer.settle()
        seconds = self._tick() - self._clock
        # First what may be broken off: the rest is told once, and then forgotten.
        returns = self._evaluate(interruption) if evaluating else None
        stopping = self._tell(self._progress(seconds), returns)
        if stopping and not evaluating:  # the way to the stop must not be lost
            facts = {"time/total_steps": trainer.steps}
            self._tell(facts, self._evaluate(interruption))
        self._clock, self._clock_steps = self._tick(), trainer.steps
        return not stopping

    def _progress(self, seconds: float) -> LogRow:
        """`seconds` of training since the last time."""
        facts = progress_facts(self.trainer)
        facts["time/fps"] = (self.trainer.steps - self._clock_steps) / max(seconds, 1e-9)
        facts["time/time_elapsed"] = self.trainer.position.seconds
        return facts

    def _tick(self) -> float:
        """The time, which is counted into the run's."""
        now = time.perf_counter()
        self.trainer.position.seconds += now - self._ticked
        self._ticked = now
        return now

    def _evaluate(self, interruption: Interruption) -> np.ndarray:
        with interruption.breaking():
            return self.evaluate()

    def _tell(self, facts: LogRow, returns: np.ndarray | None) -> bool:
        if returns is not None:
            self._summary.returns = returns
            facts |= evaluation_facts(returns)
        self.trainer.position.logged = self.trainer.position.iterations
        self._summary.history.append(facts)
        try:
            return any([callback(facts) for callback in self.callbacks])
        except Exception:
            self._keep()  # the mistake is the callback's: what was learned stays
            raise

    def _keep(self) -> None:
        self._tick()
        if self.keeper is not None:
            self.keeper.checkpoint(self.trainer.steps)

    def _sizes(self) -> dict[str, int]:
        """What memory is needed for."""
        setup = self.trainer.setup
        return {
            name: getattr(setup.algorithm.config, name)
            for name in ("batch_size", "buffer_size")
            if hasattr(setup.algorithm.config, name)
        } | {"num_seeds": setup.num_seeds}


@contextlib.contextmanager
def explaining(
    keeper: Keeper | None, sizes: Mapping[str, int], save: Callable[[], None]
) -> Iterator[None]:
    """Around a run: what a signal breaks off ends quietly, memory that does not suffice names the
    sizes to lower, what lost its cluster is saved, and errors say which checkpoint is left."""
    try:
        with _naming_sizes(sizes):
            yield
    except Interrupted:
        pass
    except UnderstudyError as error:
        if isinstance(error, ClusterError):  # all that was learned is here
            save()
        newest = keeper and keeper.newest()
        if newest is None:
            raise
        raise type(error)(f"{error}; the last good checkpoint is {newest}") from error


@contextlib.contextmanager
def _naming_sizes(sizes: Mapping[str, int]) -> Iterator[None]:
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        settings = ", ".join(f"{name} {value:,}" for name, value in sizes.items())
        raise UnderstudyError(
            f"the accelerator is out of memory ({settings}): lower one of them"
        ) from error


def crossed(before: int, after: int, interval: int | None) -> bool:
    """Whether a multiple of the interval was met on the way; never where there is none."""
    return bool(interval) and after // interval > before // interval


def progress_facts(trainer: Trainer) -> LogRow:
    """How training goes: means over seeds, and per seed where there are several."""
    facts: LogRow = {"time/total_steps": trainer.steps, "time/updates": trainer.position.updates}
    episodes = trainer.episodes()
    if any(len(returns) for returns, _ in episodes):
        facts |= _with_members(
            "rollout/ep_rew", [mean_or_nan(returns) for returns, _ in episodes], "_mean"
        )
        lengths = np.concatenate([lengths for _, lengths in episodes])
        facts["rollout/ep_len_mean"] = float(lengths.mean())
    for name, values in trainer.metrics().items():
        facts[f"train/{name}"] = float(np.nanmean(values))
    diverged = trainer.diverged()
    if diverged.any():
        facts["train/diverged_seeds"] = int(diverged.sum())
        facts["train/diverged_per_seed"] = diverged.astype(float).tolist()
    facts |= {f"env/{name}": count for name, count in trainer.faults().items() if count}
    facts |= {f"cluster/{name}": value for name, value in trainer.facts().items()}
    return facts


def evaluation_facts(returns: np.ndarray) -> LogRow:
    facts = _with_members("eval/mean_reward", returns.mean(axis=1).tolist(), "")
    return facts | {"eval/std_reward": float(returns.std())}


def _with_members(stem: str, values: list[float], suffix: str) -> LogRow:
    known = [value for value in values if not np.isnan(value)]
    facts: LogRow = {f"{stem}{suffix}": float(np.mean(known)) if known else float("nan")}
    if len(values) > 1:
        facts[f"{stem}_per_seed"] = values
    return facts


def mean_or_nan(values: np.ndarray) -> float:
    """NaN where there is nothing to average, without NumPy's complaint."""
    return float(values.mean()) if len(values) else float("nan")
