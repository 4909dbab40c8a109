"""The settings of MPO."""

from dataclasses import dataclass
from typing import final

from understudy.algorithms.config import read_presets, setting
from understudy.algorithms.off_policy import OffPolicyConfig

# What each dual variable holds: the setting of its bound.
CONSTRAINTS = {
    "temperature": "dual_constraint",
    "penalty_temperature": "penalty_constraint",
    "kl_mean": "kl_mean_constraint",
    "kl_var": "kl_var_constraint",
    "kl": "kl_constraint",
}
# How settings and the log call the multipliers of the policy's step.
MULTIPLIERS = {"kl_mean": "mean_multiplier", "kl_var": "var_multiplier", "kl": "multiplier"}


@final
@dataclass(frozen=True)
class MPOConfig(OffPolicyConfig):
    """Maximum a Posteriori Policy Optimization, for continuous and for discrete actions."""

    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The actor's own step size (default: learning_rate)."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The actor's own hidden layers (default: hidden_sizes)."""
    num_critics: int = setting(1, at_least=1)
    """Independently initialized critics; the smallest opinion counts."""
    n_step: int = setting(5, at_least=1)
    """Rewards summed before bootstrapping; sums never cross an episode."""
    sample_action_num: int = setting(20, at_least=1)
    """Continuous actions: how many the target policy draws in each state."""
    initial_std: float = setting(0.5, above=1e-4)
    """Continuous actions: the policy's standard deviation in every state at the beginning; below
    1."""
    dual_learning_rate: float = setting(1e-2, at_least=0.0, moving=True)
    """Adam's step size for the temperature and the multipliers (before softplus)."""
    dual_constraint: float = setting(0.1, above=0.0, moving=True)
    """E-step: how far the improved policy may be from the target policy (mean KL)."""
    initial_temperature: float = setting(1.0, at_least=1e-6)
    """The temperature at the beginning."""
    kl_mean_constraint: float = setting(1e-3, above=0.0, moving=True)
    """M-step, continuous actions: bound of the mean KL that moving the means costs, for each
    dimension of the action."""
    kl_var_constraint: float = setting(1e-6, above=0.0, moving=True)
    """M-step, continuous actions: bound of the mean KL that changing the deviations costs, for
    each dimension of the action."""
    kl_constraint: float = setting(1e-2, above=0.0, moving=True)
    """M-step, discrete actions: bound of the mean KL from the target policy."""
    initial_mean_multiplier: float = setting(1.0, at_least=1e-6)
    """The multipliers of kl_mean_constraint at the beginning."""
    initial_var_multiplier: float = setting(10.0, at_least=1e-6)
    """The multipliers of kl_var_constraint at the beginning."""
    initial_multiplier: float = setting(1.0, at_least=1e-6)
    """The multiplier of kl_constraint at the beginning."""
    max_mean_multiplier: float | None = setting(None, above=0.0)
    """Upper bound of kl_mean_constraint's multipliers (default: none)."""
    max_var_multiplier: float | None = setting(None, above=0.0)
    """Upper bound of kl_var_constraint's multipliers (default: none)."""
    max_multiplier: float | None = setting(None, above=0.0)
    """Upper bound of kl_constraint's multiplier (default: none)."""
    penalize_actions: bool = setting(False)
    """Continuous actions: draw the policy back into the bounds, as a second objective with a
    temperature of its own."""
    penalty_constraint: float = setting(1e-3, above=0.0, moving=True)
    """E-step: how far that second objective may take the improved policy (mean KL)."""

    presets = read_presets(__file__)

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if self.initial_std >= 1.0:
            problems.append(f"initial_std must be below 1, got {self.initial_std:g}")
        for name in MULTIPLIERS.values():
            start, most = getattr(self, f"initial_{name}"), getattr(self, f"max_{name}")
            if most is not None and start > most:
                problems.append(f"initial_{name} {start:g} is above max_{name} {most:g}")
        return problems
