"""What on-policy algorithms share: settings, data needs, and the division of a rollout into
minibatches."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from understudy.algorithms.config import (
    OPTIMIZERS,
    Config,
    anneal_learning_rates,
    check_optimizer,
    check_rewards,
    encoder_setting,
    memory_width,
    optimizer_setting,
    setting,
)
from understudy.algorithms.optim import Delays
from understudy.ops.schedules import Schedule
from understudy.types import Key


@dataclass(frozen=True)
class RolloutNeeds:
    """The data that an algorithm needs that learns from the newest steps of its policy."""

    on_policy: ClassVar[bool] = True

    horizon: int  # steps of every environment between two updates
    minibatches: int  # of each epoch: updates, each on its share of the rows
    memory: int = 0  # numbers of a recurrent state
    epochs: int = 1  # how often the updates go through a rollout
    extras: tuple[str, ...] = ()  # of acting, that are stored with each step
    keeps_policy: bool = False  # the losses compare the policy with the one that acted

    @property
    def observed_last(self) -> bool:
        """Whether the steps of a rollout change the running statistics after its updates: only with
        those of acting is the policy before the updates the one that acted."""
        return self.keeps_policy or bool(self.extras)

    @property
    def updates(self) -> int:
        """The number of updates after a rollout."""
        return self.epochs * self.minibatches

    def parts(self, num_envs: int) -> int:
        """Return how many parts of a rollout are divided into minibatches: its steps or, with
        memory, which runs through time, its environments."""
        return num_envs if self.memory else self.horizon * num_envs

    def minibatch_rows(self, rows: int, key: Key) -> Int32[Array, "updates rows"]:
        """Return the rows of each update: every epoch uses all of them once, in another order."""
        if self.minibatches == 1:  # the order of a whole rollout does not matter
            return jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (self.epochs, rows))
        if self.epochs == 1:
            return jax.random.permutation(key, rows).reshape(self.minibatches, -1)
        keys = jax.random.split(key, self.epochs)
        orders = jax.vmap(partial(jax.random.permutation, x=rows))(keys)
        return orders.reshape(self.updates, -1)


@dataclass(frozen=True)
class RolloutConfig(Config):
    """The settings of all algorithms that learn from rollouts. Abstract."""

    delays: ClassVar[Delays] = Delays()
    network: ClassVar[str] = "mlp"  # no field here, as in OffPolicyConfig
    unit_weights: ClassVar[bool] = False

    learning_rate: float = setting(7e-4, at_least=0.0, moving=True)
    """The learning rate of every network without one of its own."""
    anneal_learning_rate: bool = setting(False)
    """Decrease all learning rates linearly to zero over the run."""
    gamma: float = setting(0.99, at_least=0.0, at_most=1.0, moving=True)
    """Discount per step."""
    horizon: int = setting(5, at_least=1)
    """Steps of every environment between two updates."""
    minibatches: int = setting(1, at_least=1)
    """Updates per rollout, each on an equal part of the steps; later ones are off-policy."""
    reward_scale: float = setting(1.0, moving=True)
    """Factor on rewards."""
    max_grad_norm: float | None = setting(0.5, above=0.0)
    """Clip the gradient of all networks together to this global norm (None: off)."""
    hidden_sizes: tuple[int, ...] = setting((64, 64), at_least=1)
    """Hidden layers of every network without sizes of its own."""
    activation: str = setting("tanh", choices=("relu", "tanh", "elu", "silu", "gelu"))
    """Activation of the hidden layers."""
    layer_norm: bool = setting(False)
    """LayerNorm before each activation of the value network."""
    initialization: str = setting("orthogonal", choices=("he", "kaiming", "orthogonal"))
    """How weights are initialized."""
    normalize_observations: bool = setting(False)
    """Normalize observations to zero mean and unit variance by running statistics."""
    normalize_rewards: bool = setting(False)
    """Divide rewards by the running standard deviation of the discounted return."""
    return_limit: float | None = setting(None, above=0.0)
    """With normalize_rewards: divide rewards at least by the largest discounted return so far over
    this limit; it bounds discounted returns (default: no limit)."""

    optimizer: str = optimizer_setting("rmsprop", choices=OPTIMIZERS)
    """The optimizer of all networks."""
    optimizer_epsilon: float | None = optimizer_setting(None, above=0.0)
    """ε of the optimizer, against division by zero (default: Adam 1e-8, RMSprop 1e-5)."""
    adam_beta1: float = optimizer_setting(0.9, at_least=0.0, at_most=1.0)
    """Adam and AdamW: decay of the running mean of gradients."""
    adam_beta2: float = optimizer_setting(0.999, at_least=0.0, at_most=1.0)
    """Adam and AdamW: decay of the running mean of squared gradients."""
    weight_decay: float | None = optimizer_setting(None, at_least=0.0)
    """AdamW: weight decay of the networks, multiplied by the learning rate (default: 0.01)."""
    rmsprop_decay: float = optimizer_setting(0.99, at_least=0.0, at_most=1.0)
    """RMSprop: decay of the running mean of squared gradients."""
    epsilon_inside_root: bool = optimizer_setting(True)
    """RMSprop: add optimizer_epsilon to the mean square, not to its root."""

    encoder: str = encoder_setting("auto", choices=("auto", "nature", "impala", "small"))
    """The encoder of images; auto is nature from 36×36 pixels on, small below."""
    encoder_features: int | None = encoder_setting(None, at_least=1)
    """Features of an image (default: nature 512, impala 256, small 128)."""
    frame_stack: int = encoder_setting(1, at_least=1)
    """Newest images that make one observation; replay stores each of them once."""
    memory: str | None = encoder_setting(None, choices=("gru", "lstm"))
    """The recurrent cell; none by default."""
    memory_size: int = encoder_setting(128, at_least=1)
    """Features of the recurrent cell."""

    def contradictions(self) -> list[str]:
        return check_optimizer(self) + check_rewards(self)

    def schedules(self) -> dict[str, Schedule]:
        return anneal_learning_rates(self) if self.anneal_learning_rate else {}

    @property
    def memory_width(self) -> int:
        """The length of a recurrent state; 0 without a cell."""
        return memory_width(self.memory, self.memory_size)

    @property
    def needs(self) -> RolloutNeeds:
        return RolloutNeeds(self.horizon, self.minibatches, self.memory_width)


@dataclass(frozen=True)
class OnPolicyConfig(RolloutConfig):
    """The settings of a policy and a value network that learn from rollouts. Abstract."""

    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The policy's learning rate (default: learning_rate)."""
    critic_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The value network's learning rate (default: learning_rate)."""
    gae_lambda: float = setting(1.0, at_least=0.0, at_most=1.0, moving=True)
    """λ of advantages: 1 sums the rollout's rewards, as in the paper; 0 takes one reward."""
    entropy_coeff: float = setting(0.0, at_least=0.0, moving=True)
    """Weight of the policy's entropy in the loss."""
    value_coeff: float = setting(0.5, at_least=0.0, moving=True)
    """Weight of the value network's error in the loss."""
    normalize_advantages: bool = setting(False)
    """Give each rollout's advantages zero mean and unit variance."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The policy's own hidden layers (default: hidden_sizes)."""
    critic_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The value network's own hidden layers (default: hidden_sizes)."""
    share_encoder: bool = setting(False)
    """Use the policy's hidden layers and encoder of images for the value too. (They share a
    recurrent cell in any case.)"""

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if self.share_encoder and self.critic_hidden_sizes is not None:
            problems.append("critic_hidden_sizes has no use with share_encoder")
        if self.share_encoder and self.layer_norm:
            problems.append("layer_norm is for a value network of its own, not for share_encoder")
        return problems
