"""The settings of DDPG."""

from dataclasses import dataclass
from typing import final

from understudy.algorithms.config import read_presets, setting
from understudy.algorithms.off_policy import OffPolicyConfig


@final
@dataclass(frozen=True)
class DDPGConfig(OffPolicyConfig):
    """Deep Deterministic Policy Gradient. Noise is in normalized units: actions are in [-1, 1]."""

    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The actor's learning rate (default: learning_rate)."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The actor's own hidden layers (default: hidden_sizes)."""
    num_critics: int = setting(1, at_least=1)
    """Independently initialized critics; the paper has one. The target uses their minimum, the
    actor's loss the first critic."""
    noise: str = setting("gaussian", choices=("gaussian", "ornstein_uhlenbeck"))
    """Noise on actions while exploring: independent at every step, or correlated over time."""
    exploration_noise: float = setting(0.1, at_least=0.0, moving=True)
    """Standard deviation of that noise, at every step and for either kind."""
    noise_theta: float = setting(0.15, above=0.0, at_most=1.0, moving=True)
    """Ornstein-Uhlenbeck noise: decay per step; it is correlated over about 1/theta steps."""

    presets = read_presets(__file__)
