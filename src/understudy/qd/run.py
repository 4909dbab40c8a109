"""The loop around the generations: log, save, until the end or until asked to stop."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from understudy.algorithms.config import Config, setting
from understudy.qd.emitters import PolicyGradient
from understudy.qd.map_elites import Again, Counts, Illuminator
from understudy.qd.repertoire import Repertoire, add, empty, metrics, policies_in
from understudy.qd.repertoire_file import (
    describe_cells,
    pack,
    read_cells,
    refuse_other_cells,
    unpack,
)
from understudy.runs import checkpoint
from understudy.runs.run import SECONDS_BETWEEN, Callback, Keeper, LogRow, explaining
from understudy.runs.signals import Interruption
from understudy.state_dict import StateDict, add_prefix, load_state_dict, select_prefix, state_dict
from understudy.training.meter import Meter, read_meter
from understudy.training.update import LearnerState
from understudy.training.update_schedule import next_multiple

LOG_EVERY = 10  # generations, by default
SECONDS_AT_ONCE = 2.0  # of generations, between two looks at whether to stop


@final
@dataclass(frozen=True)
class QDRunConfig(Config):
    """Settings of logging, checkpoints and re-evaluation of a quality-diversity run."""

    log_every: int | None = setting(None, at_least=1)
    """Generations between rows of the log (default: 10; `understudy illuminate`: a fiftieth of the
    run)."""
    checkpoint_every: int | None = setting(None, at_least=0)
    """Generations between checkpoints; 0 saves only at the end (default: about every minute)."""
    keep_checkpoints: int = setting(2, at_least=1)
    """Number of newest checkpoints to keep."""
    reevaluation_episodes: int = setting(5, at_least=0)
    """Fresh episodes that each policy of the final repertoire plays, which corrects scores for
    luck; 0 skips this."""


@dataclass
class Position:
    """How far a run has come, and what it has counted."""

    generations: int = 0
    steps: int = 0  # of environments
    inserted: int = 0
    not_finite: int = 0
    clipped: int = 0
    logged: int = 0  # steps that the log has told of
    seconds: float = 0.0


@final
@dataclass
class QDSummary:
    """What `illuminate` returns."""

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


def corrected(repertoire: Repertoire, cells: np.ndarray, again: Again) -> Repertoire:
    """The repertoire as it would be if its policies had been judged by their means over all these
    episodes: some move to another cell, and some lose theirs."""
    policies, born = policies_in(repertoire, cells), repertoire.born[cells]
    template = jax.tree.map(lambda x: x[0], repertoire.policies)
    fitness, descriptor = (jnp.asarray(np.mean(x, axis=1), jnp.float32) for x in again)
    return add(empty(repertoire.cells, template), policies, fitness, descriptor, born)[0]


def capture(
    illuminator: Illuminator, position: Position, experience: bool = True
) -> tuple[dict[str, StateDict], dict[str, Any]]:
    """Groups of arrays and a part of the manifest, for a checkpoint. Without the experience it is
    a repertoire to use, but not to go on from."""
    state = illuminator.state
    world = add_prefix("repertoire", pack(state.repertoire))
    rest = {"key": state.key, "generation": state.generation, "offset": state.offset}
    world |= add_prefix("rest", state_dict(rest | {"counts": state.counts}))
    if state.experience is not None and experience:
        alone = jax.tree.map(lambda x: x[None], state.experience)
        buffer = illuminator.generations.plan.buffer
        world |= add_prefix("experience", buffer.state_dict(alone))
    learner = add_prefix("emitter", state_dict(state.emitter))
    about = {"position": asdict(position), "cells": describe_cells(state.repertoire.cells)}
    return {"learner": learner, "world": world}, about


def restore(illuminator: Illuminator, kept: checkpoint.Stored) -> bool:
    """Stand where it was captured; whether that is enough to go on from, bit for bit."""
    state, world = illuminator.state, kept.groups["world"]
    template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
                            state.repertoire.policies)  # fmt: skip
    arrays = select_prefix(world, "repertoire")
    cells = read_cells(kept.place, kept.manifest.get("cells"), arrays)
    refuse_other_cells(kept.place, cells, state.repertoire.cells)
    rest = {"key": state.key, "generation": state.generation, "offset": state.offset}
    rest = load_state_dict(rest | {"counts": state.counts}, select_prefix(world, "rest"))
    experience, stored = state.experience, select_prefix(world, "experience")
    if experience is not None and stored:
        alone = jax.tree.map(lambda x: x[None], experience)
        buffer = illuminator.generations.plan.buffer
        experience = jax.tree.map(lambda x: x[0], buffer.load_state_dict(alone, stored))
    illuminator.state = state._replace(
        repertoire=unpack(arrays, cells, template),
        emitter=load_state_dict(state.emitter, select_prefix(kept.groups["learner"], "emitter")),
        experience=experience,
        **rest,
    )
    return experience is None or bool(stored)


@final
@dataclass
class QDRun:
    """One call of `illuminate`, from the first generation to the last."""

    illuminator: Illuminator
    position: Position
    callbacks: Sequence[Callback]
    config: QDRunConfig
    keeper: Keeper | None = None

    def illuminate(self, generations: int) -> QDSummary:
        begun, start = time.perf_counter(), self.position.generations
        self._stop, self._summary = start + generations, QDSummary(0, 0.0)
        self._ticked, self._clock = begun, (self.position.steps, begun)
        self._pace, self._interrupted = 0.0, False

        def stop() -> None:
            self._interrupted = True

        with Interruption(stop) as interruption:
            with explaining(self.keeper, self._sizes(), self._keep):
                while self.position.generations < self._stop and not self._interrupted:
                    self._advance()
                    enough = self._report()
                    self._keep_if_due()  # when it is told: the log of who goes on has no gap
                    if enough:
                        break
                self._summary.seconds = time.perf_counter() - begun
                self._correct(interruption)
            self._keep()
            interruption.leave()
        done = self.position.generations - start
        self._summary.evaluations = done * self.illuminator.generations.size
        self._summary.metrics = self._metrics()
        return self._summary

    @property
    def _log_every(self) -> int:
        return self.config.log_every or LOG_EVERY

    def _sizes(self) -> dict[str, int]:
        """What memory is needed for."""
        config = self.illuminator.generations.plan.config
        names = ("generation_size", "cells", "buffer_size")
        return {name: getattr(config, name) for name in names if hasattr(config, name)}

    def _advance(self) -> None:
        """To the next row of the log, or as far as goes in a moment: a signal waits that long."""
        here = self.position.generations
        intervals = [every for every in (self._log_every, self.config.checkpoint_every) if every]
        until = min([self._stop, *(next_multiple(here, every) for every in intervals)])
        count = max(1, min(until - here, int(SECONDS_AT_ONCE * self._pace)))
        before = time.perf_counter()
        self.illuminator.advance(count)
        self.illuminator.settle()
        self._pace = count / max(time.perf_counter() - before, 1e-9)
        self.position.generations = int(self.illuminator.state.generation)
        self._count()

    def _report(self) -> bool:
        """Tell the callbacks how it goes, where that is due; whether one wants to stop."""
        here = self.position.generations
        if here % self._log_every and here < self._stop:
            return False
        return self._tell(self._progress())

    def _progress(self) -> LogRow:
        position, size = self.position, self.illuminator.generations.size
        now, done = self._tick(), position.generations * size
        steps, then = self._clock
        self._clock = (position.steps, now)
        facts: LogRow = {
            "time/total_steps": position.steps,
            "time/evaluations": done,
            "time/generations": position.generations,
            "time/fps": (position.steps - steps) / max(now - then, 1e-9),
            # Of the whole run so far, compilation included, as its last line and its page say.
            "time/evaluations_per_second": done / max(position.seconds, 1e-9),
            "time/time_elapsed": position.seconds,
        }
        facts |= {f"qd/{name}": value for name, value in self._metrics().items()}
        facts |= {f"qd/{name}": getattr(position, name) for name in Counts._fields[1:]}
        facts |= {f"train/{name}": value for name, value in self._learning().items()}
        faults = self.illuminator.faults.items()
        return facts | {f"env/{name}": count for name, count in faults if count}

    def _metrics(self) -> dict[str, float]:
        state = self.illuminator.state
        found = jax.device_get(metrics(state.repertoire, state.offset))
        return {name: float(value) for name, value in found.items()} | {
            "score_offset": float(state.offset)
        }

    def _count(self) -> None:
        """Take what the device has counted into the position."""
        state = self.illuminator.state
        for name, count in zip(Counts._fields, jax.device_get(state.counts), strict=True):
            setattr(self.position, name, getattr(self.position, name) + int(count))
        fresh = jax.tree.map(jnp.zeros_like, state.counts)
        self.illuminator.state = state._replace(counts=fresh)

    def _learning(self) -> dict[str, float]:
        """How TD3 fares, where there is one."""
        state, found = self.illuminator.state, {}
        parts = list(state.emitter)
        for place, emitter in enumerate(self.illuminator.generations.emitter.emitters):
            if isinstance(emitter, PolicyGradient):
                learner: LearnerState = parts[place]
                meter = jax.tree.map(lambda x: np.asarray(x)[None], learner.meter)
                means, fresh = read_meter(meter, emitter.metric_names)
                found = {name: float(values[0]) for name, values in means.items()}
                kept = Meter(*(jnp.asarray(x[0]) for x in fresh))
                parts[place] = learner._replace(meter=kept)
        self.illuminator.state = state._replace(emitter=tuple(parts))
        return found

    def _correct(self, interruption: Interruption) -> None:
        """Judge the final repertoire anew."""
        episodes, state = self.config.reevaluation_episodes, self.illuminator.state
        cells = np.flatnonzero(state.repertoire.filled)
        if not episodes or self._interrupted or not len(cells):
            return
        with interruption.breaking():
            again = self.illuminator.reevaluate(cells, episodes)
        found = metrics(corrected(state.repertoire, cells, again), state.offset)
        self._summary.corrected = {name: float(value) for name, value in found.items()}
        facts = {f"qd/corrected_{name}": value for name, value in self._summary.corrected.items()}
        position, size = self.position, self.illuminator.generations.size
        times = {"time/total_steps": position.steps,
                 "time/evaluations": position.generations * size}  # fmt: skip
        self._tell(times | facts)

    def _tell(self, facts: LogRow) -> bool:
        self.position.logged = self.position.steps
        self._summary.history.append(facts)
        try:
            return any([callback(facts) for callback in self.callbacks])
        except Exception:
            self._keep()  # the mistake is the callback's: what was found stays
            raise

    def _tick(self) -> float:
        now = time.perf_counter()
        self.position.seconds += now - self._ticked
        self._ticked = now
        return now

    def _keep_if_due(self) -> None:
        every = self.config.checkpoint_every
        if every is None:
            due = self.keeper and time.monotonic() - self.keeper.saved_at > SECONDS_BETWEEN
        else:
            due = every and not self.position.generations % every
        if due:
            self._keep()

    def _keep(self) -> None:
        self._tick()
        if self.keeper is not None:
            size = self.illuminator.generations.size
            self.keeper.checkpoint(self.position.generations * size)
