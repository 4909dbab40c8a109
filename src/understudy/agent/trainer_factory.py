"""Make the trainer of an agent, or restore it from a snapshot."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, final

from understudy.distributed.config import Cluster, widened
from understudy.envs.base import NativeEnv
from understudy.envs.fault_guard import Guard
from understudy.envs.make import EnvSource
from understudy.state_dict import load_state_dict
from understudy.training.devices import find_sharding
from understudy.training.factory import Source, check_workers, make_trainer
from understudy.training.initialization import learner_shapes
from understudy.training.snapshot import Position, Snapshot
from understudy.training.trainer import Trainer, TrainingSetup
from understudy.training.update import LearnerState
from understudy.types import CheckpointError, ConfigError


@final
@dataclass(frozen=True)
class LoadedLearner:
    """A snapshot of a checkpoint or of another agent, and its learner's state as a tree."""

    snapshot: Snapshot
    learner: LearnerState
    refill: bool  # whether training may collect new experience if the snapshot has none


@final
@dataclass(frozen=True)
class TrainerFactory:
    """Makes trainers from a setup, a source of environments and a cluster, which may be empty. The
    learner's own setup counts the environments of all collectors."""

    setup: TrainingSetup
    source: Source
    env_workers: int
    guard: Guard
    cluster: Cluster

    def check(self) -> None:
        """Refuse inputs that contradict one another, before anything starts."""
        check_workers(self.env_workers, self.source)
        find_sharding(widened(self.setup, self.cluster))
        if self.cluster.remote and isinstance(self.source, NativeEnv):
            raise ConfigError(
                "collectors and gradient workers are for Gymnasium environments: native ones are "
                "stepped on the device, of which there may be several (Cluster(devices=…))"
            )
        if self.cluster.remote and self.env_workers:
            raise ConfigError("env_workers belong to one process: collectors are processes already")

    def load(self, snapshot: Snapshot, refill: bool) -> LoadedLearner:
        """Check that a snapshot fits, without making a trainer."""
        shapes = learner_shapes(widened(self.setup, self.cluster))
        learner = load_state_dict(shapes, snapshot.learner)
        return LoadedLearner(snapshot, learner, refill)

    def make(self, loaded: LoadedLearner | None) -> Trainer:
        """Make a trainer, which continues from the snapshot if there is one."""
        if loaded is not None and loaded.snapshot.world is None and not loaded.refill:
            raise CheckpointError(
                "this checkpoint holds what was learned, but not the experience to go on from: "
                "load a run's directory, or let us.load(…, refill=True) collect anew"
            )
        if self.cluster.remote:
            from understudy.distributed.loop import ClusterTrainer

            assert isinstance(self.source, EnvSource)
            trainer = ClusterTrainer(self.setup, self.source, self.guard, self.cluster)
        else:
            trainer = make_trainer(self.setup, self.source, self.env_workers, self.guard)
        try:
            if loaded is not None:
                trainer.restore(loaded.snapshot)
        except BaseException:
            trainer.close()
            raise
        return trainer


@final
class LazyTrainer:
    """The trainer of an agent, which is made, or restored from a snapshot, when it is first asked
    for. Until then the learner and the position of the snapshot are read."""

    def __init__(
        self, factory: TrainerFactory, on_device: Callable[[], AbstractContextManager[Any]]
    ):
        self._factory, self._on_device = factory, on_device
        self._trainer: Trainer | None = None
        self._loaded: LoadedLearner | None = None

    def load(self, snapshot: Snapshot, refill: bool) -> None:
        """Continue from a snapshot; from one without experience only with `refill`."""
        with self._on_device():
            self._loaded = self._factory.load(snapshot, refill)

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            with self._on_device():
                self._trainer = self._factory.make(self._loaded)
            self._loaded = None
        return self._trainer

    @property
    def learner(self) -> LearnerState:
        return self._loaded.learner if self._loaded else self.trainer.learner

    @property
    def version(self) -> Any:
        """An object that is another one after the learner has changed."""
        return self._loaded.learner if self._loaded else self.trainer.version

    @property
    def position(self) -> Position:
        if self._loaded:
            return self._loaded.snapshot.position
        return self._trainer.position if self._trainer else Position()

    @property
    def env_changes(self) -> dict[str, Any]:
        """The changes by `agent.envs`."""
        return self._loaded.snapshot.env_changes if self._loaded else self.trainer.env_changes

    def snapshot(self, experience: bool) -> Snapshot:
        return self._loaded.snapshot if self._loaded else self.trainer.snapshot(experience)

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
