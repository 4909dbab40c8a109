"""The settings of clipped policy gradients."""

from dataclasses import dataclass
from typing import final

from understudy.algorithms.config import setting
from understudy.algorithms.on_policy import OnPolicyConfig, RolloutNeeds


@final
@dataclass(frozen=True)
class ClippedPolicyConfig(OnPolicyConfig):
    """Clipped policy gradients."""

    learning_rate: float = setting(1e-3, at_least=0.0, moving=True)
    """Adam's step size."""
    optimizer: str = setting("adam", choices=("adam", "adamw"))
    """What turns gradients into steps."""
    gae_lambda: float = setting(0.95, at_least=0.0, at_most=1.0, moving=True)
    """How far advantages look."""
    clip_range: float = setting(0.2, above=0.0, moving=True)
    """How far a probability may move from the one that was acted with."""
    horizon: int = setting(32, at_least=1)
    """Steps of every environment between two updates."""
    minibatches: int = setting(4, at_least=1)
    """Updates in an epoch."""
    epochs: int = setting(4, at_least=1)
    """How often a rollout is learned from."""
    hidden_sizes: tuple[int, ...] = setting((32, 32), at_least=1)
    """Hidden layers of both networks."""

    @property
    def needs(self) -> RolloutNeeds:
        return RolloutNeeds(
            self.horizon, self.minibatches, epochs=self.epochs, extras=("log_prob",)
        )
