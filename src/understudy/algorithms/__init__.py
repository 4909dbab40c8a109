"""One folder per algorithm, all of one shape: config, losses, learner, README.

`find` discovers the folders: a new algorithm is one new folder that exposes `ALGORITHM`.
"""

import importlib
import pkgutil
from functools import cache

from understudy.algorithms.base import Algorithm
from understudy.algorithms.settings import nearest
from understudy.types import ConfigError

__all__ = ["Algorithm", "available", "find"]


@cache
def available() -> dict[str, type[Algorithm]]:
    """Every algorithm by its lower-case name."""
    folders = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    return {
        name: importlib.import_module(f"{__name__}.{name}").ALGORITHM for name in sorted(folders)
    }


def find(name: str) -> type[Algorithm]:
    """The algorithm of that name, in any case."""
    algorithms = available()
    if name.lower() not in algorithms:
        known = ", ".join(algorithms)
        hint = nearest(name.lower(), algorithms)
        raise ConfigError(f"no algorithm '{name}'{hint}; there are: {known}")
    return algorithms[name.lower()]
