"""What can be set about TD3."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from understudy.algorithms.config import setting
from understudy.algorithms.off_policy import REMEMBERING, OffPolicyConfig

# Of the authors' repository, and of RL Baselines3 Zoo; sources in docs/presets.md.
_AUTHORS = dict(learning_rate=3e-4, max_start_steps=25_000, min_buffer_size=25_000)
_AUTHORS_SMALL = dict(learning_rate=3e-4, start_steps=1_000, min_buffer_size=1_000)
_ZOO = dict(
    learning_rate=1e-3, hidden_sizes=(400, 300), max_start_steps=10_000, min_buffer_size=10_000
)
_ZOO_BOX2D = dict(_ZOO, gamma=0.98, buffer_size=200_000)


@final
@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Twin Delayed DDPG. Noise is in normalized units: actions live in [-1, 1]."""

    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The actor's own step size (default: learning_rate)."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The actor's own hidden layers (default: hidden_sizes)."""
    num_critics: int = setting(2, at_least=1)
    """Independently initialized critics. The smallest opinion counts in the target, the first
    critic's in the actor's loss."""
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

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "Pendulum-v1": dict(
            hidden_sizes=(64, 64),
            learning_rate=1e-3,
            batch_size=128,
            buffer_size=100_000,
            start_steps=1_000,
            min_buffer_size=1_000,
        ),
        "Pendulum-P-v1": REMEMBERING,
        "HalfCheetah-v5": dict(learning_rate=1e-3, max_start_steps=5_000, min_buffer_size=1_000),
        **dict.fromkeys(("Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"), _AUTHORS),
        **dict.fromkeys(
            ("Reacher-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5"), _AUTHORS_SMALL
        ),
        "Swimmer-v5": dict(_ZOO, gamma=0.9999),
        **dict.fromkeys(("LunarLanderContinuous-v3", "BipedalWalker-v3"), _ZOO_BOX2D),
    }
