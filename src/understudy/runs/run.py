"""One call of `train`, from the first step to the last: the loop around the loop."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final, runtime_checkable

import numpy as np

from understudy.engine.cadence import next_multiple
from understudy.engine.trainer import Trainer
from understudy.types import ConfigError


@final
@dataclass(frozen=True)
class RunConfig:
    """What happens beside training, and how often. Steps are transitions per member."""

    log_every: int = 1_000
    """Steps between rows of the log."""
    evaluate_every: int = 5_000
    """Steps between evaluations; 0 evaluates only at the end."""
    evaluation_episodes: int = 10
    """Episodes per member and evaluation."""

    def __post_init__(self) -> None:
        problems = []
        if self.log_every < 1:
            problems.append(f"log_every must be at least 1, got {self.log_every}")
        if self.evaluate_every < 0:
            problems.append(f"evaluate_every must be at least 0, got {self.evaluate_every}")
        if self.evaluation_episodes < 1:
            problems.append(
                f"evaluation_episodes must be at least 1, got {self.evaluation_episodes}"
            )
        if problems:
            raise ConfigError("RunConfig: " + "; ".join(problems))


Facts = dict[str, Any]


@runtime_checkable
class Observer(Protocol):
    """Receives facts; may only ask to stop, by returning True."""

    def __call__(self, facts: Facts) -> bool | None: ...


@final
@dataclass
class Summary:
    """What `train` returns."""

    steps: int
    seconds: float
    returns: np.ndarray | None  # the last evaluation, [members, episodes]
    history: list[Facts] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return float("nan") if self.returns is None else float(self.returns.mean())

    def __repr__(self) -> str:
        rate = self.steps / max(self.seconds, 1e-9)
        return (
            f"Summary(steps={self.steps}, seconds={self.seconds:.1f}, "
            f"steps_per_second={rate:.0f}, evaluation_mean={self.mean:.1f})"
        )


def train(
    trainer: Trainer,
    steps: int,
    evaluate: Callable[[], np.ndarray],
    observers: Sequence[Observer],
    config: RunConfig,
) -> Summary:
    """Train on for `steps` transitions per member, logging and evaluating on the way."""
    num_envs = trainer.setting.num_envs
    start, stop = trainer.steps, trainer.steps + steps
    clock, logged_at, logged_steps = time.perf_counter(), time.perf_counter(), trainer.steps
    summary = Summary(steps=0, seconds=0.0, returns=None)
    stopping = False
    while trainer.steps < stop and not stopping:
        until = min(stop, next_multiple(trainer.steps, config.log_every))
        if config.evaluate_every:
            until = min(until, next_multiple(trainer.steps, config.evaluate_every))
        before = trainer.steps
        trainer.advance(-(-(until - before) // num_envs))

        # With several environments a step may pass a multiple without meeting it.
        ended = trainer.steps >= stop
        due = crossed(before, trainer.steps, config.evaluate_every)
        facts = progress_facts(trainer)
        now = time.perf_counter()
        facts["time/fps"] = (trainer.steps - logged_steps) / max(now - logged_at, 1e-9)
        facts["time/time_elapsed"] = now - clock
        if ended or due:
            summary.returns = evaluate()
            facts |= evaluation_facts(summary.returns)
        stopping = any([observer(facts) for observer in observers])
        summary.history.append(facts)
        if stopping and not (ended or due):  # the way to the stop must not be lost
            summary.returns = evaluate()
            facts = {"time/total_steps": trainer.steps} | evaluation_facts(summary.returns)
            for observer in observers:
                observer(facts)
            summary.history.append(facts)
        logged_at, logged_steps = time.perf_counter(), trainer.steps
    summary.steps, summary.seconds = trainer.steps - start, time.perf_counter() - clock
    return summary


def crossed(before: int, after: int, interval: int) -> bool:
    """Whether a multiple of the interval was met on the way; never where it is 0."""
    return interval > 0 and after // interval > before // interval


def progress_facts(trainer: Trainer) -> Facts:
    """How training goes: means over members, and per member where there are several."""
    facts: Facts = {"time/total_steps": trainer.steps, "time/updates": trainer.position.updates}
    episodes = trainer.episodes()
    if any(len(returns) for returns, _ in episodes):
        facts |= _with_members(
            "rollout/ep_rew", [mean_or_nan(returns) for returns, _ in episodes], "_mean"
        )
        lengths = np.concatenate([lengths for _, lengths in episodes])
        facts["rollout/ep_len_mean"] = float(lengths.mean())
    for name, values in trainer.metrics().items():
        facts[f"train/{name}"] = float(values.mean())
    return facts


def evaluation_facts(returns: np.ndarray) -> Facts:
    facts = _with_members("eval/mean_reward", returns.mean(axis=1).tolist(), "")
    return facts | {"eval/std_reward": float(returns.std())}


def _with_members(stem: str, values: list[float], suffix: str) -> Facts:
    facts: Facts = {f"{stem}{suffix}": float(np.nanmean(values))}
    if len(values) > 1:
        facts[f"{stem}_per_seed"] = values
    return facts


def mean_or_nan(values: np.ndarray) -> float:
    """NaN where there is nothing to average, without NumPy's complaint."""
    return float(values.mean()) if len(values) else float("nan")
