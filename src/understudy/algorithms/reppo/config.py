"""The settings of REPPO."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from understudy.algorithms.config import (
    OPTIMIZERS,
    critic_setting,
    optimizer_setting,
    read_presets,
    setting,
)
from understudy.algorithms.on_policy import RolloutConfig, RolloutNeeds
from understudy.ops.return_distributions import Atoms


@final
@dataclass(frozen=True)
class REPPOConfig(RolloutConfig):
    """Relative Entropy Pathwise Policy Optimization, for continuous and for discrete actions. It
    learns Q from the newest steps of many environments, and the policy through Q."""

    # One critic; the actor's gradient trains the actor alone.
    num_critics: ClassVar[int] = 1
    actor_trains_encoder: ClassVar[bool] = False

    learning_rate: float = setting(3e-4, at_least=0.0, moving=True)
    """The learning rate of every network without one of its own."""
    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The actor's learning rate (default: learning_rate)."""
    critic_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The critic's learning rate (default: learning_rate)."""
    dual_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The learning rate of the logarithms of temperature and multiplier (default:
    learning_rate)."""
    q_lambda: float = setting(0.95, at_least=0.0, at_most=1.0, moving=True)
    """λ of targets: 1 sums the rewards up to the end of the rollout, 0 takes one reward."""
    horizon: int = setting(32, at_least=1)
    """Steps of every environment in a rollout."""
    epochs: int = setting(4, at_least=1)
    """How often the updates go through a rollout."""
    minibatches: int = setting(16, at_least=1)
    """Updates per epoch, each on an equal part of the steps; with memory, of the environments."""
    kl_bound: float = setting(0.1, above=0.0, moving=True)
    """Bound of the KL from the policy that acted to the present one. In a state beyond it the loss
    is the KL alone; the multiplier keeps the mean KL near it."""
    initial_multiplier: float = setting(0.01, above=0.0)
    """The initial multiplier of kl_bound."""
    initial_temperature: float = setting(0.01, above=0.0)
    """The initial temperature."""
    target_entropy: float | None = setting(None, moving=True)
    """The target entropy of the temperature (default: -½ for each dimension of a continuous action;
    half the entropy of a uniform choice, ½·log n, of a discrete one)."""
    max_grad_norm: float | None = setting(0.5, above=0.0)
    """Clip each network's gradient to this global norm (None: off)."""
    hidden_sizes: tuple[int, ...] = setting((256, 256), at_least=1)
    """Hidden layers of every network without sizes of its own."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The actor's own hidden layers (default: hidden_sizes)."""
    critic_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The critic's own hidden layers (default: hidden_sizes)."""
    activation: str = setting("silu", choices=("relu", "tanh", "elu", "silu", "gelu"))
    """Activation of the hidden layers."""
    layer_norm: bool = setting(True)
    """LayerNorm before each activation of both networks."""
    initialization: str = setting("kaiming", choices=("he", "kaiming", "orthogonal"))
    """How weights are initialized."""
    normalize_observations: bool = setting(True)
    """Normalize observations to zero mean and unit variance by running statistics."""
    normalize_rewards: bool = setting(True)
    """Divide rewards by the running standard deviation of the discounted return."""
    return_limit: float | None = setting(5.0, above=0.0)
    """With normalize_rewards: divide rewards at least by the largest discounted return so far over
    this limit. Keep it well within min_return and max_return: targets also have the entropy and
    estimates of later rewards (None: no limit)."""

    critic_head: str = critic_setting("categorical", choices=("scalar", "categorical"))
    """What the critic predicts of the return: its mean, or the probabilities of fixed values."""
    num_atoms: int = critic_setting(151, at_least=2)
    """Categorical: values of the return, evenly spaced from min_return to max_return."""
    min_return: float = critic_setting(-10.0)
    """Categorical: the lowest return that the critic can predict, in units of the scaled reward."""
    max_return: float = critic_setting(10.0)
    """Categorical: the highest return that the critic can predict."""
    histogram_sigma: float | None = critic_setting(0.75, above=0.0)
    """Categorical: learn the histogram of a Gaussian around the target (HL-Gauss), with this
    standard deviation in distances between atoms (None: share the target between its two nearest
    atoms)."""

    optimizer: str = optimizer_setting("adam", choices=OPTIMIZERS)
    """The optimizer of all networks."""

    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("prioritized", "buffer_size", "batch_size", "n_step", "start_steps"),
            "REPPO learns from its newest rollout and keeps no replay",
        ),
        **dict.fromkeys(("tau", "target_update_interval"), "REPPO has no target networks"),
        "gae_lambda": "REPPO has no advantages; q_lambda is the λ of its targets",
        "kl_constraint": "the bound of REPPO's KL is kl_bound",
    }
    presets = read_presets(__file__)

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if self.min_return >= self.max_return:
            low, high = self.min_return, self.max_return
            problems.append(f"min_return {low:g} must be below max_return {high:g}")
        return problems

    @property
    def actor_layer_norm(self) -> bool:
        """Whether the actor has LayerNorm, too."""
        return self.layer_norm

    @property
    def return_form(self) -> Atoms | None:
        """The distribution of returns that the critic predicts; None for a scalar critic."""
        if self.critic_head == "scalar":
            return None
        return Atoms(self.min_return, self.max_return, self.num_atoms, self.histogram_sigma)

    @property
    def needs(self) -> RolloutNeeds:
        return RolloutNeeds(
            self.horizon, self.minibatches, self.memory_width, self.epochs, keeps_policy=True
        )
