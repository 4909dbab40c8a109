"""What can be set about SAC."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from understudy.algorithms.config import setting
from understudy.algorithms.off_policy import REMEMBERING, OffPolicyConfig

# Of RL Baselines3 Zoo; sources in docs/presets.md.
_ZOO = dict(learning_rate=3e-4, max_start_steps=10_000, min_buffer_size=10_000)


@final
@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Soft Actor-Critic, for continuous and for discrete actions."""

    n_step: int = setting(1, at_least=1)
    """Rewards summed before bootstrapping; sums never cross an episode. Targets of more than one
    step omit the entropy of the steps between."""
    policy_delay: int = setting(1, at_least=1)
    """Critic updates per update of the actor and of the temperature."""
    critic_subset: int | None = setting(None, at_least=1)
    """Critics, drawn anew for each update, whose smallest opinion counts in the target (default:
    all of them). With it the mean of all critics counts in the actor's loss (REDQ)."""
    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The actor's own step size (default: learning_rate)."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The actor's own hidden layers (default: hidden_sizes)."""
    temperature: float | None = setting(None, at_least=0.0, moving=True)
    """A fixed temperature; 0.2 means 0.2. Without it the temperature is learned."""
    initial_temperature: float = setting(1.0, above=0.0)
    """Where a learned temperature begins."""
    target_entropy: float | None = setting(None, moving=True)
    """Entropy the learned temperature aims at (default: minus the dimensions of a continuous
    action; half the entropy of a uniform choice, ½·log n, of a discrete one)."""
    temperature_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The temperature's own step size (default: learning_rate)."""
    use_log_temperature: bool = setting(True)
    """Learn the logarithm of the temperature; otherwise the temperature itself, kept positive."""

    renamed: ClassVar[Mapping[str, str]] = {
        "entropy_coeff": "temperature",
        "initial_entropy_coeff": "initial_temperature",
        "entropy_learning_rate": "temperature_learning_rate",
        "use_log_entropy": "use_log_temperature",
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "Pendulum-v1": dict(
            hidden_sizes=(64, 64),
            learning_rate=2e-3,
            batch_size=128,
            buffer_size=100_000,
            start_steps=500,
            min_buffer_size=500,
        ),
        "CartPole-v1": dict(
            hidden_sizes=(64, 64),
            learning_rate=5e-4,
            tau=0.01,
            buffer_size=100_000,
            start_steps=500,
            min_buffer_size=500,
        ),
        "Pendulum-P-v1": REMEMBERING,
        # CleanRL's `sac_atari.py`, whose target interval counts steps; see docs/presets.md.
        "atari": dict(
            frame_stack=4,
            hidden_sizes=(),
            share_encoder=False,
            batch_size=64,
            max_start_steps=20_000,
            min_buffer_size=20_000,
            updates_per_step=0.25,
            update_every=4,
            tau=1.0,
            target_update_interval=2_000,
        ),
        "MinAtar": dict(
            hidden_sizes=(),
            share_encoder=False,
            batch_size=64,
            buffer_size=100_000,
            max_start_steps=5_000,
            min_buffer_size=5_000,
            updates_per_step=0.25,
            update_every=8,
        ),
        "HalfCheetah-v5": dict(learning_rate=1e-3, max_start_steps=5_000, min_buffer_size=1_000),
        # A fixed temperature is steadier here (Tianshou's benchmark).
        "Hopper-v5": dict(_ZOO, learning_rate=1e-3, temperature=0.2),
        **dict.fromkeys(("Walker2d-v5", "Ant-v5", "Humanoid-v5", "Reacher-v5"), _ZOO),
        **dict.fromkeys(("InvertedPendulum-v5", "InvertedDoublePendulum-v5"), _ZOO),
        "Swimmer-v5": dict(_ZOO, gamma=0.999),
        "LunarLanderContinuous-v3": dict(
            _ZOO,
            learning_rate=7.3e-4,
            anneal_learning_rate=True,
            tau=0.01,
            hidden_sizes=(400, 300),
        ),
    }
