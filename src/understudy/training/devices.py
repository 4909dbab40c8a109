"""Which devices compute, and settings of the process for them. An import changes no setting.

One learner can be on several devices. Several seeds are divided among the devices, and are
independent. Of a single seed every device has a copy, and computes its part of each batch's rows;
XLA sums the gradients. Either way it is the same program: the placement of its arrays decides how
XLA divides it.
"""

import re
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from understudy.algorithms.base import Needs
from understudy.algorithms.off_policy import ReplayNeeds
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.aliases import VALUES
from understudy.training.compilation import set_up_compilation
from understudy.training.setup import TrainingSetup
from understudy.types import ConfigError, Tree

SECONDS_TO_JOIN = 30
SEEDS, ROWS = "seeds", "rows"


def find_device(name: str | None) -> Any:
    """Find this process's first device of that kind ("cpu", "gpu"); None, "auto": JAX chooses."""
    if name in (None, "auto"):
        return None
    if name in VALUES:
        raise ConfigError(f"the device '{name}' is called '{VALUES[name]}' here")
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


def find_sharding(setup: TrainingSetup) -> NamedSharding | None:
    """The sharding of everything with a seed axis over the devices of a setup; None: JAX's default
    device. Refuses what cannot be divided."""
    wanted = setup.devices
    if wanted == 1:
        return None
    platform = jnp.zeros(()).devices().pop().platform
    have = jax.devices(platform)
    _check(setup, len(have), platform)
    axis = SEEDS if setup.num_seeds > 1 else ROWS
    mesh = Mesh(np.array(have[:wanted]), (axis,))
    return NamedSharding(mesh, PartitionSpec(SEEDS) if axis == SEEDS else PartitionSpec())


def _check(setup: TrainingSetup, have: int, platform: str) -> None:
    wanted, hosts = setup.devices, jax.process_count()
    if wanted > have:
        raise ConfigError(f"devices must be at most {have} ({platform}) here, got {wanted}")
    if hosts > 1 and wanted != have:
        raise ConfigError(f"{hosts} hosts have {have} devices and use all: got devices={wanted}")
    if hosts > 1 and setup.num_seeds > 1:
        raise ConfigError(
            "several hosts train one seed: give each host a run with seeds of its own instead"
        )
    for name, number in _divided(setup).items():
        if number % wanted:
            raise ConfigError(
                f"{name} must be a multiple of devices: {number} cannot be divided among {wanted}"
            )


def _divided(setup: TrainingSetup) -> dict[str, int]:
    """What is divided equally among the devices, and its size."""
    needs = setup.algorithm.needs
    if setup.num_seeds > 1:
        return {"num_seeds": setup.num_seeds}
    if isinstance(needs, ReplayNeeds):
        return {"batch_size": needs.batch_size}
    rows = needs.parts(setup.num_envs) // needs.minibatches
    what = "num_envs" if needs.memory else "horizon × num_envs"  # sequences stay whole
    return {f"{what} / minibatches": rows}


def shared_by_all(sharding: Sharding) -> Sharding:
    """The sharding of what has no seed axis, beside what has one."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding


def divides_rows(program: Callable[..., Any], sharding: Sharding | None) -> Callable[..., Any]:
    """The program, in which `split_rows` divides rows among the devices of the sharding."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.axis_names != (ROWS,):
        return program

    def traced(*arguments: Any) -> Any:
        with jax.sharding.use_abstract_mesh(sharding.mesh.abstract_mesh):
            return program(*arguments)

    return traced


def split_rows(batch: Tree) -> Tree:
    """Divide the rows of a prepared batch among the devices."""
    if ROWS not in jax.sharding.get_abstract_mesh().axis_names:
        return batch
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec(ROWS)), batch)
