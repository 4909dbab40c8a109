"""A sweep: the members of one program differ in their seeds and in settings that can move.

Member i is the single run of seed + i with its own settings, up to float rounding.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from understudy.agent import Agent
from understudy.algorithms.config import Config
from understudy.errors import ConfigError, DivergedError
from understudy.ops.schedules import Schedule, describe, from_description
from understudy.runs.csv_log import LogRow
from understudy.sweep.result import DIVERGED, Outcome, SweepResult
from understudy.sweep.space import Range, Settings, Vary, check_moving, choose
from understudy.sweep.task import Task, make_directory, make_task

CSV, PICTURE = "sweep.csv", "sweep.png"


def sweep(
    kind: str | type[Agent],
    env: Any,
    vary: dict[str, Range | Sequence[Any]],
    *,
    steps: int,
    members: int | None = None,
    repeats: int = 1,
    config: Config | None = None,
    seed: int = 0,
    num_envs: int | None = None,
    device: str | None = None,
    episodes: int = 10,
    run_dir: str | Path | None = None,
    progress: bool = False,
) -> SweepResult:
    """Train `members` agents at once, each with its own settings, and rank the settings.

    `vary` maps fields that can move to a `Range` or a list. Lists alone make a grid; with a range
    among them, members are spread over the space. Member i has seed + i. With `repeats` each
    setting has that many members, and their mean decides. In `run_dir` the table (sweep.csv) is
    kept up to date, and the picture (sweep.png) is drawn at the end.
    """
    task = make_task(kind, env, config, steps, repeats, seed, num_envs, device, episodes)
    check_moving(vary, task.config)
    trying = choose(vary, _count(members, repeats), seed)
    attempts = Attempts(task, vary, trying, None if run_dir is None else Path(run_dir))
    attempts.train(progress)
    result = attempts.result()
    if attempts.directory is not None:
        from understudy.sweep.pictures import draw

        draw(result, attempts.directory / PICTURE)
    return result


def _count(members: int | None, repeats: int) -> int | None:
    """Of settings."""
    if members is None:
        return None
    if members < 1 or members % repeats:
        raise ConfigError(
            f"members must be a multiple of repeats ({repeats}), at least 1, got {members}"
        )
    return members // repeats


@final
@dataclass
class Attempts:
    """Trains all settings at once. One that diverges is frozen, and the others go on."""

    task: Task
    vary: Vary
    trying: list[Settings]
    directory: Path | None
    diverged: set[int] = field(default_factory=set)  # places in `trying`

    def __post_init__(self) -> None:
        self._configs = [self.task.with_settings(settings) for settings in self.trying]
        self._steps: list[int] = []
        self._means: list[np.ndarray] = []  # [members] at each of these steps
        self._returns = np.empty((len(self.trying) * self.task.repeats, 0))

    def train(self, progress: bool) -> None:
        configs = [config for config in self._configs for _ in range(self.task.repeats)]
        schedules = _schedules(configs)
        still = {
            name: [getattr(config, name) for config in configs]
            for name in self.vary
            if name not in schedules
        }
        agent = self.task.agent(configs[0], len(configs))
        with contextlib.closing(agent):
            if self.directory is not None:
                make_directory(self.directory)
            agent.set(**still)
            try:
                summary = agent.train(
                    self.task.steps,
                    schedules=schedules,
                    run=self.task.run,
                    callbacks=(self._observe,),
                    progress=progress,
                )
            except DivergedError:
                raise DivergedError("training diverged with every setting") from None
        assert summary.returns is not None
        self._returns = summary.returns
        self._mark(summary.diverged)
        self._write()

    def _mark(self, members: Iterable[int]) -> None:
        """Note the settings of these members as diverged."""
        self.diverged |= {member // self.task.repeats for member in members}
        if len(self.diverged) == len(self.trying):
            raise DivergedError("training diverged with every setting")

    def _observe(self, facts: LogRow) -> None:
        self._mark(np.flatnonzero(facts.get("train/diverged_per_seed", [])).tolist())
        if "eval/mean_reward" in facts:
            single = [facts["eval/mean_reward"]]
            means = np.array(facts.get("eval/mean_reward_per_seed", single))
            self._steps.append(facts["time/total_steps"])
            self._means.append(means)
            self._returns = means[:, None]
            self._write()

    def _write(self) -> None:
        if self.directory is not None:
            self.result().write_csv(self.directory / CSV)

    def result(self) -> SweepResult:
        return self.task.result(self.vary, [self._outcome(i) for i in range(len(self.trying))])

    def _outcome(self, place: int) -> Outcome:
        repeats = self.task.repeats
        mine = slice(place * repeats, (place + 1) * repeats)
        seed = self.task.seed + mine.start
        if place in self.diverged or np.isnan(self._returns[mine]).any():
            return Outcome(self.trying[place], seed, np.empty((repeats, 0)), state=DIVERGED)
        curve = np.stack(self._means, axis=1)[mine]
        return Outcome(self.trying[place], seed, self._returns[mine], list(self._steps), curve)


def _schedules(configs: Sequence[Config]) -> dict[str, Schedule]:
    """The configs' own schedules where they differ, as curves with a value for each member."""
    each = [config.schedules() for config in configs]
    schedules: dict[str, Schedule] = {}
    for name in each[0]:
        told = [describe(mine[name]) or {} for mine in each]
        if any(other != told[0] for other in told):
            ends = {end: [curve[end] for curve in told] for end in ("start", "end")}
            schedules[name] = from_description(told[0] | ends)
    return schedules
