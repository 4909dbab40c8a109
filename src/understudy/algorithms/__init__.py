"""One folder per algorithm, all of one shape: config, losses, learner, README.

`find` discovers the folders: a new algorithm is one new folder that exposes `ALGORITHM`.
"""

import importlib
import pkgutil
from functools import cache

from understudy.algorithms.base import Algorithm
from understudy.algorithms.config import nearest
from understudy.aliases import explain
from understudy.types import ConfigError

__all__ = ["Algorithm", "available", "find"]


@cache
def available() -> dict[str, type[Algorithm]]:
    """Return every algorithm by its lower-case name."""
    folders = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    return {
        name: importlib.import_module(f"{__name__}.{name}").ALGORITHM for name in sorted(folders)
    }


def find(name: str) -> type[Algorithm]:
    """Return the algorithm of that name, in upper or lower case."""
    algorithms = available()
    if name.lower() not in algorithms:
        known = ", ".join(algorithms)
        upper = [algorithm.upper() for algorithm in algorithms]
        instead = explain(name.upper(), upper, lambda word: f"'{word.lower()}'")
        hint = f" ({instead})" if instead else nearest(name.lower(), algorithms)
        if not hint and "-v" in name:
            hint = f" (it looks like an environment: understudy train sac {name})"
        raise ConfigError(f"no algorithm '{name}'{hint}; there are: {known}")
    return algorithms[name.lower()]
