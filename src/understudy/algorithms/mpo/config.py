"""The settings of MPO."""

from dataclasses import dataclass
from typing import final

from understudy.algorithms.config import read_presets, setting
from understudy.algorithms.off_policy import OffPolicyConfig

# Dual variable -> the setting of the bound that it belongs to.
CONSTRAINTS = {
    "temperature": "dual_constraint",
    "penalty_temperature": "penalty_constraint",
    "kl_mean": "kl_mean_constraint",
    "kl_var": "kl_var_constraint",
    "kl": "kl_constraint",
}
# Multiplier of the policy's step -> its name in settings and in the log.
MULTIPLIERS = {"kl_mean": "mean_multiplier", "kl_var": "var_multiplier", "kl": "multiplier"}


@final
@dataclass(frozen=True)
class MPOConfig(OffPolicyConfig):
    """Maximum a Posteriori Policy Optimization, for continuous and for discrete actions."""

    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The actor's learning rate (default: learning_rate)."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The actor's own hidden layers (default: hidden_sizes)."""
    num_critics: int = setting(1, at_least=1)
    """Independently initialized critics; their minimum is used."""
    n_step: int = setting(5, at_least=1)
    """Rewards summed before bootstrapping; sums never cross an episode."""
    sample_action_num: int = setting(20, at_least=1)
    """Continuous actions: samples of the target policy in each state."""
    initial_std: float = setting(0.5, above=1e-4)
    """Continuous actions: the policy's initial standard deviation in every state; below 1."""
    dual_learning_rate: float = setting(1e-2, at_least=0.0, moving=True)
    """The learning rate of the temperature and the multipliers (before softplus)."""
    dual_constraint: float = setting(0.1, above=0.0, moving=True)
    """E-step: bound of the mean KL between the improved policy and the target policy."""
    initial_temperature: float = setting(1.0, at_least=1e-6)
    """The initial temperature."""
    kl_mean_constraint: float = setting(1e-3, above=0.0, moving=True)
    """M-step, continuous actions: bound of the mean KL of a change of the means, for each dimension
    of the action."""
    kl_var_constraint: float = setting(1e-6, above=0.0, moving=True)
    """M-step, continuous actions: bound of the mean KL of a change of the deviations, for each
    dimension of the action."""
    kl_constraint: float = setting(1e-2, above=0.0, moving=True)
    """M-step, discrete actions: bound of the mean KL from the target policy."""
    initial_mean_multiplier: float = setting(1.0, at_least=1e-6)
    """The initial multipliers of kl_mean_constraint."""
    initial_var_multiplier: float = setting(10.0, at_least=1e-6)
    """The initial multipliers of kl_var_constraint."""
    initial_multiplier: float = setting(1.0, at_least=1e-6)
    """The initial multiplier of kl_constraint."""
    max_mean_multiplier: float | None = setting(None, above=0.0)
    """Upper bound of kl_mean_constraint's multipliers (default: none)."""
    max_var_multiplier: float | None = setting(None, above=0.0)
    """Upper bound of kl_var_constraint's multipliers (default: none)."""
    max_multiplier: float | None = setting(None, above=0.0)
    """Upper bound of kl_constraint's multiplier (default: none)."""
    penalize_actions: bool = setting(False)
    """Continuous actions: penalize samples outside the bounds, as a second objective with a
    temperature of its own."""
    penalty_constraint: float = setting(1e-3, above=0.0, moving=True)
    """E-step: bound of the mean KL for that second objective."""

    presets = read_presets(__file__)

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if self.target_networks != "all":
            problems.append(
                "the bounds of a step are measured from the target policy: target_networks must be "
                f"all, got '{self.target_networks}'"
            )
        if self.initial_std >= 1.0:
            problems.append(f"initial_std must be below 1, got {self.initial_std:g}")
        for name in MULTIPLIERS.values():
            start, most = getattr(self, f"initial_{name}"), getattr(self, f"max_{name}")
            if most is not None and start > most:
                problems.append(f"initial_{name} {start:g} is above max_{name} {most:g}")
        return problems
