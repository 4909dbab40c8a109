"""The search space: ranges and lists of values, and the settings to try."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from understudy.algorithms.config import Config, nearest
from understudy.errors import ConfigError

DIGITS = 5  # of a chosen value: short enough to be typed exactly
SETTINGS = 16  # to try, if no number is given
DRAWS = 200  # random orders, of which the one with the best spread is taken

Settings = dict[str, Any]  # field -> value


@final
@dataclasses.dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`; with `log` they are spread on a logarithmic scale."""

    low: float
    high: float
    log: bool = False

    # Users write Range(1, 10) and Range("a", "b"); `__post_init__` explains itself.
    __no_type_check__ = True

    def __post_init__(self) -> None:
        for value in (self.low, self.high):
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigError(f"a range must lie between two numbers, got {value!r}")
        if self.low >= self.high:
            raise ConfigError(f"a range must rise, got {self}")
        if self.log and self.low <= 0:
            raise ConfigError(f"a range with :log must be above 0, got {self}")

    def spread(self, count: int) -> list[Any]:
        """Return `count` evenly spread values, including both ends."""
        ends = (self.low, self.high)
        if self.log:
            ends = (math.log(self.low), math.log(self.high))
        points = [sum(ends) / 2] if count == 1 else np.linspace(*ends, count).tolist()
        values = [math.exp(point) if self.log else point for point in points]
        return [short(value, self) for value in values]

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' * self.log}"


def short(value: float | int, within: Range) -> float | int:
    """Round a value to few digits, within the range."""
    if isinstance(value, int):
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), within.low), within.high)


Vary = Mapping[str, Range | Sequence[Any]]


def spell(varied: Range | Sequence[Any]) -> str:
    """Write values as the command line takes them."""
    return str(varied) if isinstance(varied, Range) else ",".join(map(spell_value, varied))


def spell_value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "x".join(map(str, value))
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def choose(vary: Vary, count: int | None, seed: int) -> list[Settings]:
    """Return the settings to try: the whole grid if all fields have lists, else `count` of them.

    These are a Latin hypercube: `count` evenly spread values of each range, and each value of a
    list equally often. `seed` decides how they are combined."""
    check_given(vary)
    if not any(isinstance(varied, Range) for varied in vary.values()):
        return _grid(vary, count)
    count = SETTINGS if count is None else count
    columns, places = [], []
    for name, varied in vary.items():
        if isinstance(varied, Range):
            columns.append(varied.spread(count))
            places.append(np.linspace(0, 1, count))
            continue
        if count < len(varied):
            raise ConfigError(f"{count} settings cannot try {len(varied)} values of {name}")
        chosen = np.arange(count) * len(varied) // count
        columns.append([varied[int(i)] for i in chosen])
        places.append(chosen / max(1, len(varied) - 1))
    orders = _spread_orders(np.stack(places), np.random.default_rng(seed))
    rows = [[column[i] for column, i in zip(columns, row, strict=True)] for row in orders]
    return [dict(zip(vary, row, strict=True)) for row in rows]


def _spread_orders(places: np.ndarray, draw: np.random.Generator) -> list[list[int]]:
    """Return orders of the values, [count, fields], such that no two settings are close. `places`
    are the values of each field scaled to 0..1, [fields, count]."""
    fields, count = places.shape
    best, widest = np.zeros((count, fields), int), -1.0
    for _ in range(DRAWS):
        orders = [np.arange(count), *(draw.permutation(count) for _ in range(fields - 1))]
        points = np.stack([place[order] for place, order in zip(places, orders, strict=True)])
        between = np.linalg.norm(points[:, :, None] - points[:, None], axis=0)
        closest = float(between[np.triu_indices(count, k=1)].min(initial=np.inf))
        if closest > widest:
            best, widest = np.stack(orders, axis=1), closest
    return best.tolist()


def _grid(vary: Vary, count: int | None) -> list[Settings]:
    rows = itertools.product(*vary.values())  # type: ignore[arg-type]
    settings = [dict(zip(vary, row, strict=True)) for row in rows]
    if count is not None and count != len(settings):
        raise ConfigError(
            f"these lists make a grid of {len(settings)} settings, not of {count}: leave the "
            "number of members out, or give a range lo..hi"
        )
    return settings


def check_given(vary: Vary) -> None:
    """Refuse a space without fields, and fields without values."""
    if not vary:
        raise ConfigError("nothing varies: give at least one field, such as learning_rate")
    for name, varied in vary.items():
        if isinstance(varied, Range):
            continue
        if isinstance(varied, str) or not isinstance(varied, Sequence) or not len(varied):
            raise ConfigError(f"{name} must vary over a Range or a list, got {varied!r}")
        if len(set(map(spell_value, varied))) < len(varied):
            raise ConfigError(f"{name} has a value twice: {spell(varied)}")


def check_fields(vary: Vary, config: Config) -> None:
    """Refuse all fields that the config does not have, and ranges of fields without numbers."""
    fields = {field.name: field for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    problems = [config.explain_unknown(name) for name in vary if name not in fields]
    for name, varied in vary.items():
        if isinstance(varied, Range) and name in fields and not is_number(fields[name].type):
            problems.append(f"{name} is no number: give it a list, not {varied}")
    if problems:
        raise ConfigError("; ".join(problems))


def check_moving(vary: Vary, config: Config) -> None:
    """Refuse fields that all members of one program share."""
    check_fields(vary, config)
    fields = dataclasses.fields(config)  # type: ignore[arg-type]
    can = [field.name for field in fields if field.metadata["moving"]]
    fixed = [name for name in vary if name not in can]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)} cannot vary within one program{nearest(fixed[0], can)} (those "
            f"that can: {', '.join(can)}); a search by Optuna (--optuna) varies any field"
        )


def is_number(annotation: Any) -> bool:
    return annotation in (float, float | None, int, int | None)


def is_whole(annotation: Any) -> bool:
    return annotation in (int, int | None)
