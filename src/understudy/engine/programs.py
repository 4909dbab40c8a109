"""Compiled programs that agents of equal settings share.

A jitted function belongs to the Python object it was made from. If every agent made its own, a
second agent of the same settings (a resumed one, the next seed of a loop, a trial of a sweep) would
trace and compile everything again. So what makes a program is a function of hashable settings, and
the results of its latest calls are kept.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

MOST_KEPT = 16  # of each kind; a compiled program takes up to tens of megabytes

P = ParamSpec("P")
R = TypeVar("R")

_kinds: list[Any] = []


def shared(make: Callable[P, R]) -> Callable[P, R]:
    """Keep the programs that `make` returns, by its arguments."""
    kept = lru_cache(maxsize=MOST_KEPT)(make)
    _kinds.append(kept)
    return kept  # type: ignore[return-value]


def forget_programs() -> None:
    """Drop all of them, for whoever changes what they were made from."""
    for kept in _kinds:
        kept.cache_clear()
