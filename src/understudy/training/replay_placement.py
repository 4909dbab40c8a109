"""Where experience is stored: on the device, in the host's memory or on disk. The place is chosen,
and logged, before anything is allocated."""

import contextlib
import ctypes
import logging
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from understudy.algorithms.off_policy import ReplayNeeds
from understudy.buffers import Buffer, FrameReplayBuffer, HostReplayBuffer
from understudy.training.program_cache import shared
from understudy.training.setup import TrainingSetup, make_buffer
from understudy.types import ConfigError

# The part of a place's memory that replay may take, where there is a choice: on the device the rest
# is for learning, elsewhere for the copy that a checkpoint is written from.
SHARE = {"device": 0.8, "host": 0.4, "disk": 0.4}
EVERYWHERE = tuple(SHARE)
LARGE = 2**30  # bytes

_log = logging.getLogger("understudy.training.replay")


class Place(NamedTuple):
    name: str  # device, host or disk
    needed: int  # bytes
    free_bytes: int  # bytes that replay may take
    words: str

    def __str__(self) -> str:
        return f"{_gib(self.needed)} {self.words}"


def choose(setup: TrainingSetup, possible: tuple[str, ...] = EVERYWHERE) -> Place:
    """Choose the first of the `possible` places that can hold all experience, or the one that the
    config asks for."""
    needs = setup.algorithm.needs
    replay = isinstance(needs, ReplayNeeds)
    asked = needs.storage if replay else "device"
    if asked not in ("auto", *possible):
        raise ConfigError(
            f"native environments keep replay on the device: replay_storage must be auto or "
            f"device, got {asked!r}"
        )
    if replay and needs.priority_exponent is not None:
        possible = ("device",)
    names = possible if asked == "auto" else (asked,)
    places = [_measure(name, setup, SHARE[name] if len(names) > 1 else 1) for name in names]
    for place in places:
        if place.needed <= place.free_bytes:
            _announce(place, setup, asked)
            return place
    has = " or ".join(
        f"{place} (where {_gib(place.free_bytes)} are free for it)" for place in places
    )
    raise ConfigError(
        f"{'replay' if replay else 'a rollout'} needs {has}: lower "
        f"{'buffer_size' if replay else 'horizon'} (or the number of seeds)"
    )


def make(
    setup: TrainingSetup, place: Place, sharding: NamedSharding | None = None
) -> tuple[Buffer, Any]:
    """Make the buffer for a place, and its empty state with a seed axis."""
    if place.name == "device":
        return setup.buffer, init_program(setup.buffer, setup.num_seeds, sharding)()
    frames = make_buffer(setup.algorithm, setup.spec, setup.num_envs, frames=True)
    assert isinstance(frames, FrameReplayBuffer)
    where = directory() if place.name == "disk" else None
    buffer = HostReplayBuffer(frames, setup.num_seeds, setup.seed, where)
    return buffer, buffer.init()


@shared
def init_program(buffer: Buffer, num_seeds: int, sharding: NamedSharding | None) -> Any:
    """Makes an empty buffer, with a seed axis."""
    # A buffer is too large to be made twice: the seed axis is there from the beginning.
    each = jax.vmap(lambda _: buffer.init())
    return jax.jit(lambda: each(jnp.arange(num_seeds)), out_shardings=sharding)


def directory() -> Path:
    """The directory of large temporary files: `TMPDIR`, else /var/tmp, as /tmp is often memory."""
    for place in (os.environ.get("TMPDIR"), "/var/tmp"):
        if place and os.path.isdir(place) and os.access(place, os.W_OK):
            return Path(place)
    return Path(tempfile.gettempdir())


def free_bytes(name: str) -> int:
    """Free bytes of a place."""
    if name == "device":
        statistics = _device().memory_stats() or {}
        limit = statistics.get("bytes_limit")
        return _memory() if limit is None else limit - statistics.get("bytes_in_use", 0)
    return _free_memory() if name == "host" else shutil.disk_usage(directory()).free


def _measure(name: str, setup: TrainingSetup, share: float | int) -> Place:
    buffer = make_buffer(setup.algorithm, setup.spec, setup.num_envs, frames=name != "device")
    num_seeds, on_device = setup.num_seeds, "in memory"
    if _device().platform != "cpu":
        on_device = "in device memory"
        num_seeds = -(-num_seeds // setup.devices) if name == "device" else num_seeds
    words = {"device": on_device, "host": "in host memory", "disk": f"on disk in {directory()}"}
    return Place(name, buffer.nbytes * num_seeds, int(share * free_bytes(name)), words[name])


def _announce(place: Place, setup: TrainingSetup, asked: str) -> None:
    """Log where replay is stored, unless it is small and on the device."""
    evaded = asked == "auto" and place.name != "device"
    if not isinstance(setup.algorithm.needs, ReplayNeeds):
        return
    if place.needed < LARGE and not evaded:
        return
    seen = setup.spec.observation
    frame = "×".join(map(str, seen.shape[1:] if seen.frames > 1 else seen.shape))
    seeds = f"{setup.num_seeds} × " if setup.num_seeds > 1 else ""
    steps = f"{seeds}{setup.algorithm.needs.buffer_size:,} steps"
    why = ", because the device cannot hold it" if evaded else ""
    level = logging.WARNING if evaded else logging.INFO
    _log.log(level, "replay: %s of %s %s, %s%s", steps, frame, seen.dtype, place, why)


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _device() -> Any:
    return jnp.zeros(()).devices().pop()


def _memory() -> int:
    """Memory of this machine, or of this container."""
    limit = _read_kernel("/sys/fs/cgroup/memory.max")
    if hasattr(os, "sysconf"):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        total = windows_memory()
    return total if limit is None else min(limit, total)


def windows_memory() -> int:
    """The memory of a machine with Windows; unlimited if it does not say."""
    kilobytes, windows = ctypes.c_ulonglong(), getattr(ctypes, "windll", None)
    known = windows and windows.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
    return kilobytes.value * 1024 if known else sys.maxsize


def _free_memory() -> int:
    """Memory that no process uses."""
    free = _read_kernel("/proc/meminfo", "MemAvailable")
    free = _memory() if free is None else free * 1024  # it is in kB; macOS does not say
    limit, used = map(_read_kernel, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"))
    if limit is None or used is None:
        return free
    cached = _read_kernel("/sys/fs/cgroup/memory.stat", "inactive_file") or 0
    return min(free, limit - used + cached)


def _read_kernel(path: str, name: str = "") -> int | None:
    """Read a number from a file of the Linux kernel, after its name if it has one."""
    with contextlib.suppress(OSError):
        found = re.search(rf"^{name}:?\s*(\d+)", Path(path).read_text(), re.MULTILINE)
        return int(found[1]) if found else None
    return None
