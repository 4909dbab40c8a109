"""The settings of TD3."""

from dataclasses import dataclass
from typing import final

from understudy.algorithms.config import read_presets, setting
from understudy.algorithms.off_policy import OffPolicyConfig
from understudy.algorithms.optim import Delays


@final
@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Twin Delayed DDPG. Noise is in normalized units: actions are in [-1, 1]."""

    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The actor's learning rate (default: learning_rate)."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The actor's own hidden layers (default: hidden_sizes)."""
    num_critics: int = setting(2, at_least=1)
    """Independently initialized critics. The target uses their minimum, the actor's loss the first
    critic."""
    policy_delay: int = setting(2, at_least=1)
    """Critic updates per update of the actor and of all targets."""
    exploration_noise: float = setting(0.1, at_least=0.0, moving=True)
    """Standard deviation of the noise on actions while exploring."""
    policy_noise: float = setting(0.2, at_least=0.0, moving=True)
    """Standard deviation of the noise that smooths the target action."""
    noise_clip: float = setting(0.5, at_least=0.0, moving=True)
    """Bound of the smoothing noise, per sample and dimension."""
    target_update_interval: int = setting(1, at_least=1)
    """Delayed steps between two target updates."""
    max_start_steps: int = setting(25_000, at_least=0)
    """The most random steps, where start_steps is not set."""

    presets = read_presets(__file__)

    @property
    def delays(self) -> Delays:
        """All targets move with the delayed step, as in the paper."""
        return Delays(self.policy_delay, self.policy_delay * self.target_update_interval)
