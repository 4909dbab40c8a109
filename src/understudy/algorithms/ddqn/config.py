"""The settings of DDQN."""

from dataclasses import dataclass
from typing import final

from understudy.algorithms.config import read_presets, setting
from understudy.algorithms.off_policy import OffPolicyConfig
from understudy.algorithms.recipes import read_recipes
from understudy.ops.schedules import Schedule, exponential, linear
from understudy.types import ConfigError


@final
@dataclass(frozen=True)
class DDQNConfig(OffPolicyConfig):
    """Double deep Q-learning, for discrete actions."""

    loss: str = setting("huber", choices=("huber", "squared"))
    """Cost of an error of a scalar critic: half its square; with huber, linear beyond 1."""
    dueling: bool = setting(False)
    """Estimate the value of a state and the advantages of actions separately, each with a last
    hidden layer of its own. Without hidden layers each has one of 512 units."""
    initial_epsilon: float = setting(1.0, at_least=0.0, at_most=1.0)
    """Share of random actions at the first step; the share moves under the name epsilon."""
    final_epsilon: float = setting(0.05, at_least=0.0, at_most=1.0)
    """Share of random actions at the end."""
    epsilon_decay_steps: int = setting(10_000, at_least=1)
    """Steps from the first share to the last."""
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
    """Independently initialized critics: their mean selects the action, the minimum of their
    targets values it."""

    # The policies that are evaluated do not explore. A low floor of ε lets training see, and mend,
    # what goes wrong without noise (a cart that slowly drifts out of its bounds).
    presets = read_presets(__file__)
    recipes = read_recipes(__file__)

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if self.actor_trains_encoder or not self.share_encoder:
            problems.append("share_encoder and actor_trains_encoder: DDQN has no actor")
        if self.dueling and self.network != "mlp":
            problems.append(f"dueling is for the network mlp, not {self.network}")
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
        """Also check ε, which is no field."""
        if name == "epsilon" and not 0.0 <= value <= 1.0:
            raise ConfigError(f"epsilon must be between 0 and 1, got {value:g}")
        super().check_moving(name, value)
