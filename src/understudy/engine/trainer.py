"""What the host loop and the device loop have in common: the face they show to a run."""

import abc
import os
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from understudy.algorithms.base import Algorithm
from understudy.engine.cadence import Cadence
from understudy.engine.members import INITIALISATION, member_keys
from understudy.engine.updates import Learner, Meter, empty_meter, metric_names
from understudy.experience import Ring, create, size_in_bytes
from understudy.types import ConfigError, Key, Spec, UnderstudyError

LONGEST_ROW_OF_DISCARDS = 10


@dataclass
class Position:
    """How far a run has come. Unbatched: every member is at the same place."""

    iterations: int = 0  # steps of each environment
    updates: int = 0


@dataclass(frozen=True)
class Setting:
    """What a trainer is built from."""

    algorithm: Algorithm
    spec: Spec
    seed: int
    num_seeds: int
    num_envs: int


class Trainer(abc.ABC):
    """Advances K members by iterations. Abstract; the final ones are the two loops."""

    setting: Setting
    cadence: Cadence
    position: Position
    learner: Learner  # [members, ...]
    ring: Ring  # [members, ...]

    @abc.abstractmethod
    def advance(self, iterations: int) -> None:
        """Train on: that many steps of every environment, and the updates they owe."""

    @abc.abstractmethod
    def episodes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per member: returns and lengths of the episodes that ended since the last call."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release environments."""

    def resume(self, state: Any, iterations: int, updates: int) -> None:
        """Go on from a stored State. Its experience is not stored: learning waits until the
        ring holds `min_buffer_size` transitions again, and nothing is owed for the gap."""
        self.learner = self.learner._replace(state=jax.tree.map(jnp.array, state))
        self.position = Position(iterations, updates)
        self.cadence = self.cadence.refilling(iterations)

    @property
    def steps(self) -> int:
        """Transitions per member so far."""
        return self.position.iterations * self.setting.num_envs

    def policy(self) -> Any:
        """The acting slice of every member."""
        return self.setting.algorithm.policy(self.learner.state)

    def metrics(self) -> dict[str, np.ndarray]:
        """Per-member means of the update metrics since the last call; what was not computed
        in that time is absent."""
        meter = jax.device_get(self.learner.meter)
        if meter.discarded_in_a_row.max() >= LONGEST_ROW_OF_DISCARDS:
            member = int(meter.discarded_in_a_row.argmax())
            raise UnderstudyError(
                f"training diverged: the last {int(meter.discarded_in_a_row[member])} updates of "
                f"member {member} were not finite and were discarded; "
                "lower the learning rate or the reward scale"
            )
        means = {}
        for place, name in enumerate(self._metric_names):
            total, count = meter.total[:, place], meter.count[:, place]
            if (count > 0).all():
                means[name] = total / count
        if meter.discarded.any():
            means["discarded_updates"] = meter.discarded.astype(np.float32)
        fresh = meter._replace(total=meter.total * 0, count=meter.count * 0)
        self.learner = self.learner._replace(meter=jax.device_put(Meter(*fresh)))
        return means

    def _start(self) -> tuple[Learner, Ring]:
        """Initial states and an empty ring, with a member axis."""
        setting = self.setting
        algorithm, appetite = setting.algorithm, setting.algorithm.appetite
        self.cadence = Cadence.of(appetite, setting.num_envs)
        self.position = Position()
        members = setting.num_seeds
        self._metric_names = metric_names(algorithm, setting.spec)
        check_memory(size_in_bytes(setting.spec, appetite.buffer_size, setting.num_envs) * members)

        def initial(key: Key) -> Learner:
            state = algorithm.init(setting.spec, key)
            return Learner(state, empty_meter(len(self._metric_names)))

        learner = jax.jit(jax.vmap(initial))(member_keys(setting.seed, members, INITIALISATION))
        ring = jax.eval_shape(lambda: create(setting.spec, appetite.buffer_size, setting.num_envs))
        empty = jax.tree.map(lambda x: jnp.zeros((members, *x.shape), x.dtype), ring)
        return learner, empty


def check_memory(needed: int) -> None:
    """Refuse, before allocating, a replay ring that cannot fit."""
    device = jnp.zeros(()).devices().pop()
    statistics = device.memory_stats() or {}
    available = statistics.get("bytes_limit") or _host_memory()
    if needed > available:
        raise ConfigError(
            f"the replay ring needs {needed / 2**30:.1f} GiB and {device.platform} has "
            f"{available / 2**30:.1f} GiB: lower buffer_size (or the number of seeds)"
        )


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
