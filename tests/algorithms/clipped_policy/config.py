"""The settings of clipped policy gradients."""

from dataclasses import dataclass
from typing import final

from understudy.algorithms.base import RolloutNeeds
from understudy.algorithms.config import setting
from understudy.algorithms.encoder_config import PerceptionConfig


@final
@dataclass(frozen=True)
class ClippedPolicyConfig(PerceptionConfig):
    """Clipped policy gradients."""

    learning_rate: float = setting(1e-3, at_least=0.0, moving=True)
    """Adam's step size."""
    gamma: float = setting(0.99, at_least=0.0, at_most=1.0, moving=True)
    """Discount per step."""
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
    reward_scale: float = setting(1.0, moving=True)
    """Factor on rewards."""
    hidden_sizes: tuple[int, ...] = setting((32, 32), at_least=1)
    """Hidden layers of both networks."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The policy's own hidden layers."""
    critic_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The value network's own hidden layers."""
    activation: str = setting("tanh", choices=("relu", "tanh"))
    """Activation of the hidden layers."""
    layer_norm: bool = setting(False)
    """LayerNorm before each activation of the value network."""
    initialisation: str = setting("orthogonal", choices=("kaiming", "orthogonal"))
    """How weights begin."""
    normalise_observations: bool = setting(False)
    """Give networks observations of zero mean and unit variance."""
    normalise_rewards: bool = setting(False)
    """Divide rewards by the running standard deviation of the discounted return."""
    share_encoder: bool = setting(False)
    """Not used here."""

    @property
    def needs(self) -> RolloutNeeds:
        return RolloutNeeds(
            self.horizon, self.minibatches, epochs=self.epochs, extras=("log_prob",)
        )
