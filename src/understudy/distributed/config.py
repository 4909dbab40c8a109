"""What can be said about a cluster."""

from dataclasses import dataclass, replace
from typing import final

from understudy.algorithms.on_policy import RolloutNeeds
from understudy.training.setup import Setting
from understudy.types import ConfigError

_CHOICES = {
    "mode": ("async", "sync"),
    "gradient_mode": ("sync", "async"),
    "replay": ("central", "sharded"),
}


@final
@dataclass(frozen=True)
class Cluster:
    """Who collects, who computes gradients, and where.

    Ray starts the processes; with `devices` alone no Ray is needed."""

    collectors: int = 0
    """Processes that act and step environments, `num_envs` each; with 0 the learner's own does."""
    gradient_workers: int = 0
    """Processes that compute gradients of shares of every batch; with 0 the learner does."""
    mode: str = "async"
    """Whether every collector goes on by itself (async), or all wait for each other and for the
    learner (sync, which makes runs reproducible)."""
    gradient_mode: str = "sync"
    """Whether the shares of one batch make one update (sync), or every worker's batch makes an
    update of its own, as soon as it arrives (async)."""
    replay: str = "central"
    """Where experience is kept: by the learner, or a share of it by each gradient worker."""
    address: str | None = None
    """The Ray cluster to join: "auto", or "host:port"; without one, Ray is started here."""
    fragment: int | None = None
    """Steps of its environments that a collector takes by one policy (default: as many as hold
    whole blocks of updates, about 20; for rollouts their horizon)."""
    in_flight: int = 2
    """Fragments that a collector may be asked for at a time."""
    max_staleness: int | None = None
    """Policies that may have been published since the one a fragment was collected by; staler
    ones are dropped (default: 16 for each collector)."""
    patience: float = 60.0
    """Seconds without any fragment (or gradient) after which the run is given up, and after which
    a silent process is replaced."""
    cpus_each: float = 1.0
    """Cores that Ray sets aside for every process."""
    devices: int = 1
    """Accelerators over which the learner is spread: its seeds, or the rows of its batches."""

    def __post_init__(self) -> None:
        problems = []
        for name, least in (("collectors", 0), ("gradient_workers", 0), ("in_flight", 1),
                            ("devices", 1)):  # fmt: skip
            if getattr(self, name) < least:
                problems.append(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("fragment", "max_staleness"):
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.append(f"{name} must be at least 1, got {value}")
        for name in ("patience", "cpus_each"):
            if not getattr(self, name) > 0:
                problems.append(f"{name} must be above 0, got {getattr(self, name)}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                wanted = " or ".join(choices)
                problems.append(f"{name} must be {wanted}, got {getattr(self, name)!r}")
        if self.replay == "sharded" and not self.gradient_workers:
            problems.append("replay='sharded' needs gradient_workers, who keep it")
        elif self.replay == "sharded" and self.collectors < self.gradient_workers:
            problems.append(
                "replay='sharded' needs a collector for each of the gradient_workers, who keeps "
                f"what it brings: got {self.collectors} for {self.gradient_workers}"
            )
        if problems:
            raise ConfigError("Cluster: " + "; ".join(problems))

    @property
    def remote(self) -> int:
        """Processes that Ray has to start."""
        return self.collectors + self.gradient_workers

    @property
    def staleness(self) -> int:
        return self.max_staleness or 16 * max(self.collectors, 1)


def widened(setting: Setting, cluster: Cluster) -> Setting:
    """For experience, and for what the learner knows of environments: a lane for each of all that
    there are. (A rollout that comes by itself is learned from by itself.)"""
    if isinstance(setting.algorithm.needs, RolloutNeeds) and cluster.mode == "async":
        return setting
    return replace(setting, num_envs=setting.num_envs * max(cluster.collectors, 1))
