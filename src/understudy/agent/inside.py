"""What an agent keeps track of: who trains it, the checkpoint it came from, and the schedules it
follows."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from understudy.distributed.config import Cluster, widened
from understudy.envs.base import NativeEnv
from understudy.envs.fault_guard import Guard
from understudy.envs.make import EnvSource
from understudy.ops.schedules import Schedule, describe, last_step, spanning
from understudy.state_dict import load_state_dict
from understudy.training.device_sharding import find_sharding
from understudy.training.factory import Source, check_workers, make_trainer
from understudy.training.snapshot import Snapshot
from understudy.training.trainer import Trainer, TrainingSetup, learner_shapes
from understudy.training.update import LearnerState
from understudy.types import CheckpointError, ConfigError

_log = logging.getLogger("understudy.agent")


@final
@dataclass(frozen=True)
class Trained:
    """What trains, and on what."""

    setup: TrainingSetup
    source: Source
    env_workers: int
    guard: Guard
    cluster: Cluster | None

    def check(self) -> None:
        """Refuse what does not go together, before anything starts."""
        check_workers(self.env_workers, self.source)
        find_sharding(self.learner)
        remote = self.cluster is not None and self.cluster.remote
        if remote and isinstance(self.source, NativeEnv):
            raise ConfigError(
                "collectors and gradient workers are for Gymnasium environments: native ones are "
                "stepped on the device, of which there may be several (Cluster(devices=…))"
            )
        if remote and self.env_workers:
            raise ConfigError("env_workers belong to one process: collectors are processes already")

    @property
    def learner(self) -> TrainingSetup:
        """What the learner is made for: all environments that there are."""
        return self.setup if self.cluster is None else widened(self.setup, self.cluster)

    def trainer(self) -> Trainer:
        if self.cluster is not None and self.cluster.remote:
            from understudy.distributed.loop import ClusterTrainer

            assert isinstance(self.source, EnvSource)
            return ClusterTrainer(self.setup, self.source, self.guard, self.cluster)
        return make_trainer(self.setup, self.source, self.env_workers, self.guard)


@final
@dataclass(frozen=True)
class Loaded:
    """What came from a checkpoint or from another agent."""

    snapshot: Snapshot
    learner: LearnerState
    may_refill: bool

    @staticmethod
    def of(setup: TrainingSetup, snapshot: Snapshot, may_refill: bool) -> "Loaded":
        learner = load_state_dict(learner_shapes(setup), snapshot.learner)
        return Loaded(snapshot, learner, may_refill)

    def go_on(self, make: Callable[[], Trainer]) -> Trainer:
        """A trainer that stands where the snapshot was taken."""
        if self.snapshot.world is None and not self.may_refill:
            raise CheckpointError(
                "this checkpoint holds what was learned, but not the experience to go on from: "
                "load a run's directory, or let us.load(…, refill=True) collect anew"
            )
        trainer = make()
        try:
            trainer.restore(self.snapshot)
        except BaseException:
            trainer.close()
            raise
        return trainer


@final
@dataclass
class Scheduling:
    """Schedules from all calls of `train`, and the hyper-parameters that were set since."""

    schedules: dict[str, Schedule] = field(default_factory=dict)
    set_by_hand: set[str] = field(default_factory=set)  # even the config's own schedules end there

    def follow(self, trainer: Trainer, schedules: dict[str, Schedule] | None, stop: int) -> None:
        """Let a trainer follow these too, in a training that ends at step `stop`. The config's own
        schedules span the steps up to there. Schedules of an earlier training keep their length."""
        earlier = {
            name: spanning(s, trainer.position.horizon) for name, s in self.schedules.items()
        }
        given = {name: spanning(s, stop) for name, s in (schedules or {}).items()}
        trainer.position.horizon = stop
        trainer.schedule(earlier | given)
        self.schedules = earlier | given
        self.set_by_hand -= given.keys()
        if trainer.hyper_schedules is not None:
            trainer.hyper_schedules.end(self.set_by_hand)
        for name in earlier.keys() - given.keys():
            end = last_step(earlier[name])
            if end is not None and end < stop:
                _log.warning(
                    "the schedule of %s was given to an earlier training: it ends at step %d of %d",
                    name, end, stop,
                )  # fmt: skip

    def end(self, names: Any) -> None:
        for name in names:
            self.schedules.pop(name, None)
        self.set_by_hand |= set(names)

    def about(self) -> dict[str, Any]:
        """For a manifest."""
        curves = {name: describe(schedule) for name, schedule in self.schedules.items()}
        return {"schedules": curves, "set_by_hand": sorted(self.set_by_hand)}
