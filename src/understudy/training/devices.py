"""Which device computes, and settings of the process for it. An import changes no setting."""

import re
import socket
import time
from typing import Any

import jax

from understudy.algorithms.base import Needs
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.types import ConfigError

SECONDS_TO_JOIN = 30


def find_device(name: str | None) -> Any:
    """This process's first device of that kind ("cpu", "gpu"); None leaves the choice to JAX."""
    if name is None:
        return None
    try:
        return jax.local_devices(backend=name)[0]
    except RuntimeError as error:
        have = ", ".join(sorted({device.platform for device in jax.devices()}))
        raise ConfigError(f"there is no device '{name}' here; there is: {have}") from error


def join_hosts(coordinator: str, processes: int, index: int) -> None:
    """Make the devices of several processes, on one host or on many, look like one's own; each
    then runs the same program. The first one (index 0) answers at the `coordinator`, "host:port".

    To be called before JAX has computed anything; a second time it does nothing."""
    if jax.distributed.is_initialized():
        return
    if not 0 <= index < processes:
        raise ConfigError(f"{processes} hosts have indices 0 to {processes - 1}, got {index}")
    if not re.fullmatch(r".+:\d+", coordinator):
        raise ConfigError(f"the coordinator of several hosts is a host:port, got {coordinator!r}")
    if index:
        _knock(coordinator)
    try:
        jax.distributed.initialize(coordinator, processes, index)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"host {index} cannot join {coordinator}: {reason}") from error


def _knock(coordinator: str) -> None:
    """Wait until somebody answers there: XLA ends the process, without a word of ours, if nobody
    does."""
    host, _, port = coordinator.rpartition(":")
    patience = time.monotonic() + SECONDS_TO_JOIN
    while True:
        try:
            socket.create_connection((host, int(port)), SECONDS_TO_JOIN).close()
            return
        except OSError as error:
            if time.monotonic() > patience:
                raise ConfigError(
                    f"nobody answers at {coordinator}: start host 0 there first ({error})"
                ) from error
            time.sleep(0.2)


def suit(needs: Needs) -> None:
    """Settings of a process that trains one algorithm and nothing else; of no effect once JAX has
    computed anything.

    Acting on policy waits for every program. A small one on the CPU is over sooner than another
    thread is woken for it, so it runs in the thread that calls it. (Learning from replay goes on
    beside the environments, and needs that other thread.)"""
    if isinstance(needs, RolloutNeeds):
        jax.config.update("jax_cpu_enable_async_dispatch", False)
