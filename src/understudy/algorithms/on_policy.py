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

    @property
    def updates(self) -> int:
        """The number of updates after a rollout."""
        return self.epochs * self.minibatches

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
class OnPolicyConfig(Config):
    """The settings that all on-policy algorithms share. Abstract."""

    delays: ClassVar[Delays] = Delays()

    learning_rate: float = setting(7e-4, at_least=0.0, moving=True)
    """The optimizer's step size, for every network without one of its own."""
    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The policy's own step size (default: learning_rate)."""
    critic_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The value network's own step size (default: learning_rate)."""
    anneal_learning_rate: bool = setting(False)
    """Let all learning rates fall linearly to zero over the run."""
    gamma: float = setting(0.99, at_least=0.0, at_most=1.0, moving=True)
    """Discount per step."""
    gae_lambda: float = setting(1.0, at_least=0.0, at_most=1.0, moving=True)
    """How far advantages look: 1 sums the rollout's rewards, as the paper does; 0 takes one."""
    horizon: int = setting(5, at_least=1)
    """Steps of every environment between two updates."""
    minibatches: int = setting(1, at_least=1)
    """Updates per rollout, each on its share of the steps; with more than one they go stale."""
    entropy_coeff: float = setting(0.0, at_least=0.0, moving=True)
    """How much the policy's entropy counts in the loss."""
    value_coeff: float = setting(0.5, at_least=0.0, moving=True)
    """How much the value network's error counts in the loss."""
    normalize_advantages: bool = setting(False)
    """Give each rollout's advantages zero mean and unit variance."""
    reward_scale: float = setting(1.0, moving=True)
    """Factor on rewards."""
    max_grad_norm: float | None = setting(0.5, above=0.0)
    """Clip the gradient of all networks together to this global norm (None: off)."""
    hidden_sizes: tuple[int, ...] = setting((64, 64), at_least=1)
    """Hidden layers of every network without its own."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The policy's own hidden layers (default: hidden_sizes)."""
    critic_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The value network's own hidden layers (default: hidden_sizes)."""
    share_encoder: bool = setting(False)
    """One set of hidden layers, the policy's, for policy and value, and one encoder of images. (A
    memory they share in any case.)"""
    activation: str = setting("tanh", choices=("relu", "tanh", "elu", "silu", "gelu"))
    """Activation of the hidden layers."""
    layer_norm: bool = setting(False)
    """LayerNorm before each activation of the value network."""
    initialization: str = setting("orthogonal", choices=("he", "kaiming", "orthogonal"))
    """How weights begin."""
    normalize_observations: bool = setting(False)
    """Give networks observations of zero mean and unit variance, by running statistics."""
    normalize_rewards: bool = setting(False)
    """Divide rewards by the running standard deviation of the discounted return."""

    optimizer: str = optimizer_setting("rmsprop", choices=OPTIMIZERS)
    """What turns gradients into steps."""
    optimizer_epsilon: float | None = optimizer_setting(None, above=0.0)
    """Keeps the optimizer from dividing by zero (default: Adam 1e-8, RMSprop 1e-5)."""
    adam_beta1: float = optimizer_setting(0.9, at_least=0.0, at_most=1.0)
    """Adam and AdamW: how slowly the mean of the gradients forgets."""
    adam_beta2: float = optimizer_setting(0.999, at_least=0.0, at_most=1.0)
    """Adam and AdamW: how slowly the mean of their squares forgets."""
    weight_decay: float | None = optimizer_setting(None, at_least=0.0)
    """AdamW: the share of every weight of the networks that a step of size 1 takes away (default:
    0.01)."""
    rmsprop_decay: float = optimizer_setting(0.99, at_least=0.0, at_most=1.0)
    """RMSprop: how slowly the mean of the squares forgets."""
    epsilon_inside_root: bool = optimizer_setting(True)
    """RMSprop: add optimizer_epsilon to the mean square and not to its root."""

    encoder: str = encoder_setting("auto", choices=("auto", "nature", "impala", "small"))
    """What sees images; auto is nature from 36×36 pixels on, small below."""
    encoder_features: int | None = encoder_setting(None, at_least=1)
    """Features that come of an image (default: nature 512, impala 256, small 128)."""
    frame_stack: int = encoder_setting(1, at_least=1)
    """Newest images that make one observation; replay keeps each of them once."""
    memory: str | None = encoder_setting(None, choices=("gru", "lstm"))
    """The cell that remembers what was seen before; none by default."""
    memory_size: int = encoder_setting(128, at_least=1)
    """Features that such a cell has."""

    def contradictions(self) -> list[str]:
        problems = check_optimizer(self)
        if self.share_encoder and self.critic_hidden_sizes is not None:
            problems.append("critic_hidden_sizes has no use with share_encoder")
        if self.share_encoder and self.layer_norm:
            problems.append("layer_norm is for a value network of its own, not for share_encoder")
        if self.memory is not None and self.minibatches > 1:
            problems.append("memory is learned from whole rollouts: minibatches must be 1")
        return problems

    def schedules(self) -> dict[str, Schedule]:
        return anneal_learning_rates(self) if self.anneal_learning_rate else {}

    @property
    def memory_width(self) -> int:
        """Numbers that a recurrent state consists of; 0 where there is none."""
        return memory_width(self.memory, self.memory_size)

    @property
    def needs(self) -> RolloutNeeds:
        return RolloutNeeds(self.horizon, self.minibatches, self.memory_width)
