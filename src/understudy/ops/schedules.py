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
# What users hand in is checked by hand, with one clear line for an answer, and so is `Any` here.
Given = Any


class Curve(ABC):
    """A schedule that knows the run's length. Abstract; made by the functions of this page."""

    @abstractmethod
    def __call__(self, step: int, horizon: int) -> Value:
        """The value at `step` of a run of `horizon` steps."""


Schedule = Curve | Callable[[int], Any]  # a curve, or a user's own function of the step


def constant(value: Given) -> Curve:
    """The same value at every step."""
    return _Piecewise((0,), (_value("constant", "value", value),))


def linear(start: Given, end: Given, steps: Given = None) -> Curve:
    """A straight line from `start` to `end` over `steps` (None: the whole run), then `end`."""
    return _ramp("linear", start, end, steps, _straight)


def exponential(start: Given, end: Given, steps: Given = None) -> Curve:
    """From `start` to `end` by the same factor at every step; both must be above 0."""
    curve = _ramp("exponential", start, end, steps, _geometric)
    for name, value in (("start", curve.start), ("end", curve.end)):
        if np.any(np.asarray(value) <= 0):
            raise ConfigError(f"exponential: {name} must be above 0, got {_brief(value)}")
    return curve


def cosine(start: Given, end: Given, steps: Given = None) -> Curve:
    """Half a cosine wave from `start` to `end`: flat at both ends, steepest in the middle."""
    return _ramp("cosine", start, end, steps, _half_wave)


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
    _same_members("piecewise", values)
    return _Piecewise(steps, values)


def evaluate(schedule: Schedule, step: int, horizon: int) -> Value:
    """The value of a curve, or of a user's own function of the step, checked."""
    answer = schedule(step, horizon) if isinstance(schedule, Curve) else schedule(step)
    return _value("schedule", f"the value at step {step}", answer)


def spanning(schedule: Schedule, steps: int) -> Schedule:
    """The same schedule, of that length where it has none of its own."""
    if isinstance(schedule, _Ramp) and schedule.steps is None:
        return replace(schedule, steps=steps)
    return schedule


def last_step(schedule: Schedule) -> int | None:
    """The last step at which a curve changes; None where it never does, or that is not known."""
    if isinstance(schedule, _Ramp):
        return schedule.steps
    steps = schedule.steps if isinstance(schedule, _Piecewise) else ()
    return max(steps) if len(steps) > 1 else None


def describe(schedule: Schedule) -> dict[str, Any] | None:
    """A curve as JSON can hold it; None for a user's own function, which no file can."""
    if isinstance(schedule, _Ramp):
        kind: dict[Any, str] = {
            _straight: "linear", _geometric: "exponential", _half_wave: "cosine"
        }  # fmt: skip
        ends = {"start": _plain(schedule.start), "end": _plain(schedule.end)}
        return {"curve": kind[schedule.between], **ends, "steps": schedule.steps}
    if isinstance(schedule, _Piecewise):
        points = zip(schedule.steps, map(_plain, schedule.values), strict=True)
        return {"curve": "piecewise", "points": [list(point) for point in points]}
    return None


def from_description(described: dict[str, Any]) -> Curve:
    """The curve that `describe` has described."""
    if described["curve"] == "piecewise":
        return piecewise(described["points"])
    make = {"linear": linear, "exponential": exponential, "cosine": cosine}[described["curve"]]
    return make(described["start"], described["end"], described["steps"])


def _plain(value: Value) -> float | list[float]:
    return value.tolist() if isinstance(value, np.ndarray) else value


@final
@dataclass(frozen=True, eq=False)
class _Ramp(Curve):
    start: Value
    end: Value
    steps: int | None
    between: Callable[[Value, Value, float], Value]  # of start, end and the fraction gone

    def __call__(self, step: int, horizon: int) -> Value:
        steps = horizon if self.steps is None else self.steps
        return self.between(self.start, self.end, _fraction(step, 0, steps))


@final
@dataclass(frozen=True, eq=False)
class _Piecewise(Curve):
    steps: tuple[int, ...]
    values: tuple[Value, ...]

    def __call__(self, step: int, horizon: int) -> Value:
        right = min(bisect.bisect_right(self.steps, step), len(self.steps) - 1)
        left = max(right - 1, 0)
        fraction = _fraction(step, self.steps[left], self.steps[right])
        return _straight(self.values[left], self.values[right], fraction)


def _fraction(step: int, begin: int, end: int) -> float:
    """How much of the way from `begin` to `end` is gone, within [0, 1]; there may be no way."""
    if step >= end:
        return 1.0
    return (step - begin) / (end - begin) if step > begin else 0.0


# Each of these gives `start` at 0 and `end` at 1 to the bit.


def _straight(start: Value, end: Value, fraction: float) -> Value:
    return (1.0 - fraction) * start + fraction * end


def _geometric(start: Value, end: Value, fraction: float) -> Value:
    return start ** (1.0 - fraction) * end**fraction


def _half_wave(start: Value, end: Value, fraction: float) -> Value:
    return _straight(start, end, (1.0 - math.cos(math.pi * fraction)) / 2.0)


def _ramp(
    name: str, start: Given, end: Given, steps: Given, between: Callable[..., Value]
) -> _Ramp:
    first, last = _value(name, "start", start), _value(name, "end", end)
    _same_members(name, (first, last))
    count = None if steps is None else _count(name, "steps", steps, at_least=1)
    return _Ramp(first, last, count, between)


def _value(curve: str, name: str, given: Given) -> Value:
    """A finite float, or a read-only array of them; strings and booleans are no numbers."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):  # ragged, for one
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
    """A whole number; 5e3 counts as one."""
    if not _is_whole(given) or given < at_least:
        wanted = f"must be a whole number of at least {at_least}"
        raise ConfigError(f"{curve}: {name} {wanted}, got {_brief(given)}")
    return int(given)


def _is_whole(given: Given) -> bool:
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        return False
    return math.isfinite(given) and given % 1 == 0


def _same_members(curve: str, values: tuple[Value, ...]) -> None:
    sizes = {value.size for value in values if isinstance(value, np.ndarray)}
    if len(sizes) > 1:
        told = " and ".join(str(size) for size in sorted(sizes))
        raise ConfigError(f"{curve}: all arrays must have one number per seed, got {told}")


def _brief(given: Given) -> str:
    text = " ".join(repr(given).split())
    return text if len(text) <= 60 else text[:57] + "..."
