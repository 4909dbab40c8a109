"""Which device computes, and the cache that spares it compiling twice.

Settings of the process are made here, when an agent is made; never by an import.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import jax

from understudy.algorithms.base import Appetite, Rollout
from understudy.types import ConfigError


def find_device(name: str | None) -> Any:
    """The first device of that kind ("cpu", "gpu"); None leaves the choice to JAX."""
    if name is None:
        return None
    try:
        return jax.devices(name)[0]
    except RuntimeError as error:
        have = ", ".join(sorted({device.platform for device in jax.devices()}))
        raise ConfigError(f"there is no device '{name}' here; there is: {have}") from error


@cache
def use_compilation_cache() -> None:
    """Programs compiled once are found again by the next process. A cache that the user has
    chosen stays."""
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(base) / "understudy" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def suit(appetite: Appetite) -> None:
    """Settings of a process that trains one algorithm and nothing else; of no effect once JAX has
    computed anything.

    Acting on policy waits for every program. A small one on the CPU is over sooner than another
    thread is woken for it, so it runs in the thread that calls it. (Learning from replay goes on
    beside the environments, and needs that other thread.)"""
    if isinstance(appetite, Rollout):
        jax.config.update("jax_cpu_enable_async_dispatch", False)
