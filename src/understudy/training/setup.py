"""What a trainer is built from."""

from dataclasses import dataclass, replace

from understudy.algorithms.base import Algorithm
from understudy.types import ConfigError, Spec


@dataclass(frozen=True)
class Setting:
    """What a trainer is built from."""

    algorithm: Algorithm
    spec: Spec
    seed: int
    num_seeds: int
    num_envs: int
    devices: int = 1  # among which members, or the rows of batches, are divided

    @property
    def unseeded(self) -> "Setting":
        """The same with seed 0: programs do not depend on the seed."""
        return replace(self, seed=0)

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("num_seeds", 1), ("num_envs", 1), ("devices", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.seed + self.num_seeds > 2**32:
            raise ConfigError(f"seed must be below 2**32, got {self.seed}")
