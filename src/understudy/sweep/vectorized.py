"""A vectorized sweep: the members of one program differ in their seeds and in scheduled settings.

Member i is the single run of seed + i with its own settings, up to float rounding.
"""

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from understudy.agent import Agent
from understudy.algorithms.config import Config
from understudy.errors import ConfigError, DivergedError
from understudy.ops.schedules import Schedule, describe, from_description
from understudy.runs.csv_log import STEPS, LogRow
from understudy.runs.files import make_directory
from understudy.sweep.result import DIVERGED, Outcome, SweepResult
from understudy.sweep.space import Range, Vary, check_moving, choose
from understudy.sweep.task import SCORE, Task

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
    env_args: dict[str, Any] | None = None,
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
    own = env_args or {}
    task = Task(kind, env, config, steps, repeats, seed, num_envs, device, episodes, own)
    check_moving(vary, task.config)
    if members is not None and (members < 1 or members % repeats):
        raise ConfigError(
            f"members must be a multiple of repeats ({repeats}), at least 1, got {members}"
        )
    count = None if members is None else members // repeats
    directory = None if run_dir is None else Path(run_dir)
    result = VectorizedSweep(task, vary, count, directory).train(progress)
    if directory is not None:
        from understudy.sweep.pictures import draw

        draw(result, directory / PICTURE)
    return result


@final
class VectorizedSweep:
    """Trains all settings at once. A setting that diverges is frozen, and the others continue."""

    def __init__(self, task: Task, vary: Vary, count: int | None, directory: Path | None):
        self._task, self._vary, self._directory = task, vary, directory
        self._settings = choose(vary, count, task.seed)
        configs = [task.with_settings(settings) for settings in self._settings]
        self._configs = [config for config in configs for _ in range(task.repeats)]  # [members]
        self._diverged: set[int] = set()  # indices of settings
        self._steps: list[int] = []
        self._means: list[np.ndarray] = []  # [members] at each of these steps
        self._returns = np.empty((len(self._configs), 0))

    def train(self, progress: bool) -> SweepResult:
        schedules = differing_schedules(self._configs)
        constants = {
            name: [getattr(config, name) for config in self._configs]
            for name in self._vary
            if name not in schedules
        }
        task = self._task
        with contextlib.closing(task.agent(self._configs[0], len(self._configs))) as agent:
            if self._directory is not None:
                make_directory(self._directory)
            agent.set(**constants)
            try:
                summary = agent.train(
                    task.steps,
                    schedules=schedules,
                    run=task.run,
                    callbacks=(self._take_in,),
                    progress=progress,
                )
            except DivergedError:
                raise DivergedError("training diverged with every setting") from None
        assert summary.returns is not None
        self._returns = summary.returns
        self._mark_diverged(summary.diverged)
        return self._write()

    def _mark_diverged(self, members: Iterable[int]) -> None:
        self._diverged |= {member // self._task.repeats for member in members}
        if len(self._diverged) == len(self._settings):
            raise DivergedError("training diverged with every setting")

    def _take_in(self, row: LogRow) -> None:
        self._mark_diverged(np.flatnonzero(row.get("train/diverged_per_seed", [])).tolist())
        if SCORE in row:
            means = np.array(row.get(f"{SCORE}_per_seed", [row[SCORE]]))
            self._steps.append(row[STEPS])
            self._means.append(means)
            self._returns = means[:, None]
            self._write()

    def _write(self) -> SweepResult:
        outcomes = [self._outcome(index) for index in range(len(self._settings))]
        result = self._task.result(self._vary, outcomes)
        if self._directory is not None:
            result.write_csv(self._directory / CSV)
        return result

    def _outcome(self, index: int) -> Outcome:
        repeats, settings = self._task.repeats, self._settings[index]
        members = slice(index * repeats, (index + 1) * repeats)
        seed, returns = self._task.seed + members.start, self._returns[members]
        if index in self._diverged or np.isnan(returns).any():
            return Outcome(settings, seed, np.empty((repeats, 0)), state=DIVERGED)
        curve = np.stack(self._means, axis=1)[members]
        return Outcome(settings, seed, returns, list(self._steps), curve)


def differing_schedules(configs: Sequence[Config]) -> dict[str, Schedule]:
    """Return the configs' own schedules where they differ, with one value for each member."""
    each = [config.schedules() for config in configs]
    schedules: dict[str, Schedule] = {}
    for name in each[0]:
        described = [describe(own[name]) or {} for own in each]
        if any(other != described[0] for other in described):
            ends = {end: [curve[end] for curve in described] for end in ("start", "end")}
            schedules[name] = from_description(described[0] | ends)
    return schedules
