"""One learner on several devices.

Several seeds are divided among the devices, and are independent. Of a single seed every device has
a copy, and computes its part of each batch's rows; XLA sums the gradients. Either way it is the
same program: the placement of its arrays decides how XLA divides it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from understudy.algorithms.off_policy import ReplayNeeds
from understudy.training.setup import TrainingSetup
from understudy.types import ConfigError, Tree

SEEDS, ROWS = "seeds", "rows"


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
    if needs.memory:  # a sequence is learned from as a whole
        return {"num_envs": setup.num_envs}
    rows = needs.horizon * setup.num_envs // needs.minibatches
    return {"horizon × num_envs / minibatches": rows}


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
