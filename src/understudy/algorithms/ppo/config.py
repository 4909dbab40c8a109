"""The settings of PPO."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from understudy.algorithms.config import OPTIMIZERS, optimizer_setting, read_presets, setting
from understudy.algorithms.on_policy import OnPolicyConfig, RolloutNeeds
from understudy.ops.schedules import Schedule, linear


@final
@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Proximal Policy Optimization. It learns several times from the newest steps of its policy."""

    learning_rate: float = setting(3e-4, at_least=0.0, moving=True)
    """The learning rate of every network without one of its own."""
    gae_lambda: float = setting(0.95, at_least=0.0, at_most=1.0, moving=True)
    """λ of advantages: 1 sums the rollout's rewards; 0 takes one reward."""
    horizon: int = setting(256, at_least=1)
    """Steps of every environment in a rollout."""
    epochs: int = setting(10, at_least=1)
    """How often the updates go through a rollout."""
    minibatches: int = setting(32, at_least=1)
    """Updates per epoch, each on an equal part of the steps; with memory, of the environments."""
    clip_range: float = setting(0.2, at_least=0.0, moving=True)
    """How far the ratio of probabilities may move from 1."""
    anneal_clip_range: bool = setting(False)
    """Decrease clip_range linearly to zero over the run."""
    value_clip_range: float | None = setting(None, above=0.0, moving=True)
    """How far a value may move from that before the updates of a rollout (None: off)."""
    target_kl: float | None = setting(None, above=0.0, moving=True)
    """End the updates of a rollout where the approximate KL is above 1.5 times this (None: off)."""
    normalize_advantages: bool = setting(True)
    """Give each rollout's advantages zero mean and unit variance."""
    optimizer: str = optimizer_setting("adam", choices=OPTIMIZERS)
    """The optimizer of all networks."""
    optimizer_epsilon: float | None = optimizer_setting(1e-5, above=0.0)
    """ε of the optimizer, against division by zero."""
    initial_log_std: float | None = setting(None)
    """Initial log standard deviation (default: 0; -2 with state_dependent_exploration)."""
    state_dependent_exploration: bool = setting(False)
    """Use noise that is a function of the state for several steps (gSDE); continuous actions."""
    noise_reset_interval: int | None = setting(None, at_least=1)
    """Steps until a new noise function is drawn (default: horizon)."""

    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("prioritized", "buffer_size", "n_step", "start_steps"),
            "PPO learns from its newest rollout and keeps no replay",
        ),
        **dict.fromkeys(
            ("updates_per_step", "replay_storage", "random_shift", "sequence_length", "burn_in"),
            "it is a matter of replay, and PPO learns from its newest rollout",
        ),
        "batch_size": "a minibatch has horizon × num_envs / minibatches steps",
    }
    presets = read_presets(__file__)

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if self.noise_reset_interval is not None and not self.state_dependent_exploration:
            problems.append("noise_reset_interval has no use without state_dependent_exploration")
        return problems

    def schedules(self) -> dict[str, Schedule]:
        own = {"clip_range": linear(self.clip_range, 0.0)} if self.anneal_clip_range else {}
        return super().schedules() | own

    @property
    def needs(self) -> RolloutNeeds:
        return RolloutNeeds(
            self.horizon, self.minibatches, self.memory_width, self.epochs, ("log_prob",)
        )
