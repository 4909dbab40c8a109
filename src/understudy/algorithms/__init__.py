"""One folder per algorithm, all of one shape: config, losses, learner, README.

`find` discovers the folders: a new algorithm is one new folder that exposes `ALGORITHM`.
"""

import importlib
import pkgutil
from functools import cache

from understudy.algorithms.base import Algorithm
from understudy.algorithms.config import nearest
from understudy.types import ConfigError

__all__ = ["Algorithm", "available", "find"]


# Names of algorithms that this library does not have -> a hint.
_ELSEWHERE = {
    "ppo": " (not part of this version; A2C is the on-policy algorithm here)",
    "dqn": " (did you mean 'ddqn'?)",
    "trpo": " (not part of this version; MPO bounds each step of the policy)",
}


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
        hint = _ELSEWHERE.get(name.lower()) or nearest(name.lower(), algorithms)
        if not hint and "-v" in name:
            hint = f" (it looks like an environment: understudy train sac {name})"
        raise ConfigError(f"no algorithm '{name}'{hint}; there are: {known}")
    return algorithms[name.lower()]
