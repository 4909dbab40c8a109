"""The growth of a repertoire as a run advances it, and the metrics that it logs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from understudy.qd.emitters import PolicyGradient
from understudy.qd.illuminators import Illuminator
from understudy.qd.repertoire import Counts, corrected, metrics
from understudy.runs.csv_log import LogRow
from understudy.runs.trainable import Capture, Trainable
from understudy.training.update import read_meter

SECONDS_AT_ONCE = 2.0  # of generations in one call, because a signal waits until its end


@dataclass
class Position:
    """The counters of a run."""

    generations: int = 0
    steps: int = 0  # of environments
    inserted: int = 0
    not_finite: int = 0
    clipped: int = 0
    logged: int = 0  # the generation of the last row of the log
    seconds: float = 0.0


@final
@dataclass
class QDSummary:
    """The result of `illuminate`."""

    evaluations: int
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    corrected: dict[str, float] | None = None
    history: list[LogRow] = field(default_factory=list)

    def __repr__(self) -> str:
        rate = self.evaluations / max(self.seconds, 1e-9)
        shown = ", ".join(f"{name}={value:.4g}" for name, value in self.metrics.items())
        return (
            f"QDSummary(evaluations={self.evaluations}, seconds={self.seconds:.1f}, "
            f"evaluations_per_second={rate:.0f}, {shown})"
        )


@final
@dataclass
class TrainableRepertoire(Trainable):
    """An illuminator, with the functions to save and to draw its repertoire."""

    illuminator: Illuminator
    position: Position
    reevaluation_episodes: int
    capture: Capture
    draw: Callable[[Path, str], None]
    corrected: dict[str, float] | None = None
    """The metrics of the final repertoire over fresh episodes."""

    unit: ClassVar[str] = "evaluations"

    def __post_init__(self) -> None:
        self.batch = self.chunk = self.illuminator.plan.size
        self.ended = []
        self._first, self._begun = self.count, self.position.seconds
        self._logged_steps, self._logged_seconds = self.position.steps, self.position.seconds
        self._pace = 0.0  # generations per second

    @property
    def count(self) -> int:
        return self.position.generations * self.batch

    def advance(self, iterations: int) -> None:
        """Advance by as many generations as take about two seconds."""
        number = max(1, min(iterations, int(SECONDS_AT_ONCE * self._pace)))
        before = time.perf_counter()
        self.illuminator.advance(number)
        jax.block_until_ready(self.illuminator.state)
        self._pace = number / max(time.perf_counter() - before, 1e-9)
        self.position.generations = int(self.illuminator.state.generation)
        self._add_counts()

    def block_until_ready(self) -> None:
        """Do nothing: `advance` has waited."""

    def interrupt(self) -> None:
        """Do nothing: a generation cannot be interrupted."""

    def _add_counts(self) -> None:
        """Add the counts on the device to the position."""
        state = self.illuminator.state
        for name, count in zip(Counts._fields, jax.device_get(state.counts), strict=True):
            setattr(self.position, name, getattr(self.position, name) + int(count))
        zeros = jax.tree.map(jnp.zeros_like, state.counts)
        self.illuminator.state = state._replace(counts=zeros)

    def counters(self) -> LogRow:
        return {"time/total_steps": self.position.steps, "time/evaluations": self.count}

    def metrics(self, seconds: float) -> LogRow:
        position = self.position
        new_steps = position.steps - self._logged_steps
        self._logged_steps, self._logged_seconds = position.steps, position.seconds
        row = self.counters() | {
            "time/generations": position.generations,
            "time/fps": new_steps / max(seconds, 1e-9),
            # Of the whole run so far, with compilation, as in its summary and report.
            "time/evaluations_per_second": self.count / max(position.seconds, 1e-9),
            "time/time_elapsed": position.seconds,
        }
        row |= {f"qd/{name}": value for name, value in self._repertoire_metrics().items()}
        row |= {f"qd/{name}": getattr(position, name) for name in Counts._fields[:3]}
        row |= {f"train/{name}": value for name, value in self._learner_metrics().items()}
        faults = self.illuminator.faults.items()
        return row | {f"env/{name}": count for name, count in faults if count}

    def _repertoire_metrics(self) -> dict[str, float]:
        state = self.illuminator.state
        found = jax.device_get(metrics(state.repertoire, state.offset))
        found["score_offset"] = state.offset
        return {name: float(value) for name, value in found.items()}

    def _learner_metrics(self) -> dict[str, float]:
        """The means of TD3's metrics since the last call; nothing if no emitter learns."""
        emitter = self.illuminator.plan.emitter.emitters[-1]
        if not isinstance(emitter, PolicyGradient):
            return {}
        state = self.illuminator.state
        *others, learner = state.emitter
        meter = jax.tree.map(lambda x: np.asarray(x)[None], learner.meter)
        means, meter = read_meter(meter, emitter.metric_names)
        learner = learner._replace(meter=jax.tree.map(lambda x: jnp.asarray(x[0]), meter))
        self.illuminator.state = state._replace(emitter=(*others, learner))
        return {name: float(values[0]) for name, values in means.items()}

    def evaluate(self) -> LogRow:
        """Score the repertoire by fresh episodes; nothing if that is not wanted."""
        state = self.illuminator.state
        cells = np.flatnonzero(state.repertoire.filled)
        if not self.reevaluation_episodes or not len(cells):
            return {}
        results = self.illuminator.reevaluate(cells, self.reevaluation_episodes)
        found = metrics(corrected(state.repertoire, cells, *results), state.offset)
        self.corrected = {name: float(value) for name, value in found.items()}
        return {f"qd/corrected_{name}": value for name, value in self.corrected.items()}

    def memory_settings(self) -> dict[str, int]:
        config = self.illuminator.plan.config
        names = ("generation_size", "cells", "buffer_size")
        return {name: getattr(config, name) for name in names if hasattr(config, name)}

    def summary(self, history: list[LogRow]) -> QDSummary:
        """The summary of the run; the reevaluation is no part of its seconds."""
        return QDSummary(
            evaluations=self.count - self._first,
            seconds=self._logged_seconds - self._begun,
            metrics=self._repertoire_metrics(),
            corrected=self.corrected,
            history=history,
        )
