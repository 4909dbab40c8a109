"""Hyper-parameters that change: schedules, and values set during training.

Schedules are evaluated on the host, so they may be any function of the step. Their values reach the
programs as one small array; NaN leaves a hyper-parameter unchanged. So neither a schedule nor a new
value compiles anything.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from understudy.algorithms.config import Config, nearest
from understudy.ops.schedules import Curve, Schedule, evaluate
from understudy.types import ConfigError


@final
class HyperSchedules:
    """The schedules of a run, for all seeds."""

    def __init__(
        self, schedules: Mapping[str, Schedule], horizon: int, num_seeds: int, config: Config
    ):
        self.names = tuple(sorted(schedules))
        self._schedules: dict[str, Schedule] = dict(schedules)
        self._horizon, self._num_seeds = horizon, num_seeds
        self._latest: tuple[list[Any], np.ndarray] | None = None  # the last values, and as an array
        for name in self.names:  # the ends of a curve are where mistakes show
            for step in (0, horizon):
                for value in per_seed(name, self._answer(name, step), num_seeds):
                    config.check_moving(name, float(value))

    def at(self, step: int) -> np.ndarray:
        """The values [seeds, names] at a step. It is called at every step: if nothing has changed
        since the last call, it returns the same array."""
        answers = [self._answer(name, step) for name in self.names]
        plain = all(isinstance(answer, float) for answer in answers)
        if plain and self._latest is not None and self._latest[0] == answers:
            return self._latest[1]
        values = np.empty((self._num_seeds, len(self.names)), np.float32)
        for place, (name, answer) in enumerate(zip(self.names, answers, strict=True)):
            values[:, place] = answer if plain else per_seed(name, answer, self._num_seeds)
        self._latest = (answers, values) if plain else None
        return values

    def over(self, steps: Iterable[int]) -> np.ndarray:
        """[seeds, steps, names] at each of several steps."""
        return np.stack([self.at(step) for step in steps], axis=1)

    def end(self, names: Iterable[str]) -> None:
        """End the schedules of these: they are set by hand from now on."""
        for name in names:
            self._schedules.pop(name, None)

    def _answer(self, name: str, step: int) -> Any:
        """The value of a schedule; NaN where it has ended. The library's own need no check."""
        schedule = self._schedules.get(name)
        if schedule is None:
            return math.nan
        if isinstance(schedule, Curve):
            return schedule(step, self._horizon)
        return evaluate(schedule, step, self._horizon)


def per_seed(name: str, value: Any, num_seeds: int) -> np.ndarray:
    """One number for all seeds, or one for each, as [seeds]."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or array.shape not in ((), (num_seeds,)):
        wanted = "a number" if num_seeds == 1 else f"a number, or {num_seeds}, one per seed"
        raise ConfigError(f"{name} must be {wanted}, got {value!r}")
    return np.broadcast_to(array, (num_seeds,)).astype(np.float32)


def check_names(names: Iterable[str], hyper: Mapping[str, Any], config: Config) -> None:
    """Refuse names that cannot change, all of them in one message, with the nearest valid name."""
    problems = []
    for name in names:
        if name in hyper:
            continue
        if getattr(config, name, ...) is None:
            problems.append(f"{name} is not set in the config: give it a first value there")
        else:
            problems.append(f"'{name}' is no setting that can move{nearest(name, hyper)}")
    if problems:
        raise ConfigError(f"{'; '.join(problems)} (those that can: {', '.join(sorted(hyper))})")
