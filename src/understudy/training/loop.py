"""The host loop: Gymnasium environments step on the CPU while the device updates.

One iteration is

    act → hand over the previous step for learning → step the environments

Learning runs beside the environments' step: the update of iteration t learns from steps up to
t − 1, and its policy acts from iteration t + 1 on. That lag is fixed, so nothing waits and runs
stay reproducible. One block of bytes goes to the device per iteration.

Rollouts must be the present policy's own: a complete one is handed over, in one call, before
acting, and acting waits for the update.
"""

from typing import ClassVar, final

import numpy as np

from understudy.algorithms.base import Rollout
from understudy.envs.base import HostEnvs
from understudy.training.collector import Collector, block_fields
from understudy.training.learner import Learning
from understudy.training.replay_placement import EVERYWHERE
from understudy.training.snapshot import Named, Snapshot
from understudy.training.step_packing import Parcel
from understudy.training.trainer import Setting, Trainer


@final
class HostTrainer(Trainer):
    """Trains K members on K × N Gymnasium environments."""

    places: ClassVar[tuple[str, ...]] = EVERYWHERE

    def __init__(self, setting: Setting, envs: HostEnvs):
        self.setting = setting
        parcel = Parcel(block_fields(setting))
        self.held = self.learning = Learning(setting.algorithm, parcel, *self._start())
        read = self.learning.form.read_policy
        self.collector = Collector(setting, envs, self.policy(), read, self.learning.act_device)
        self._on_policy = isinstance(setting.algorithm.appetite, Rollout)
        self._waiting: list[np.ndarray] = []  # blocks of a rollout that is not yet complete

    def advance(self, iterations: int) -> None:
        self.collector.begin()
        for _ in range(iterations):
            if self.interrupted:
                break
            random = self.cadence.random(self.position.iterations)
            if self._on_policy:
                self._learn()
                self.collector.act(self.learning.policy(), random, watch=True)
            else:
                self.collector.act(self.learning.policy(), random)
                self._learn()
            self.collector.step()
            self.position.iterations += 1

    def _learn(self) -> None:
        """Have the previous step added and the updates it owes done; returns at once.

        Steps of a rollout wait for its last one: one call takes them all."""
        count = self.cadence.updates_after(self.position.iterations - 1)
        block = self.collector.block
        if self._on_policy and not count:
            self._waiting.append(block)
            return
        rollout = [*self._waiting, block]
        self._waiting.clear()
        if len(rollout) > 1 and len(rollout) == self.cadence.block_iterations:
            self._hand_over(np.stack(rollout, axis=1), count, self.steps)
        else:  # the first one, which begins with a reset
            for block in rollout[:-1]:
                self._hand_over(block, 0, self.steps)
            self._hand_over(rollout[-1], count, self.steps)
        self.position.updates += count

    def _hand_over(self, block: np.ndarray, count: int, step: int) -> None:
        names, values = (), None
        if self.movement is not None:
            names, values = self.movement.names, self.movement.at(step)
        self.learning.learn(block, count, names, values)

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        self.learning.restart_counting(self.position.updates)

    def _name_acting(self) -> Named:
        named = self.collector.named()
        if "block" not in named:
            return named
        block = named.pop("block")
        return named | {"blocks": np.stack([*self._waiting, block])}

    def _put_acting_back(self, acting: Named) -> None:
        if "blocks" in acting:
            *self._waiting, block = acting["blocks"]
            acting = acting | {"block": block}
        self.collector.put_back(acting)

    def episodes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return self.collector.episodes()

    def faults(self) -> dict[str, int]:
        return self.collector.faults

    def close(self) -> None:
        self.learning.close()
        self.collector.close()
