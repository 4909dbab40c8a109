"""Compilation: a cache of compiled programs on disk, and a warning about repeated compilation.

Both are set up when an agent is made, never by an import.
"""

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, final

import jax

from understudy.training.seed_axis import PROGRAM_PREFIX

CACHE_VARIABLE = "UNDERSTUDY_COMPILATION_CACHE"  # a directory, or "off"
MOST_COMPILATIONS = 10  # of one program; with more of them, and of the seconds below, it warns
MOST_SECONDS = 10.0
_COMPILED = "/jax/core/compile/backend_compile_duration"
_OFF = ("", "0", "false", "no", "off")

# Updates consist of hundreds of small kernels. CUDA graphs run those at once that do not depend on
# each other. The pass that is left out fuses normalization over the rows of a batch with all that
# comes before it, into kernels that take milliseconds and minutes to compile.
GPU_OPTIONS = {
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    "xla_disable_hlo_passes": "triton-softmax-rewriter",
}

_log = logging.getLogger("understudy.compilation")


def compiler_options(devices: Iterable[Any]) -> dict[str, Any] | None:
    """Return XLA's options for programs of updates on these devices."""
    return GPU_OPTIONS if {device.platform for device in devices} == {"gpu"} else None


@cache
def set_up_compilation() -> None:
    """Use a compilation cache in the user's cache directory, and warn of repeated compilation.

    A cache directory that JAX has been given stays, and `UNDERSTUDY_COMPILATION_CACHE` names
    another directory or turns the cache off. Only the first call of a process has an effect.
    """
    jax.monitoring.register_event_duration_secs_listener(CompilationCounter())
    chosen = os.environ.get(CACHE_VARIABLE)
    # JAX declares its settings at run time, where type checkers do not see them.
    given = getattr(jax.config, "jax_compilation_cache_dir", None)
    if given is not None or (chosen is not None and chosen.lower() in _OFF):
        return
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = Path(chosen) if chosen else Path(base) / "understudy" / "jax"
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # read-only, or there is no home directory
        _log.info("compiled programs are not cached: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    _log.info("compiled programs are cached in %s (%s=off: no cache)", directory, CACHE_VARIABLE)


@final
class CompilationCounter:
    """Counts compilations of this library's programs by name, also those that the cache on disk
    answers. Warns once of a program that is compiled often and for a long time. A listener of
    `jax.monitoring`."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._lock = threading.Lock()  # programs are compiled in several threads

    def __call__(self, event: str, duration_secs: float, **about: str | int) -> None:
        name = str(about.get("fun_name")).removeprefix("jit(").removesuffix(")")
        if event != _COMPILED or not name.startswith(PROGRAM_PREFIX):
            return
        with self._lock:
            durations = self._seconds[name]
            warned = _is_excessive(durations)
            durations.append(duration_secs)
            due = _is_excessive(durations) and not warned
        if due:
            _log.warning(
                "the program '%s' has been compiled %d times in this process, in %.0f s. A program "
                "is compiled again for agents with other settings (agent.set and "
                "understudy.sweep.sweep change settings without compiling), for agents with "
                "networks, loss add-ons or native environments of your own, and for other numbers "
                "of rows in agent.act and of episodes in agent.evaluate",
                name.removeprefix(PROGRAM_PREFIX), len(durations), sum(durations),
            )  # fmt: skip


def _is_excessive(durations: list[float]) -> bool:
    return len(durations) >= MOST_COMPILATIONS and sum(durations) >= MOST_SECONDS
