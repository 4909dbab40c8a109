"""The settings of PQN."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from understudy.algorithms.config import OPTIMIZERS, optimizer_setting, read_presets, setting
from understudy.algorithms.on_policy import RolloutConfig, RolloutNeeds
from understudy.ops.schedules import Schedule, linear
from understudy.types import ConfigError


@final
@dataclass(frozen=True)
class PQNConfig(RolloutConfig):
    """Parallelized Q-network, for discrete actions. It learns from the newest steps of many
    environments, without replay and without target networks."""

    # One Q-network with the common hidden layers (`make_critics` reads these).
    num_critics: ClassVar[int] = 1
    critic_hidden_sizes: ClassVar[None] = None

    learning_rate: float = setting(2.5e-4, at_least=0.0, moving=True)
    """The learning rate."""
    anneal_learning_rate: bool = setting(True)
    """Decrease the learning rate linearly to zero over the run."""
    q_lambda: float = setting(0.65, at_least=0.0, at_most=1.0, moving=True)
    """λ of targets: 1 sums the rewards up to the end of the rollout, 0 takes one reward."""
    horizon: int = setting(32, at_least=1)
    """Steps of every environment between two groups of updates."""
    epochs: int = setting(2, at_least=1)
    """How often the updates go through a rollout."""
    minibatches: int = setting(32, at_least=1)
    """Updates per epoch, each on an equal part of the steps."""
    dueling: bool = setting(False)
    """Estimate the value of a state and the advantages of actions separately, each with a last
    hidden layer of its own. Without hidden layers each has one of 512 units."""
    initial_epsilon: float = setting(1.0, at_least=0.0, at_most=1.0)
    """Share of random actions at the first step; the share moves under the name epsilon."""
    final_epsilon: float = setting(0.05, at_least=0.0, at_most=1.0)
    """Share of random actions at the end."""
    epsilon_decay_steps: int = setting(50_000, at_least=1)
    """Steps over which the share falls linearly."""
    max_grad_norm: float | None = setting(10.0, above=0.0)
    """Clip the gradient to this global norm; none is off."""
    hidden_sizes: tuple[int, ...] = setting((256, 256), at_least=1)
    """Hidden layers of the Q-network, after the encoder of images if there is one."""
    activation: str = setting("relu", choices=("relu", "tanh", "elu", "silu", "gelu"))
    """Activation of the hidden layers."""
    layer_norm: bool = setting(True)
    """LayerNorm before each activation of the hidden layers. It replaces target networks."""
    initialization: str = setting("he", choices=("he", "kaiming", "orthogonal"))
    """How weights are initialized."""
    optimizer: str = optimizer_setting("adam", choices=OPTIMIZERS)
    """The optimizer of the Q-network."""

    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("prioritized", "buffer_size", "batch_size", "n_step", "start_steps"),
            "PQN learns from its newest rollout and keeps no replay",
        ),
        **dict.fromkeys(
            ("tau", "target_update_interval"),
            "PQN has no target networks",
        ),
    }
    presets = read_presets(__file__)

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if self.memory is not None and self.epochs * self.minibatches > 1:
            problems.append(
                "memory is learned from whole rollouts: epochs and minibatches must be 1"
            )
        if self.final_epsilon > self.initial_epsilon:
            first, last = self.initial_epsilon, self.final_epsilon
            problems.append(f"final_epsilon {last:g} is larger than initial_epsilon {first:g}")
        return problems

    @property
    def needs(self) -> RolloutNeeds:
        return dataclasses.replace(super().needs, epochs=self.epochs)

    def schedules(self) -> dict[str, Schedule]:
        epsilon = linear(self.initial_epsilon, self.final_epsilon, self.epsilon_decay_steps)
        return {**super().schedules(), "epsilon": epsilon}

    @classmethod
    def check_moving(cls, name: str, value: int | float) -> None:
        """Also check ε, which is no field."""
        if name == "epsilon" and not 0.0 <= value <= 1.0:
            raise ConfigError(f"epsilon must be between 0 and 1, got {value:g}")
        super().check_moving(name, value)
