"""Check JSON that another program may have written, before it is used."""

import math
from collections.abc import Callable, Mapping
from typing import Any

Kind = Callable[[Any], bool]

LONGEST_TEXT = 10_000


def text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def flag(value: Any) -> bool:
    return isinstance(value, bool)


def table(value: Any) -> bool:
    return isinstance(value, dict)


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def whole(least: int, most: int) -> Kind:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    )


def optional(kind: Kind) -> Kind:
    return lambda value: value is None or kind(value)


def list_of(kind: Kind) -> Kind:
    return lambda value: isinstance(value, list) and all(map(kind, value))


def problems(stored: Mapping[str, Any], schema: Mapping[str, Kind]) -> list[str]:
    """Describe how a table differs from a schema, whose keys it must have exactly."""
    missing = [f"no {name}" for name in schema if name not in stored]
    extra = [f"an unknown {name!r:.60}" for name in stored if name not in schema]
    wrong = [
        f"{name} is {value!r:.60}"
        for name, value in stored.items()
        if name in schema and not schema[name](value)
    ]
    return missing + extra + wrong
