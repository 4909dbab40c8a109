"""What can be set about DDPG."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from understudy.algorithms.config import setting
from understudy.algorithms.off_policy import REMEMBERING, OffPolicyConfig

# Of Tianshou's benchmark, and of RL Baselines3 Zoo; sources in docs/presets.md.
_TIANSHOU = dict(learning_rate=1e-3, max_start_steps=25_000, min_buffer_size=25_000)
_ZOO = dict(
    learning_rate=1e-3, hidden_sizes=(400, 300), max_start_steps=10_000, min_buffer_size=10_000
)
_ZOO_BOX2D = dict(_ZOO, gamma=0.98, buffer_size=200_000)


@final
@dataclass(frozen=True)
class DDPGConfig(OffPolicyConfig):
    """Deep Deterministic Policy Gradient. Noise is in normalized units: actions live in [-1, 1]."""

    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The actor's own step size (default: learning_rate)."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The actor's own hidden layers (default: hidden_sizes)."""
    num_critics: int = setting(1, at_least=1)
    """Independently initialized critics; the paper has one. The smallest opinion counts in the
    target, the first critic's in the actor's loss."""
    noise: str = setting("gaussian", choices=("gaussian", "ornstein_uhlenbeck"))
    """Noise on actions while exploring: new at every step, or one that lingers."""
    exploration_noise: float = setting(0.1, at_least=0.0, moving=True)
    """Standard deviation of that noise, at every step and for either kind."""
    noise_theta: float = setting(0.15, above=0.0, at_most=1.0, moving=True)
    """Ornstein-Uhlenbeck noise's pull to zero per step; it lingers for about 1/theta steps."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "Pendulum-v1": dict(
            hidden_sizes=(64, 64),
            learning_rate=1e-3,
            batch_size=128,
            buffer_size=100_000,
            start_steps=1_000,
        ),
        "MountainCarContinuous-v0": dict(
            hidden_sizes=(64, 64),
            learning_rate=1e-3,
            batch_size=128,
            buffer_size=100_000,
            start_steps=0,
            noise="ornstein_uhlenbeck",
            exploration_noise=0.7,
            noise_theta=0.08,
        ),
        # What was learned comes and goes at a constant step size; one that falls keeps it.
        "Pendulum-P-v1": dict(REMEMBERING, anneal_learning_rate=True),
        "HalfCheetah-v5": dict(learning_rate=1e-3, max_start_steps=5_000),
        **dict.fromkeys(("Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"), _TIANSHOU),
        **dict.fromkeys(
            ("Reacher-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5"), _TIANSHOU
        ),
        "Swimmer-v5": dict(_ZOO, gamma=0.9999),
        **dict.fromkeys(("LunarLanderContinuous-v3", "BipedalWalker-v3"), _ZOO_BOX2D),
    }
