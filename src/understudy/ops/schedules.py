"""Schedules: a setting as a function of the step. NumPy only, evaluated on the host.

A curve's values are numbers, or arrays with one number per seed.
"""

import bisect
import itertools
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from understudy.types import ConfigError

Value = float | np.ndarray
# A user's argument, which is checked by hand, because its error must be one clear line.
Given = Any


class Curve(ABC):
    """A schedule that knows the length of the run. Abstract; the functions below make curves."""

    @abstractmethod
    def __call__(self, step: int, horizon: int) -> Value:
        """Return the value at `step` of a run of `horizon` steps."""


Schedule = Curve | Callable[[int], Any]  # a curve, or a user's own function of the step


def constant(value: Given) -> Curve:
    """The same value at every step."""
    return _Piecewise((0,), (_value("constant", "value", value),))


def linear(start: Given, end: Given, steps: Given = None) -> Curve:
    """A straight line from `start` to `end` over `steps` (None: the whole run), then `end`."""
    return _ramp("linear", start, end, steps)


def exponential(start: Given, end: Given, steps: Given = None) -> Curve:
    """From `start` to `end` by the same factor at every step; both must be above 0."""
    curve = _ramp("exponential", start, end, steps)
    for name, value in (("start", curve.start), ("end", curve.end)):
        if np.any(np.asarray(value) <= 0):
            raise ConfigError(f"exponential: {name} must be above 0, got {_brief(value)}")
    return curve


def cosine(start: Given, end: Given, steps: Given = None) -> Curve:
    """Half a cosine wave from `start` to `end`: flat at both ends, steepest in the middle."""
    return _ramp("cosine", start, end, steps)


def piecewise(points: Given) -> Curve:
    """Straight lines between `(step, value)` points; constant before the first, after the last."""
    try:
        pairs = [(step, value) for step, value in points]
    except (TypeError, ValueError):
        raise ConfigError(
            f"piecewise: points must be pairs (step, value), got {_brief(points)}"
        ) from None
    if not pairs:
        raise ConfigError("piecewise: at least one point (step, value) is needed")
    steps = tuple(_count("piecewise", "a point's step", step, at_least=0) for step, _ in pairs)
    values = tuple(
        _value("piecewise", f"the value at step {step}", value)
        for step, (_, value) in zip(steps, pairs, strict=True)
    )
    if any(b <= a for a, b in itertools.pairwise(steps)):
        raise ConfigError(f"piecewise: steps must increase, got {_brief(list(steps))}")
    _check_sizes("piecewise", values)
    return _Piecewise(steps, values)


def evaluate(schedule: Schedule, step: int, horizon: int) -> Value:
    """Return the value of a curve, or of a user's own function of the step, checked."""
    value = schedule(step, horizon) if isinstance(schedule, Curve) else schedule(step)
    return _value("schedule", f"the value at step {step}", value)


def spanning(schedule: Schedule, steps: int) -> Schedule:
    """Return the schedule with that length, if it has none of its own."""
    if isinstance(schedule, _Ramp) and schedule.steps is None:
        return replace(schedule, steps=steps)
    return schedule


def last_step(schedule: Schedule) -> int | None:
    """Return the last step at which a curve changes; None if it never does or is unknown."""
    if isinstance(schedule, _Ramp):
        return schedule.steps
    steps = schedule.steps if isinstance(schedule, _Piecewise) else ()
    return max(steps) if len(steps) > 1 else None


def describe(schedule: Schedule) -> dict[str, Any] | None:
    """Describe a curve for JSON; None for a user's own function, which no file can store."""
    if isinstance(schedule, _Ramp):
        ends = {"start": _plain(schedule.start), "end": _plain(schedule.end)}
        return {"curve": schedule.shape, **ends, "steps": schedule.steps}
    if isinstance(schedule, _Piecewise):
        points = zip(schedule.steps, map(_plain, schedule.values), strict=True)
        return {"curve": "piecewise", "points": [list(point) for point in points]}
    return None


def from_description(described: dict[str, Any]) -> Curve:
    """Make the curve that `describe` has described."""
    if described["curve"] == "piecewise":
        return piecewise(described["points"])
    make = {"linear": linear, "exponential": exponential, "cosine": cosine}[described["curve"]]
    return make(described["start"], described["end"], described["steps"])


def _plain(value: Value) -> float | list[float]:
    return value.tolist() if isinstance(value, np.ndarray) else value


# Between start and end, by the fraction of the way; exactly `start` at 0 and `end` at 1.


def _linear(start: Value, end: Value, fraction: float) -> Value:
    return (1.0 - fraction) * start + fraction * end


def _exponential(start: Value, end: Value, fraction: float) -> Value:
    return start ** (1.0 - fraction) * end**fraction


def _cosine(start: Value, end: Value, fraction: float) -> Value:
    return _linear(start, end, (1.0 - math.cos(math.pi * fraction)) / 2.0)


_SHAPES = {"linear": _linear, "exponential": _exponential, "cosine": _cosine}


@final
@dataclass(frozen=True, eq=False)
class _Ramp(Curve):
    shape: str
    start: Value
    end: Value
    steps: int | None

    def __call__(self, step: int, horizon: int) -> Value:
        fraction = _fraction(step, 0, horizon if self.steps is None else self.steps)
        return _SHAPES[self.shape](self.start, self.end, fraction)


@final
@dataclass(frozen=True, eq=False)
class _Piecewise(Curve):
    steps: tuple[int, ...]
    values: tuple[Value, ...]

    def __call__(self, step: int, horizon: int) -> Value:
        right = min(bisect.bisect_right(self.steps, step), len(self.steps) - 1)
        left = max(right - 1, 0)
        fraction = _fraction(step, self.steps[left], self.steps[right])
        return _linear(self.values[left], self.values[right], fraction)


def _fraction(step: int, begin: int, end: int) -> float:
    """Return the position of `step` between `begin` and `end`, within [0, 1]; they may be equal."""
    if step >= end:
        return 1.0
    return (step - begin) / (end - begin) if step > begin else 0.0


def _ramp(shape: str, start: Given, end: Given, steps: Given) -> _Ramp:
    first, last = _value(shape, "start", start), _value(shape, "end", end)
    _check_sizes(shape, (first, last))
    return _Ramp(shape, first, last, None if steps is None else _count(shape, "steps", steps, 1))


def _value(curve: str, name: str, given: Given) -> Value:
    """Return a finite float, or a read-only array of them; strings and booleans are refused."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):  # ragged, for example
        array = np.asarray(None)
    if array.dtype.kind not in "iuf" or array.ndim > 1 or array.size == 0:
        wanted = "must be a number, or one number per seed"
        raise ConfigError(f"{curve}: {name} {wanted}, got {_brief(given)}")
    if not np.all(np.isfinite(array)):
        raise ConfigError(f"{curve}: {name} must be finite, got {_brief(given)}")
    if array.ndim == 0:
        return float(array)
    array = array.astype(np.float64)
    array.flags.writeable = False
    return array


def _count(curve: str, name: str, given: Given, at_least: int) -> int:
    """Return a whole number, such as 5e3."""
    number: Any = given if isinstance(given, numbers.Real) else math.nan
    if isinstance(given, bool) or number % 1 != 0 or number < at_least:
        wanted = f"must be a whole number of at least {at_least}"
        raise ConfigError(f"{curve}: {name} {wanted}, got {_brief(given)}")
    return int(number)


def _check_sizes(curve: str, values: tuple[Value, ...]) -> None:
    sizes = sorted({value.size for value in values if isinstance(value, np.ndarray)})
    if len(sizes) > 1:
        got = " and ".join(map(str, sizes))
        raise ConfigError(f"{curve}: all arrays must have one number per seed, got {got}")


def _brief(given: Given) -> str:
    text = " ".join(repr(given).split())
    return text if len(text) <= 60 else text[:57] + "..."
