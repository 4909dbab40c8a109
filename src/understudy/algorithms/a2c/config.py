"""The settings of A2C."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from understudy.algorithms.config import read_presets, setting
from understudy.algorithms.on_policy import OnPolicyConfig


@final
@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Advantage Actor-Critic, synchronous. It learns from the newest steps of its policy."""

    initial_log_std: float | None = setting(None)
    """Initial log standard deviation (default: 0; -2 with state_dependent_exploration)."""
    state_dependent_exploration: bool = setting(False)
    """Use noise that is a function of the state for several steps (gSDE); continuous actions."""
    noise_reset_interval: int | None = setting(None, at_least=1)
    """Steps until a new noise function is drawn (default: horizon)."""

    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("prioritized", "buffer_size", "batch_size", "n_step", "start_steps"),
            "A2C learns from its newest rollout and keeps no replay",
        ),
        **dict.fromkeys(
            ("updates_per_step", "replay_storage", "random_shift", "sequence_length", "burn_in"),
            "it is a matter of replay, and A2C learns from its newest rollout",
        ),
        **dict.fromkeys(
            ("epochs", "clip_range", "value_clip_range", "target_kl"),
            "it is PPO's; A2C uses each rollout once",
        ),
    }
    presets = read_presets(__file__)

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if self.noise_reset_interval is not None and not self.state_dependent_exploration:
            problems.append("noise_reset_interval has no use without state_dependent_exploration")
        if self.memory is not None and self.minibatches > 1:
            problems.append("memory is learned from whole rollouts: minibatches must be 1")
        return problems
