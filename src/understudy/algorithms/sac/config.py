"""The settings of SAC."""

from dataclasses import dataclass
from typing import final

from understudy.algorithms.config import read_presets, setting
from understudy.algorithms.off_policy import OffPolicyConfig


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
    """Critics, drawn anew for each update, whose minimum is used in the target (default: all of
    them). If set, the actor's loss uses the mean of all critics (REDQ)."""
    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The actor's learning rate (default: learning_rate)."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The actor's own hidden layers (default: hidden_sizes)."""
    temperature: float | None = setting(None, at_least=0.0, moving=True)
    """A fixed temperature; 0.2 means 0.2. Without it the temperature is learned."""
    initial_temperature: float = setting(1.0, above=0.0)
    """The initial value of a learned temperature."""
    target_entropy: float | None = setting(None, moving=True)
    """The target entropy of a learned temperature (default: minus the dimensions of a continuous
    action; half the entropy of a uniform choice, ½·log n, of a discrete one)."""
    temperature_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The temperature's learning rate (default: learning_rate)."""
    use_log_temperature: bool = setting(True)
    """Learn the logarithm of the temperature; otherwise the temperature itself, kept positive."""

    presets = read_presets(__file__)
