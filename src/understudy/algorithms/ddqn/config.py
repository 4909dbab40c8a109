"""What can be set about DDQN."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from understudy.algorithms.config import setting
from understudy.algorithms.off_policy import REMEMBERING, OffPolicyConfig
from understudy.ops.schedules import Schedule, exponential, linear
from understudy.types import ConfigError


@final
@dataclass(frozen=True)
class DDQNConfig(OffPolicyConfig):
    """Double deep Q-learning, for discrete actions."""

    loss: str = setting("huber", choices=("huber", "squared"))
    """What an error costs: half its square, and under huber beyond 1 no more than linearly."""
    dueling: bool = setting(False)
    """Estimate a state's value and its actions' advantages in streams of their own: the last hidden
    layer is there twice. Without hidden layers each stream has one of 512 units."""
    initial_epsilon: float = setting(1.0, at_least=0.0, at_most=1.0)
    """Share of random actions at the first step; it moves under the name epsilon."""
    final_epsilon: float = setting(0.05, at_least=0.0, at_most=1.0)
    """Share of random actions that always remains."""
    epsilon_decay_steps: int = setting(10_000, at_least=1)
    """Steps on the way from the first share to the last."""
    epsilon_schedule: str = setting("linear", choices=("linear", "exponential"))
    """How the share falls: by the same amount at every step, or by the same factor."""
    tau: float = setting(1.0, above=0.0, at_most=1.0, moving=True)
    """How far targets move towards their networks at each target update; 1 is a hard copy."""
    target_update_interval: int = setting(500, at_least=1)
    """Updates between two target updates."""
    max_start_steps: int = setting(1_000, at_least=0)
    """The most random steps, where start_steps is not set."""
    max_grad_norm: float | None = setting(10.0, above=0.0)
    """Clip each network's gradient to this global norm; none is off."""
    num_critics: int = setting(1, at_least=1)
    """Independently initialized critics: their mean chooses, the smallest target's opinion
    counts."""

    # The policies that are evaluated do not explore. A low floor of ε lets training see, and mend,
    # what goes wrong without noise (a cart that slowly drifts out of its bounds).
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "CartPole-v1": dict(
            hidden_sizes=(64, 64),
            layer_norm=True,
            learning_rate=3e-4,
            anneal_learning_rate=True,
            batch_size=128,
            buffer_size=50_000,
            n_step=3,
            tau=0.01,
            target_update_interval=1,
            final_epsilon=0.01,
        ),
        "CartPole-P-v1": dict(
            REMEMBERING,
            layer_norm=True,
            normalize_observations=True,
            learning_rate=5e-4,
            anneal_learning_rate=True,
            n_step=3,
            tau=0.01,
            target_update_interval=1,
            final_epsilon=0.01,
        ),
        "Recall-v0": dict(
            REMEMBERING,
            sequence_length=32,
            burn_in=0,
            tau=0.01,
            target_update_interval=1,
        ),
        # Nature's network on four frames; three steps summed and a smaller memory than the paper's
        # make half a million steps enough for a first game (docs/presets.md).
        "atari": dict(
            frame_stack=4,
            hidden_sizes=(),
            learning_rate=1e-4,
            batch_size=32,
            buffer_size=100_000,
            n_step=3,
            max_start_steps=10_000,
            min_buffer_size=10_000,
            updates_per_step=0.25,
            update_every=4,
            target_update_interval=500,
            epsilon_decay_steps=100_000,
            final_epsilon=0.01,
        ),
        "MinAtar": dict(
            hidden_sizes=(),
            learning_rate=2.5e-4,
            batch_size=64,
            buffer_size=100_000,
            n_step=3,
            max_start_steps=5_000,
            min_buffer_size=5_000,
            updates_per_step=0.25,
            update_every=8,
            target_update_interval=500,
            epsilon_decay_steps=100_000,
            final_epsilon=0.05,
        ),
        "Acrobot-v1": dict(
            hidden_sizes=(64, 64),
            layer_norm=True,
            normalize_observations=True,
            learning_rate=5e-4,
            batch_size=64,
            buffer_size=50_000,
            n_step=3,
            updates_per_step=0.5,
            update_every=2,
            target_update_interval=100,
            epsilon_decay_steps=20_000,
        ),
        # RL Baselines3 Zoo's for DQN, whose targets are counted in steps; see docs/presets.md.
        "MountainCar-v0": dict(
            learning_rate=4e-3,
            gamma=0.98,
            batch_size=128,
            buffer_size=10_000,
            updates_per_step=0.5,
            update_every=16,
            target_update_interval=300,
            epsilon_decay_steps=24_000,
            final_epsilon=0.07,
        ),
        "LunarLander-v3": dict(
            learning_rate=6.3e-4,
            batch_size=128,
            buffer_size=50_000,
            start_steps=0,
            min_buffer_size=128,
            update_every=4,
            target_update_interval=250,
            epsilon_decay_steps=12_000,
            final_epsilon=0.1,
        ),
    }

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if self.actor_trains_encoder or not self.share_encoder:
            problems.append("share_encoder and actor_trains_encoder: DDQN has no actor")
        if self.final_epsilon > self.initial_epsilon:
            problems.append(
                f"final_epsilon {self.final_epsilon:g} is larger than "
                f"initial_epsilon {self.initial_epsilon:g}"
            )
        if self.epsilon_schedule == "exponential" and self.final_epsilon == 0.0:
            problems.append("an exponential epsilon_schedule never reaches a final_epsilon of 0")
        return problems

    def schedules(self) -> dict[str, Schedule]:
        curve = linear if self.epsilon_schedule == "linear" else exponential
        epsilon = curve(self.initial_epsilon, self.final_epsilon, self.epsilon_decay_steps)
        return {**super().schedules(), "epsilon": epsilon}

    @classmethod
    def check_moving(cls, name: str, value: int | float) -> None:
        """ε is no field of its own, so its bounds stand here."""
        if name == "epsilon" and not 0.0 <= value <= 1.0:
            raise ConfigError(f"epsilon must be between 0 and 1, got {value:g}")
        super().check_moving(name, value)
