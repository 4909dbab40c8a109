"""Which device computes, and the cache that spares it compiling twice.

Settings of the process are made here, when an agent is made; never by an import.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import jax

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
