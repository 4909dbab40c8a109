"""The settings of a cluster."""

from dataclasses import dataclass, replace
from typing import final

from understudy.algorithms.config import Config, setting
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.training.setup import TrainingSetup


@final
@dataclass(frozen=True)
class Cluster(Config):
    """Processes and devices that a run uses beside its own process and device.

    Ray starts the processes; with `devices` alone no Ray is needed."""

    collectors: int = setting(0, at_least=0)
    """Processes that act and step environments, each as many as a run without collectors has; with
    0 the learner's process does both."""
    gradient_workers: int = setting(0, at_least=0)
    """Processes that compute gradients of shares of every batch; with 0 the learner does."""
    mode: str = setting("async", choices=("async", "sync"))
    """Whether each collector continues on its own (async), or all wait for each other and for the
    learner (sync), which makes runs reproducible."""
    gradient_mode: str = setting("sync", choices=("sync", "async"))
    """Whether the shares of one batch make one update (sync), or the batch of each worker makes an
    update of its own as soon as it arrives (async)."""
    replay: str = setting("central", choices=("central", "sharded"))
    """Where experience is stored: by the learner (central), or a share of it by each gradient
    worker (sharded)."""
    address: str | None = setting(None)
    """The Ray cluster to join: auto, or host:port (default: Ray is started on this machine)."""
    collector_chunk_steps: int | None = setting(None, at_least=1)
    """Steps of its environments that a collector takes with one policy (default: about 20, a
    multiple of the steps between updates; for rollouts their horizon)."""
    in_flight: int = setting(2, at_least=1)
    """Chunks that a collector may be asked for at a time."""
    max_staleness: int | None = setting(None, at_least=1)
    """Policies published since the one that collected a chunk; a staler chunk is dropped
    (default: 16 for each collector)."""
    patience: float = setting(60.0, above=0.0)
    """Seconds without any steps (or gradients) after which the run ends, and after which a silent
    process is replaced."""
    cpus_each: float = setting(1.0, above=0.0)
    """CPU cores that Ray reserves for each process."""
    devices: int = setting(1, at_least=1)
    """Accelerators that share the learner: its seeds, or the rows of its batches."""

    def contradictions(self) -> list[str]:
        if self.replay == "sharded" and not self.gradient_workers:
            return ["replay='sharded' needs gradient_workers, which store it"]
        if self.replay == "sharded" and self.collectors < self.gradient_workers:
            return [
                "replay='sharded' needs a collector for each of the gradient_workers, which stores "
                f"its steps: got {self.collectors} for {self.gradient_workers}"
            ]
        return []

    @property
    def remote(self) -> int:
        """Processes that Ray has to start."""
        return self.collectors + self.gradient_workers

    @property
    def staleness(self) -> int:
        return self.max_staleness or 16 * max(self.collectors, 1)


def widened(setup: TrainingSetup, cluster: Cluster) -> TrainingSetup:
    """Return the setup of the learner and its buffer, with a lane for every environment of all
    collectors. (A rollout of an asynchronous collector is learned from by itself.)"""
    if isinstance(setup.algorithm.needs, RolloutNeeds) and cluster.mode == "async":
        return setup
    return replace(setup, num_envs=setup.num_envs * max(cluster.collectors, 1))
