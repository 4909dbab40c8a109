"""Compiled programs that agents of equal settings share.

JAX caches the programs of a jitted function by the Python object it was made from. If every agent
made its own functions, a second agent of the same settings (a resumed one, the next seed of a loop,
a trial of a sweep) would trace and compile everything again. The functions are therefore made from
hashable settings, and the latest results are cached.
"""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

MOST_PROGRAMS = 16  # of each kind; a compiled program takes up to tens of megabytes

P = ParamSpec("P")
R = TypeVar("R")

_caches: list[Any] = []
_not_shared: Counter[Any] = Counter()  # programs made for code of the user's own, by kind


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
        _not_shared[make] += 1
        return make(*arguments, **named)

    return find_or_make


def likely_cause(compilations: int) -> str:
    """Return the likely reason why a program has been compiled that often, and a remedy."""
    if max(_not_shared.values(), default=0) >= compilations // 2:
        return (
            "loss add-ons, networks and native environments of your own are compiled for every "
            "agent; train one agent several times instead of making a new one"
        )
    if max(cached.cache_info().misses for cached in _caches) >= compilations // 2:
        return (
            "every agent has other settings; those that can change during training "
            "(agent.set, understudy.sweep.sweep) do not compile anything"
        )
    return (
        "the shapes of its arrays change; call agent.act with batches of one size, and "
        "agent.evaluate with one number of episodes"
    )


def forget_programs() -> None:
    """Drop all cached programs. Tests call this after they replace a function."""
    _not_shared.clear()
    for cached in _caches:
        cached.cache_clear()
