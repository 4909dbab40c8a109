"""The settings of TD3."""

from dataclasses import dataclass
from typing import final

from understudy.algorithms.config import read_presets, setting
from understudy.algorithms.off_policy import OffPolicyConfig
from understudy.algorithms.optim import Delays
from understudy.algorithms.recipes import read_recipes


@final
@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Twin Delayed DDPG. Noise is in normalized units: actions are in [-1, 1]."""

    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The actor's learning rate (default: learning_rate)."""
    network: str = setting("mlp", choices=("mlp", "simba", "simbav2", "flashsac"))
    """The kind of hidden layers. The others have one residual block for each of the hidden sizes,
    which are its width and must be equal. Those of flashsac have BatchNorm and weights of length
    1."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The actor's own hidden layers (default: hidden_sizes)."""
    normalization: str = setting("off", choices=("off", "batch", "batch_renorm"))
    """Normalization of the hidden layers and inputs of actor and critics by the statistics of
    batches: BatchNorm before each activation, or BatchRenorm after it."""
    renorm_warm_up: int = setting(100_000, at_least=0)
    """BatchRenorm: updates of a network before its corrections begin."""
    num_critics: int = setting(2, at_least=1)
    """Independently initialized critics; targets use their minimum."""
    actor_critics: str = setting("first", choices=("first", "minimum", "mean"))
    """What the actor's loss uses of the critics: the first one, or the minimum or mean of all."""
    policy_delay: int = setting(2, at_least=1)
    """Critic updates per update of the actor and of all targets."""
    exploration_noise: float = setting(0.1, at_least=0.0, moving=True)
    """Standard deviation of the noise on actions while exploring."""
    min_exploration_noise: float | None = setting(None, at_least=0.0)
    """If set, each environment draws a standard deviation of its own between this and
    exploration_noise, and draws it anew with every episode."""
    max_noise_hold: int = setting(1, at_least=1)
    """The noise on an exploring action is held for k steps of an environment, P(k) ∝ k⁻² up to this
    number; 1 draws it at every step."""
    policy_noise: float = setting(0.2, at_least=0.0, moving=True)
    """Standard deviation of the noise that smooths the target action."""
    noise_clip: float = setting(0.5, at_least=0.0, moving=True)
    """Bound of the smoothing noise, per sample and dimension."""
    target_update_interval: int = setting(1, at_least=1)
    """Delayed steps between two target updates; with target_networks critics: updates."""
    max_start_steps: int = setting(25_000, at_least=0)
    """The most random steps, where start_steps is not set."""

    presets = read_presets(__file__)
    recipes = read_recipes(__file__)

    @property
    def delays(self) -> Delays:
        """All targets move with the delayed step, as in the paper. Without a target actor, those of
        the critics move with every update, as in FastTD3."""
        step = self.policy_delay if self.target_networks == "all" else 1
        targets = step * self.target_update_interval
        return Delays(self.policy_delay, targets, self.reset_every, self.reset_at)

    def contradictions(self) -> list[str]:
        problems, least = super().contradictions(), self.min_exploration_noise
        if least is not None and least > self.exploration_noise:
            problems.append(
                f"min_exploration_noise {least:g} is larger than exploration_noise "
                f"{self.exploration_noise:g}"
            )
        return problems
