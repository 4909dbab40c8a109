"""The settings of SAC."""

from dataclasses import dataclass
from typing import final

from understudy.algorithms.config import read_presets, setting
from understudy.algorithms.off_policy import OffPolicyConfig
from understudy.algorithms.recipes import read_recipes


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
    """Critics, drawn anew for each update, that are used in the target (default: all of them)."""
    actor_critics: str | None = setting(None, choices=("minimum", "mean"))
    """What the actor's loss uses of the values of several critics: their minimum or their mean
    (default: the minimum; with critic_subset the mean of all critics, as in REDQ)."""
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
    temperature: float | None = setting(None, at_least=0.0, moving=True)
    """A fixed temperature; 0.2 means 0.2. Without it the temperature is learned."""
    initial_temperature: float = setting(1.0, above=0.0)
    """The initial value of a learned temperature."""
    target_entropy: float | None = setting(None, moving=True)
    """The target entropy of a learned temperature (default: minus the dimensions of a continuous
    action; half the entropy of a uniform choice, ½·log n, of a discrete one)."""
    target_entropy_sigma: float | None = setting(None, above=0.0)
    """Continuous actions: instead of target_entropy, the entropy of a Gaussian with this standard
    deviation in each dimension, ½·log(2πe·σ²). 0.147 gives minus half the dimensions."""
    max_noise_hold: int = setting(1, at_least=1)
    """Continuous actions: the noise of an exploring action is held for k steps of an environment,
    P(k) ∝ k⁻² up to this number; 1 draws it at every step."""
    temperature_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The temperature's learning rate (default: learning_rate)."""
    use_log_temperature: bool = setting(True)
    """Learn the logarithm of the temperature; otherwise the temperature itself, kept positive."""

    presets = read_presets(__file__)
    recipes = read_recipes(__file__)

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if None not in (self.target_entropy, self.target_entropy_sigma):
            problems.append("target_entropy and target_entropy_sigma are alternatives: give one")
        return problems
