"""Which device computes, and settings of the process for it. An import changes no setting."""

import re
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax

from understudy.algorithms.base import Needs
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.training.compilation import set_up_compilation
from understudy.types import ConfigError

SECONDS_TO_JOIN = 30


def find_device(name: str | None) -> Any:
    """Find this process's first device of that kind ("cpu", "gpu"); None: JAX chooses."""
    if name is None:
        return None
    try:
        return jax.local_devices(backend=name)[0]
    except RuntimeError as error:
        have = ", ".join(sorted({device.platform for device in jax.devices()}))
        raise ConfigError(f"there is no device '{name}' here; there is: {have}") from error


def set_up_device(name: str | None) -> Callable[[], AbstractContextManager[Any]]:
    """Set up compilation. Return a function that makes contexts in which that device computes."""
    set_up_compilation()
    device = find_device(name)
    return partial(jax.default_device, device) if device else nullcontext


def join_hosts(coordinator: str, processes: int, index: int) -> None:
    """Join the devices of several processes, on one host or on many; each process then runs the
    same program. The process of index 0 listens at the `coordinator`, "host:port".

    Call it before JAX has computed anything. A second call does nothing."""
    if jax.distributed.is_initialized():
        return
    if not 0 <= index < processes:
        raise ConfigError(f"{processes} hosts have indices 0 to {processes - 1}, got {index}")
    if not re.fullmatch(r".+:\d+", coordinator):
        raise ConfigError(f"the coordinator of several hosts is a host:port, got {coordinator!r}")
    if index:
        _wait_for_coordinator(coordinator)
    try:
        jax.distributed.initialize(coordinator, processes, index)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"host {index} cannot join {coordinator}: {reason}") from error


def _wait_for_coordinator(coordinator: str) -> None:
    """Wait until a process answers there: XLA would end this process without an explanation."""
    host, _, port = coordinator.rpartition(":")
    deadline = time.monotonic() + SECONDS_TO_JOIN
    while True:
        try:
            socket.create_connection((host, int(port)), SECONDS_TO_JOIN).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"no process answers at {coordinator}: start host 0 there first ({error})"
                ) from error
            time.sleep(0.2)


def configure_process(needs: Needs) -> None:
    """Configure a process that trains one algorithm only. No effect once JAX has computed anything.

    Acting on policy waits for every program. A small program on the CPU takes less time than waking
    another thread, so it runs in the calling thread. (Learning from replay runs while the
    environments step, and needs the other thread.)"""
    if isinstance(needs, RolloutNeeds):
        jax.config.update("jax_cpu_enable_async_dispatch", False)
