"""Compiled programs that agents of equal settings share.

JAX caches the programs of a jitted function by the Python object it was made from. If every agent
made its own functions, a second agent of the same settings (a resumed one, the next seed of a loop,
a trial of a sweep) would trace and compile everything again. The functions are therefore made from
hashable settings, and the latest results are cached.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

MOST_PROGRAMS = 16  # of each kind; a compiled program takes up to tens of megabytes

P = ParamSpec("P")
R = TypeVar("R")

_caches: list[Any] = []


def shared(make: Callable[P, R]) -> Callable[P, R]:
    """Cache the programs that `make` returns, by its arguments. An argument that runs the user's
    own code has `shareable = False`: the code may change after it was traced, so such a program is
    made each time."""
    cached = lru_cache(maxsize=MOST_PROGRAMS)(make)
    _caches.append(cached)

    @wraps(make)
    def find_or_make(*arguments: P.args, **named: P.kwargs) -> R:
        given = (*arguments, *named.values())
        if all(getattr(argument, "shareable", True) for argument in given):
            return cached(*arguments, **named)  # type: ignore[arg-type]
        return make(*arguments, **named)

    return find_or_make


def forget_programs() -> None:
    """Drop all cached programs. Tests call this after they replace a function."""
    for cached in _caches:
        cached.cache_clear()
