"""What can be set about A2C."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from understudy.algorithms.config import setting
from understudy.algorithms.on_policy import OnPolicyConfig

# Of Tianshou's benchmark, there with 16 environments; sources in docs/presets.md.
_TIANSHOU = dict(
    anneal_learning_rate=True,
    gae_lambda=0.95,
    entropy_coeff=0.01,
    epsilon_inside_root=False,
    normalize_observations=True,
    normalize_rewards=True,
    initial_log_std=-0.5,
)
# Policy and value see by one encoder, whose features go straight to both heads.
_SEEING = dict(share_encoder=True, hidden_sizes=(), entropy_coeff=0.01)


@final
@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Advantage Actor-Critic, synchronous. It learns from what its present policy has just done."""

    initial_log_std: float | None = setting(None)
    """Logarithm of the noise's first deviation (default: 0; -2 if it depends on the state)."""
    state_dependent_exploration: bool = setting(False)
    """Noise that is a function of the state, kept for a while (gSDE); for continuous actions."""
    noise_reset_interval: int | None = setting(None, at_least=1)
    """Steps that such a function is kept (default: horizon)."""

    renamed: ClassVar[Mapping[str, str]] = {"rmsprop_epsilon": "optimizer_epsilon"}
    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("prioritized", "buffer_size", "batch_size", "n_step", "start_steps"),
            "A2C learns from its newest rollout and keeps no replay",
        ),
        **dict.fromkeys(
            ("updates_per_step", "replay_storage", "random_shift", "sequence_length", "burn_in"),
            "it is a matter of replay, and A2C learns from its newest rollout",
        ),
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "CartPole-v1": dict(anneal_learning_rate=True),
        # Positions alone are small numbers, and their differences smaller still.
        "CartPole-P-v1": dict(
            memory="gru",
            memory_size=64,
            hidden_sizes=(64,),
            horizon=8,
            normalize_observations=True,
        ),
        "Recall-v0": dict(
            memory="gru",
            memory_size=64,
            hidden_sizes=(64,),
            share_encoder=True,
            horizon=22,
            optimizer="adam",
            learning_rate=1e-3,
            gae_lambda=0.95,
            entropy_coeff=0.01,
        ),
        # RL Baselines3 Zoo's, there with 16 environments; λ on MinAtar is that of AC(λ).
        "atari": dict(_SEEING, frame_stack=4, value_coeff=0.25),
        "MinAtar": dict(_SEEING, gae_lambda=0.8),
        "Acrobot-v1": dict(normalize_observations=True, normalize_rewards=True),
        "Pendulum-v1": dict(
            learning_rate=1.5e-3,
            anneal_learning_rate=True,
            gamma=0.9,
            gae_lambda=0.9,
            horizon=8,
            value_coeff=0.4,
            epsilon_inside_root=False,
            normalize_observations=True,
            normalize_rewards=True,
            state_dependent_exploration=True,
        ),
        "MountainCarContinuous-v0": dict(
            anneal_learning_rate=True,
            horizon=100,
            normalize_observations=True,
            normalize_rewards=True,
            state_dependent_exploration=True,
            initial_log_std=0.0,
            noise_reset_interval=16,
        ),
        "MountainCar-v0": dict(normalize_observations=True, normalize_rewards=True),
        "LunarLander-v3": dict(
            learning_rate=8.3e-4, anneal_learning_rate=True, gamma=0.995, entropy_coeff=1e-5
        ),
        "LunarLanderContinuous-v3": dict(
            anneal_learning_rate=True, gae_lambda=0.9, horizon=8, state_dependent_exploration=True
        ),
        **dict.fromkeys(("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5"), _TIANSHOU),
        **dict.fromkeys(("Humanoid-v5", "Reacher-v5", "InvertedPendulum-v5"), _TIANSHOU),
        "InvertedDoublePendulum-v5": _TIANSHOU,
        "Swimmer-v5": dict(_TIANSHOU, gamma=0.9999),
    }

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if self.noise_reset_interval is not None and not self.state_dependent_exploration:
            problems.append("noise_reset_interval has no use without state_dependent_exploration")
        return problems
