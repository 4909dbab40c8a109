"""The arguments of a trainer, and the buffer that follows from them."""

from dataclasses import dataclass, replace

from understudy.algorithms.base import Algorithm
from understudy.algorithms.off_policy import ReplayNeeds
from understudy.buffers import Buffer, FrameReplayBuffer, ReplayBuffer, RolloutBuffer
from understudy.types import ConfigError, Spec


@dataclass(frozen=True)
class TrainingSetup:
    """The algorithm, the spec of the environments, and how many of what a trainer trains."""

    algorithm: Algorithm
    spec: Spec
    seed: int
    num_seeds: int
    num_envs: int
    devices: int = 1  # among which seeds, or the rows of batches, are divided

    @property
    def unseeded(self) -> "TrainingSetup":
        """The same with seed 0: programs do not depend on the seed."""
        return replace(self, seed=0)

    @property
    def buffer(self) -> Buffer:
        """The buffer of one seed, on the device."""
        return make_buffer(self.algorithm, self.spec, self.num_envs)

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("num_seeds", 1), ("num_envs", 1), ("devices", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.seed + self.num_seeds > 2**32:
            raise ConfigError(f"seed must be below 2**32, got {self.seed}")


def make_buffer(algorithm: Algorithm, spec: Spec, lanes: int, frames: bool = False) -> Buffer:
    """The buffer that an algorithm needs, for the steps of `lanes` environments. Images, and
    sequences for recurrent networks, need frame replay; vectors are sampled faster from replay,
    which stores every observation twice. With `frames`, replay is always frame replay."""
    needs, seen = algorithm.needs, spec.observation
    if not isinstance(needs, ReplayNeeds):
        return RolloutBuffer(spec, needs.horizon, lanes, needs.memory, needs.extras)
    size, rows, exponent = needs.buffer_size, needs.batch_size, needs.priority_exponent
    if frames or seen.is_image or seen.in_bytes or needs.sequences is not None:
        mix, sequences = needs.priority_mix, needs.sequences
        return FrameReplayBuffer(spec, size, lanes, rows, needs.n_step, exponent, mix, sequences)
    return ReplayBuffer(spec, size, lanes, rows, needs.n_step, exponent)
