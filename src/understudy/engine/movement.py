"""Hyper-parameters that move: schedules, and values set on a live agent.

Schedules are evaluated on the host, so any function of the step will do. Their values reach the
programs as one small array; NaN stands for a setting that is left as it is. So neither a schedule
nor a new value ever compiles anything.
"""

from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from understudy.algorithms.settings import Config, nearest
from understudy.math.curves import Schedule, evaluate
from understudy.types import ConfigError


@final
class Movement:
    """The schedules of a run, for all members."""

    def __init__(
        self, schedules: Mapping[str, Schedule], horizon: int, members: int, config: Config
    ):
        self.names = tuple(sorted(schedules))
        self._schedules: dict[str, Schedule] = dict(schedules)
        self._horizon, self._members = horizon, members
        for name in self.names:  # the ends of a curve are where mistakes show
            for step in (0, horizon):
                for value in self._value(name, step):
                    config.check_moving(name, float(value))

    def at(self, step: int) -> np.ndarray:
        """[members, names] at a step."""
        values = np.full((self._members, len(self.names)), np.nan, np.float32)
        for place, name in enumerate(self.names):
            if name in self._schedules:
                values[:, place] = self._value(name, step)
        return values

    def over(self, steps: Iterable[int]) -> np.ndarray:
        """[members, steps, names] at each of several steps."""
        return np.stack([self.at(step) for step in steps], axis=1)

    def end(self, names: Iterable[str]) -> None:
        """These are set by hand from now on."""
        for name in names:
            self._schedules.pop(name, None)

    def _value(self, name: str, step: int) -> np.ndarray:
        return per_member(name, evaluate(self._schedules[name], step, self._horizon), self._members)


def per_member(name: str, value: Any, members: int) -> np.ndarray:
    """One number for all members, or one for each, as [members]."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or array.shape not in ((), (members,)):
        wanted = "a number" if members == 1 else f"a number, or {members}, one per seed"
        raise ConfigError(f"{name} must be {wanted}, got {value!r}")
    return np.broadcast_to(array, (members,)).astype(np.float32)


def check_names(names: Iterable[str], hyper: Mapping[str, Any], config: Config) -> None:
    """Refuse what cannot move, all of it together, with the nearest name that can."""
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
