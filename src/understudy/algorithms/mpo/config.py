"""What can be set about MPO."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from understudy.algorithms.config import setting
from understudy.algorithms.off_policy import REMEMBERING, OffPolicyConfig

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

# Of Tonic's benchmark; sources in docs/presets.md.
_TONIC = dict(
    actor_learning_rate=3e-4,
    critic_learning_rate=1e-3,
    batch_size=100,
    n_step=5,
    update_every=50,
    max_start_steps=10_000,
    min_buffer_size=10_000,
    penalize_actions=True,
    normalize_observations=True,
)
# Of Acme's MPO with a categorical policy, which is not tuned for games; see docs/presets.md.
_ACME = dict(
    hidden_sizes=(),
    learning_rate=1e-4,
    max_grad_norm=40.0,
    tau=1.0,
    target_update_interval=100,
    kl_constraint=2.5e-3,
    initial_temperature=3.05,
    initial_multiplier=3.05,
    updates_per_step=0.25,
)


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

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "Pendulum-v1": dict(
            hidden_sizes=(64, 64),
            learning_rate=1e-3,
            batch_size=128,
            buffer_size=100_000,
            start_steps=1_000,
            tau=0.01,
            n_step=1,
            kl_mean_constraint=5e-3,
            kl_var_constraint=1e-5,
        ),
        "Pendulum-P-v1": dict(
            REMEMBERING,
            layer_norm=True,
            anneal_learning_rate=True,
            tau=0.01,
            n_step=1,
            kl_mean_constraint=1e-2,
            kl_var_constraint=1e-5,
        ),
        "CartPole-v1": dict(
            hidden_sizes=(64, 64),
            learning_rate=1e-3,
            batch_size=128,
            buffer_size=100_000,
            start_steps=1_000,
            tau=0.01,
            n_step=1,
            num_critics=2,
            kl_constraint=1e-3,
            normalize_observations=True,
        ),
        # What concerns replay is of DDQN's presets.
        "atari": dict(
            _ACME,
            frame_stack=4,
            batch_size=32,
            buffer_size=100_000,
            max_start_steps=10_000,
            min_buffer_size=10_000,
            update_every=4,
        ),
        "MinAtar": dict(
            _ACME,
            batch_size=64,
            buffer_size=100_000,
            max_start_steps=5_000,
            min_buffer_size=5_000,
            update_every=8,
        ),
        "HalfCheetah-v5": dict(
            actor_learning_rate=3e-4,
            critic_learning_rate=1e-3,
            n_step=3,
            max_start_steps=5_000,
            kl_mean_constraint=5e-3,
            penalize_actions=True,
            normalize_observations=True,
        ),
        **dict.fromkeys(("Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"), _TONIC),
        **dict.fromkeys(("Swimmer-v5", "Reacher-v5", "InvertedPendulum-v5"), _TONIC),
        **dict.fromkeys(("InvertedDoublePendulum-v5", "BipedalWalker-v3"), _TONIC),
        "LunarLanderContinuous-v3": _TONIC,
    }

    def contradictions(self) -> list[str]:
        problems = super().contradictions()
        if self.initial_std >= 1.0:
            problems.append(f"initial_std must be below 1, got {self.initial_std:g}")
        for name in MULTIPLIERS.values():
            start, most = getattr(self, f"initial_{name}"), getattr(self, f"max_{name}")
            if most is not None and start > most:
                problems.append(f"initial_{name} {start:g} is above max_{name} {most:g}")
        return problems
