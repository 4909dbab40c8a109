"""What both libraries are told: one page of numbers, QDax's own defaults where it has any."""

from dataclasses import dataclass
from typing import Literal

Method = Literal["pga-me", "map-elites"]


@dataclass(frozen=True)
class Settings:
    """One comparison. The initial population is one batch, and counts as evaluations."""

    method: Method = "pga-me"
    evaluations: int = 100_000
    batch_size: int = 100
    """Policies a generation."""
    episode_length: int = 100
    policy_hidden: tuple[int, ...] = (64, 64)

    iso_sigma: float = 0.005
    line_sigma: float = 0.05

    gradient_share: float = 0.5
    """Of a generation, the greedy actor included; the rest is iso+line variation."""
    critic_hidden: tuple[int, ...] = (256, 256)
    critic_steps: int = 300
    """Of critics, a generation; every `delay`-th is followed by one of the greedy actor."""
    policy_steps: int = 100
    """Of every offspring by gradient."""
    transitions: int = 256
    """Sampled for each of these steps."""
    critic_learning_rate: float = 3e-4
    actor_learning_rate: float = 3e-4
    policy_learning_rate: float = 1e-3
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    tau: float = 0.005
    delay: int = 2
    discount: float = 0.99
    replay_size: int = 1_000_000

    offset: float = 0.0
    """The QD-score is the sum of (fitness - offset) over the filled cells."""
    log_every: int = 10
    """Generations in one compiled block, between two looks at the clock."""

    @property
    def generations(self) -> int:
        """After the initial population."""
        return self.evaluations // self.batch_size - 1

    @property
    def by_gradient(self) -> int:
        """Policies a generation that gradients make, the greedy actor included."""
        return round(self.gradient_share * self.batch_size)
