"""What can be set about A2C."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from understudy.algorithms.base import RolloutNeeds
from understudy.algorithms.config import setting
from understudy.algorithms.encoder_config import PerceptionConfig
from understudy.ops.schedules import Schedule, linear

# Of Tianshou's benchmark, there with 16 environments; sources in docs/presets.md.
_TIANSHOU = dict(
    anneal_learning_rate=True,
    gae_lambda=0.95,
    entropy_coeff=0.01,
    epsilon_inside_root=False,
    normalise_observations=True,
    normalise_rewards=True,
    initial_log_std=-0.5,
)
# Policy and value see by one encoder, whose features go straight to both heads.
_SEEING = dict(share_encoder=True, hidden_sizes=(), entropy_coeff=0.01)


@final
@dataclass(frozen=True)
class A2CConfig(PerceptionConfig):
    """Advantage Actor-Critic, synchronous. It learns from what its present policy has just done."""

    learning_rate: float = setting(7e-4, at_least=0.0, moving=True)
    """The optimiser's step size, for the policy and the value network."""
    anneal_learning_rate: bool = setting(False)
    """Let the step size fall linearly to zero over the run."""
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
    normalise_advantages: bool = setting(False)
    """Give each rollout's advantages zero mean and unit variance."""
    reward_scale: float = setting(1.0, moving=True)
    """Factor on rewards."""
    max_grad_norm: float | None = setting(0.5, above=0.0)
    """Clip the gradient of all networks together to this global norm (None: off)."""
    optimiser: str = setting("rmsprop", choices=("rmsprop", "adam"))
    """What turns gradients into steps."""
    rmsprop_decay: float = setting(0.99, at_least=0.0, at_most=1.0)
    """How slowly RMSprop forgets old gradients."""
    rmsprop_epsilon: float = setting(1e-5, above=0.0)
    """Keeps RMSprop from dividing by zero."""
    epsilon_inside_root: bool = setting(True)
    """Add rmsprop_epsilon to the mean square, as the paper does, and not to its root."""
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
    initialisation: str = setting("orthogonal", choices=("he", "kaiming", "orthogonal"))
    """How weights begin."""
    normalise_observations: bool = setting(False)
    """Give networks observations of zero mean and unit variance, by running statistics."""
    normalise_rewards: bool = setting(False)
    """Divide rewards by the running standard deviation of the discounted return."""
    initial_log_std: float | None = setting(None)
    """Logarithm of the noise's first deviation (default: 0; -2 if it depends on the state)."""
    state_dependent_exploration: bool = setting(False)
    """Noise that is a function of the state, kept for a while (gSDE); for continuous actions."""
    noise_reset_interval: int | None = setting(None, at_least=1)
    """Steps that such a function is kept (default: horizon)."""

    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("prioritised", "buffer_size", "batch_size", "n_step", "start_steps"),
            "A2C learns from its newest rollout and keeps no replay",
        ),
        **dict.fromkeys(
            ("updates_per_step", "replay_storage", "random_shift", "sequence_length", "burn_in"),
            "it is a matter of replay, and A2C learns from its newest rollout",
        ),
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "CartPole-v1": dict(anneal_learning_rate=True),
        # Positions alone are small numbers, and their differences smaller still.
        "CartPole-P-v1": dict(
            memory="gru",
            memory_size=64,
            hidden_sizes=(64,),
            horizon=8,
            normalise_observations=True,
        ),
        "Recall-v0": dict(
            memory="gru",
            memory_size=64,
            hidden_sizes=(64,),
            share_encoder=True,
            horizon=22,
            optimiser="adam",
            learning_rate=1e-3,
            gae_lambda=0.95,
            entropy_coeff=0.01,
        ),
        # RL Baselines3 Zoo's, there with 16 environments; λ on MinAtar is that of AC(λ).
        "atari": dict(_SEEING, frame_stack=4, value_coeff=0.25),
        "MinAtar": dict(_SEEING, gae_lambda=0.8),
        "Acrobot-v1": dict(normalise_observations=True, normalise_rewards=True),
        "Pendulum-v1": dict(
            learning_rate=1.5e-3,
            anneal_learning_rate=True,
            gamma=0.9,
            gae_lambda=0.9,
            horizon=8,
            value_coeff=0.4,
            epsilon_inside_root=False,
            normalise_observations=True,
            normalise_rewards=True,
            state_dependent_exploration=True,
        ),
        "MountainCarContinuous-v0": dict(
            anneal_learning_rate=True,
            horizon=100,
            normalise_observations=True,
            normalise_rewards=True,
            state_dependent_exploration=True,
            initial_log_std=0.0,
            noise_reset_interval=16,
        ),
        "MountainCar-v0": dict(normalise_observations=True, normalise_rewards=True),
        "LunarLander-v3": dict(
            learning_rate=8.3e-4, anneal_learning_rate=True, gamma=0.995, entropy_coeff=1e-5
        ),
        "LunarLanderContinuous-v3": dict(
            anneal_learning_rate=True, gae_lambda=0.9, horizon=8, state_dependent_exploration=True
        ),
        **dict.fromkeys(("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5"), _TIANSHOU),
        **dict.fromkeys(("Humanoid-v5", "Reacher-v5", "InvertedPendulum-v5"), _TIANSHOU),
        "InvertedDoublePendulum-v5": _TIANSHOU,
        "Swimmer-v5": dict(_TIANSHOU, gamma=0.9999),
    }

    def contradictions(self) -> list[str]:
        problems = []
        if self.share_encoder and self.critic_hidden_sizes is not None:
            problems.append("critic_hidden_sizes has no use with share_encoder")
        if self.share_encoder and self.layer_norm:
            problems.append("layer_norm is for a value network of its own, not for share_encoder")
        if self.noise_reset_interval is not None and not self.state_dependent_exploration:
            problems.append("noise_reset_interval has no use without state_dependent_exploration")
        if self.memory is not None and self.minibatches > 1:
            problems.append("memory is learned from whole rollouts: minibatches must be 1")
        return problems

    def schedules(self) -> dict[str, Schedule]:
        if not self.anneal_learning_rate:
            return {}
        return {"learning_rate": linear(self.learning_rate, 0.0)}

    @property
    def needs(self) -> RolloutNeeds:
        return RolloutNeeds(self.horizon, self.minibatches, self.memory_width)
