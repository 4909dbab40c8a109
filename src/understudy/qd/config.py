"""The settings of quality-diversity."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from understudy.algorithms.config import Config, setting
from understudy.algorithms.td3 import TD3Config

# Of the DCRL authors' configuration of PGA-MAP-Elites; sources in docs/presets.md.
_PUBLISHED = dict(critic_steps=3_000, policy_steps=150, policy_learning_rate=5e-3, batch_size=100)
_POINT = dict(generation_size=128, hidden_sizes=(64, 64), initialization="he", score_offset=-110.0)
_WALKERS = ("HalfCheetah-v5", "Walker2d-v5", "Hopper-v5", "Ant-v5", "brax")


@dataclass(frozen=True)
class QDConfig(Config):
    """The settings that all methods share. Abstract."""

    generation_size: int = setting(256, at_least=2)
    """Policies evaluated in each generation."""
    cells: int = setting(1_024, at_least=2)
    """Cells of the repertoire: the centroids of a CVT."""
    grid: tuple[int, ...] | None = setting(None, at_least=1)
    """Cells along each number of the descriptor, for a grid instead."""
    episode_length: int | None = setting(None, at_least=1)
    """Steps after which an evaluation's episode is cut (default: the environment's own limit)."""
    starts: str = setting("random", choices=("random", "fixed"))
    """Initial states of episodes: random, or the same for all."""
    score_offset: float | None = setting(None)
    """Lower bound of the fitness, which the QD-score subtracts from every fitness (default: the
    lowest fitness of the first generation)."""
    hidden_sizes: tuple[int, ...] = setting((128, 128), at_least=1)
    """Hidden layers of the policies."""
    activation: str = setting("relu", choices=("relu", "tanh", "elu", "silu", "gelu"))
    """Activation of all hidden layers."""
    initialization: str = setting("kaiming", choices=("he", "kaiming", "orthogonal"))
    """Initial weights. Larger ones (he) make the first policies differ more if observations are
    small; if observations are large, they saturate actions at their bounds."""
    iso_sigma: float = setting(0.005, at_least=0.0)
    """Standard deviation of the noise on each weight of an offspring."""
    line_sigma: float = setting(0.05, at_least=0.0)
    """Standard deviation of its step along the line between two parents, in their distance."""

    def td3(self) -> TD3Config:
        """Return the config of the agents that the policies are, and of the critics."""
        names = {field.name for field in dataclasses.fields(TD3Config)} - {"hidden_sizes"}
        settings = {name: value for name, value in vars(self).items() if name in names}
        if "buffer_size" in settings:
            settings["min_buffer_size"] = min(1_000, settings["buffer_size"])
        return TD3Config(actor_hidden_sizes=self.hidden_sizes, **settings)


@final
@dataclass(frozen=True)
class MAPElitesConfig(QDConfig):
    """MAP-Elites with iso+line variation (Vassiliades and Mouret, arXiv 1804.03906)."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"PointNavigation-v0": _POINT}


@final
@dataclass(frozen=True)
class PGAMEConfig(QDConfig):
    """PGA-MAP-Elites (Nilsson and Cully, GECCO 2021): half of every generation varies as in
    MAP-Elites, the other half follows the gradient of TD3's critic."""

    gradient_share: float = setting(0.5, at_least=0.0, at_most=1.0)
    """Share of a generation that comes from the gradient, including TD3's own (greedy) actor."""
    critic_steps: int = setting(300, at_least=1)
    """TD3 updates after each generation."""
    policy_steps: int = setting(100, at_least=0)
    """Gradient steps that an offspring takes."""
    policy_learning_rate: float = setting(1e-3, at_least=0.0)
    """Adam's step size of these gradient steps."""
    learning_rate: float = setting(3e-4, at_least=0.0)
    """Adam's step size for critics and greedy actor."""
    critic_hidden_sizes: tuple[int, ...] = setting((256, 256), at_least=1)
    """Hidden layers of the critics."""
    batch_size: int = setting(256, at_least=1)
    """Transitions per update and gradient step."""
    buffer_size: int = setting(1_000_000, at_least=1)
    """Transitions in replay, from all evaluations."""
    gamma: float = setting(0.99, at_least=0.0, at_most=1.0)
    """Discount per step."""
    tau: float = setting(0.005, above=0.0, at_most=1.0)
    """How far targets move towards their networks at each target update."""
    policy_delay: int = setting(2, at_least=1)
    """Critic updates per update of the greedy actor and of all targets."""
    policy_noise: float = setting(0.2, at_least=0.0)
    """Standard deviation of the noise that smooths the target action."""
    noise_clip: float = setting(0.5, at_least=0.0)
    """Bound of the smoothing noise."""
    num_critics: int = setting(2, at_least=1)
    """Independently initialized critics; the smallest value counts."""
    reward_scale: float = setting(1.0)
    """Factor on rewards when a batch is sampled."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "PointNavigation-v0": dict(_POINT, critic_hidden_sizes=(64, 64)),
        **dict.fromkeys(_WALKERS, _PUBLISHED),
    }

    def contradictions(self) -> list[str]:
        problems = []
        if self.critic_steps % self.policy_delay:
            problems.append(
                f"critic_steps {self.critic_steps} must be a multiple of policy_delay "
                f"{self.policy_delay}"
            )
        if self.batch_size > self.buffer_size:
            problems.append(
                f"batch_size {self.batch_size} is larger than buffer_size {self.buffer_size}"
            )
        return problems

    @property
    def gradient_size(self) -> int:
        """Policies of a generation that come from the gradient."""
        return round(self.gradient_share * self.generation_size)
