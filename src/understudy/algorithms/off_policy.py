"""What algorithms that learn from replay share: settings, data needs, networks, Q-values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jaxtyping import Array, Float, Shaped

from understudy.algorithms.config import (
    OPTIMIZERS,
    Config,
    anneal_learning_rates,
    check_optimizer,
    check_rewards,
    critic_setting,
    encoder_setting,
    memory_width,
    optimizer_setting,
    setting,
)
from understudy.algorithms.optim import Delays
from understudy.algorithms.train_state import ActorCritic, TrainState
from understudy.networks.build import make_actor, make_critics
from understudy.networks.ensembles import q_of_action
from understudy.ops.return_distributions import Atoms, Quantiles, ReturnForm
from understudy.ops.schedules import Schedule, linear
from understudy.types import Key, Sequences, Spec


@dataclass(frozen=True)
class ReplayNeeds:
    """The data that an algorithm needs that learns from replay."""

    on_policy: ClassVar[bool] = False

    buffer_size: int
    batch_size: int
    n_step: int
    start_steps: int | None  # uniformly random actions before the policy acts
    max_start_steps: int  # if their number depends on the length of the run
    min_buffer_size: int  # transitions stored before the first update
    updates_per_step: float  # per environment transition, for any number of environments
    update_every: int  # updates happen when transitions pass a multiple of this
    updates_per_vector_step: float | None = None  # per step of all environments, instead
    priority_exponent: float | None = None  # None: uniform sampling
    priority_mix: float = 0.9  # weight of the largest error of a sequence, against the mean
    random_shift: int = 0  # pixels
    sequences: Sequences | None = None  # for recurrent networks; a batch consists of these
    storage: str = "auto"  # where it is kept: device, host or disk
    chunk_steps: int | None = None  # per transfer to the learner


@dataclass(frozen=True)
class OffPolicyConfig(Config):
    """The settings that all algorithms with replay share. Abstract."""

    policy_delay = 1  # no field here; algorithms that can delay the policy have it as a setting

    learning_rate: float = setting(3e-4, at_least=0.0, moving=True)
    """The learning rate of every network without one of its own."""
    critic_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The critics' learning rate (default: learning_rate)."""
    anneal_learning_rate: bool = setting(False)
    """Decrease all learning rates over the run, to learning_rate_end of their start."""
    learning_rate_end: float = setting(0.0, at_least=0.0, at_most=1.0)
    """With anneal_learning_rate: the share of each learning rate that is left at the end."""
    learning_rate_schedule: str = setting("linear", choices=("linear", "cosine"))
    """With anneal_learning_rate: decrease along a straight line or along half a cosine wave."""
    gamma: float = setting(0.99, at_least=0.0, at_most=1.0, moving=True)
    """Discount per step."""
    tau: float = setting(0.005, above=0.0, at_most=1.0, moving=True)
    """How far targets move towards their networks at each target update; 1 is a hard copy."""
    target_update_interval: int = setting(1, at_least=1)
    """Updates between two target updates."""
    target_networks: str = setting("all", choices=("all", "critics", "off"))
    """Networks that have slowly moving targets: all that the algorithm gives one, the critics
    alone, or none (off). Without a target, the network itself takes its place."""
    buffer_size: int = setting(1_000_000, at_least=1)
    """Transitions that the replay buffer holds."""
    replay_storage: str = setting("auto", choices=("auto", "device", "host", "disk"))
    """Where replay is stored; auto is the first of device, host memory and disk that has space."""
    batch_size: int = setting(256, at_least=1)
    """Transitions per update."""
    n_step: int = setting(1, at_least=1)
    """Rewards summed before bootstrapping; sums never cross an episode."""
    start_steps: int | None = setting(None, at_least=0)
    """Steps of uniformly random actions before the policy acts (default: a tenth of the first
    training, at most max_start_steps)."""
    max_start_steps: int = setting(10_000, at_least=0)
    """The most random steps, where start_steps is not set."""
    min_buffer_size: int = setting(1_000, at_least=1)
    """Transitions stored before the first update (at most as many as there are random steps, where
    a short training has fewer than max_start_steps of them)."""
    updates_per_step: float = setting(1.0, above=0.0)
    """Updates per environment transition, for any number of environments."""
    updates_per_vector_step: float | None = setting(None, above=0.0)
    """Updates per step of all environments of a seed, instead of updates_per_step."""
    update_every: int = setting(1, at_least=1)
    """Transitions between two groups of updates; updates_per_step does not change."""
    reset_every: int | None = setting(None, at_least=1)
    """Updates between two resets: networks, learned numbers and optimizers start again from new
    random weights; replay stays (default: no resets)."""
    reset_at: tuple[int, ...] = setting((), at_least=1)
    """Numbers of updates after which there is a reset, besides those of reset_every."""
    chunk_steps: int | None = setting(None, at_least=1)
    """Steps of every Gymnasium environment per chunk; the acting policy is two chunks behind the
    learner (default: 1 on a CPU, up to 16 on an accelerator)."""
    reward_scale: float = setting(1.0, moving=True)
    """Factor on rewards when a batch is sampled; replay stores raw rewards."""
    max_grad_norm: float | None = setting(None, above=0.0)
    """Clip each network's gradient to this global norm (default: off)."""
    network: str = setting("mlp", choices=("mlp", "simba", "simbav2"))
    """The kind of hidden layers. simba and simbav2 have one residual block for each of the hidden
    sizes, which are its width and must be equal."""
    hidden_sizes: tuple[int, ...] = setting((256, 256), at_least=1)
    """Hidden layers of every network without sizes of its own."""
    critic_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The critics' own hidden layers (default: hidden_sizes)."""
    num_critics: int = setting(2, at_least=1)
    """Independently initialized critics; targets use their minimum."""
    critic_subset: int | None = setting(None, at_least=1)
    """Critics, drawn anew for each update, that are used in the target (default: all of them)."""
    target_critics: str = setting("minimum", choices=("minimum", "mean"))
    """What the target uses of the values of several critics: their minimum or their mean."""
    activation: str = setting("relu", choices=("relu", "tanh", "elu", "silu", "gelu"))
    """Activation of the hidden layers."""
    layer_norm: bool = setting(False)
    """LayerNorm before each activation of the critics."""
    critic_dropout: float = setting(0.0, at_least=0.0, at_most=0.9)
    """Share of the critics' hidden units that losses set to zero, before LayerNorm (DroQ)."""
    initialization: str = setting("kaiming", choices=("he", "kaiming", "orthogonal"))
    """How weights are initialized."""
    project_weights: bool = setting(False)
    """After each update, scale the weights of each unit of linear layers and heads to length 1;
    simbav2 always does."""
    normalize_observations: bool = setting(False)
    """Normalize observations to zero mean and unit variance by running statistics."""
    normalize_rewards: bool = setting(False)
    """Divide rewards by the running standard deviation of the discounted return."""
    return_limit: float | None = setting(None, above=0.0)
    """With normalize_rewards: divide rewards at least by the largest discounted return so far over
    this limit; it bounds discounted returns (default: no limit)."""
    prioritized: bool = setting(False)
    """Sample transitions in proportion to their last error, instead of uniformly."""
    priority_exponent: float = setting(0.6, at_least=0.0, at_most=1.0)
    """Exponent of the priorities: 0 is uniform, 1 is in proportion to the error."""
    importance_exponent: float = setting(0.4, at_least=0.0, at_most=1.0, moving=True)
    """How far importance weights correct the priorities' bias; moves linearly to 1 (completely)
    over the run."""

    critic_head: str = critic_setting("scalar", choices=("scalar", "categorical", "quantile"))
    """What critics predict of the return: its mean, the probabilities of fixed values (C51), or
    quantiles (QR-DQN, TQC)."""
    num_atoms: int = critic_setting(101, at_least=2)
    """Categorical: values of the return, evenly spaced from min_return to max_return."""
    min_return: float = critic_setting(-10.0)
    """Categorical: the lowest return that critics can predict, in units of the scaled reward."""
    max_return: float = critic_setting(10.0)
    """Categorical: the highest return that critics can predict."""
    histogram_sigma: float | None = critic_setting(None, above=0.0)
    """Categorical: learn the histogram of a Gaussian around the target's mean (HL-Gauss), with this
    standard deviation in distances between atoms; 0.75 in its paper (default: C51's projection of
    the whole target)."""
    num_quantiles: int = critic_setting(25, at_least=1)
    """Quantile: quantiles per critic."""
    drop_quantiles: int = critic_setting(2, at_least=0)
    """Quantile: largest quantiles per critic that targets leave out (TQC), of those of all critics
    together; 0 is QR-DQN."""

    optimizer: str = optimizer_setting("adam", choices=OPTIMIZERS)
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
    share_encoder: bool = encoder_setting(True)
    """Let the actor use the critics' encoder of images and their recurrent cell."""
    actor_trains_encoder: bool = encoder_setting(False)
    """Let the actor's gradient train the shared encoder too."""
    random_shift: int = encoder_setting(0, at_least=0)
    """Pixels by which sampled images are shifted at random, as augmentation; 0 is off."""
    sequence_length: int = encoder_setting(16, at_least=1)
    """With memory: steps of a sampled sequence in the loss (batch_size then counts sequences)."""
    burn_in: int = encoder_setting(8, at_least=0)
    """With memory: steps before these that only update the stored recurrent state."""
    sequence_stride: int | None = encoder_setting(None, at_least=1)
    """With memory: steps from one stored sequence to the next; below sequence_length they overlap
    (default: half of it)."""
    priority_mix: float = encoder_setting(0.9, at_least=0.0, at_most=1.0)
    """With memory: a sequence's priority is this share of its largest error, plus the remaining
    share of its mean error."""

    def contradictions(self) -> list[str]:
        problems = check_optimizer(self) + check_rewards(self) + self._network_problems()
        if self.prioritized and self.replay_storage in ("host", "disk"):
            problems.append(
                "prioritized replay is kept on the device: replay_storage must be auto or device, "
                f"got {self.replay_storage!r}"
            )
        if self.memory is not None:
            needed = self.burn_in + self.sequence_length + self.n_step
            if needed >= self.buffer_size:
                problems.append(
                    f"a sequence of {needed} steps (burn_in, sequence_length, n_step) must be "
                    f"shorter than buffer_size {self.buffer_size}"
                )
            if not self.share_encoder:
                problems.append("memory is one for actor and critics: it needs share_encoder")
        if self.actor_trains_encoder and not self.share_encoder:
            problems.append("actor_trains_encoder has no use without share_encoder")
        if self.n_step >= self.buffer_size:
            problems.append(f"n_step {self.n_step} must be below buffer_size {self.buffer_size}")
        if self.min_return >= self.max_return:
            problems.append(
                f"min_return {self.min_return:g} must be below max_return {self.max_return:g}"
            )
        if self.critic_head != "scalar" and self.target_critics == "mean":
            problems.append(
                "target_critics mean is for scalar critics: the target is a distribution"
            )
        if self.critic_head != "categorical" and self.histogram_sigma is not None:
            problems.append(f"histogram_sigma is for categorical critics, not {self.critic_head}")
        if self.critic_head == "quantile" and self.drop_quantiles >= self.num_quantiles:
            problems.append(
                f"drop_quantiles {self.drop_quantiles} must be below num_quantiles "
                f"{self.num_quantiles}"
            )
        for name, limit, effect in (
            ("batch_size", "buffer_size", ""),
            ("min_buffer_size", "buffer_size", ": no update would ever happen"),
            ("critic_subset", "num_critics", ""),
        ):
            value, most = getattr(self, name), getattr(self, limit)
            if value is not None and value > most:
                problems.append(f"{name} {value} is larger than {limit} {most}{effect}")
        return problems

    def _network_problems(self) -> list[str]:
        problems, kind = [], self.normalization
        why = f"is for the network mlp, not {self.network}: turn it off"
        for name in ("layer_norm", "critic_dropout"):
            if getattr(self, name) and self.network != "mlp":
                problems.append(f"{name} {why}")
            elif getattr(self, name) and kind != "off":
                problems.append(f"{name} excludes normalization {kind}")
        if self.network == "mlp":
            return problems
        if kind != "off":
            problems.append(f"normalization {why}")
        for name in ("hidden_sizes", "actor_hidden_sizes", "critic_hidden_sizes"):
            sizes = getattr(self, name, None)
            if sizes is not None and len(set(sizes)) != 1:
                problems.append(f"{name} must be one or more equal widths, got {sizes}")
        return problems

    def schedules(self) -> dict[str, Schedule]:
        curves: dict[str, Schedule] = {}
        if self.prioritized:
            curves["importance_exponent"] = linear(self.importance_exponent, 1.0)
        if self.anneal_learning_rate:
            shape = self.learning_rate_schedule
            curves |= anneal_learning_rates(self, self.learning_rate_end, shape)
        return curves

    @property
    def unit_weights(self) -> bool:
        """Whether the weights of each unit have length 1."""
        return self.project_weights or self.network in ("simbav2", "flashsac")

    @property
    def batch_setting(self) -> str | None:
        if self.network == "flashsac":
            return "network"
        return None if self.normalization == "off" else "normalization"

    @property
    def delays(self) -> Delays:
        return Delays(
            self.policy_delay, self.target_update_interval, self.reset_every, self.reset_at
        )

    @property
    def return_form(self) -> ReturnForm | None:
        """The distribution of returns that critics predict; None for scalar critics."""
        if self.critic_head == "categorical":
            return Atoms(self.min_return, self.max_return, self.num_atoms, self.histogram_sigma)
        if self.critic_head == "quantile":
            return Quantiles(self.num_quantiles, self.drop_quantiles)
        return None

    @property
    def memory_width(self) -> int:
        """The length of a recurrent state; 0 without a cell."""
        return memory_width(self.memory, self.memory_size)

    @property
    def needs(self) -> ReplayNeeds:
        return ReplayNeeds(
            buffer_size=self.buffer_size,
            batch_size=self.batch_size,
            n_step=self.n_step,
            start_steps=self.start_steps,
            max_start_steps=self.max_start_steps,
            min_buffer_size=self.min_buffer_size,
            updates_per_step=self.updates_per_step,
            update_every=self.update_every,
            updates_per_vector_step=self.updates_per_vector_step,
            priority_exponent=self.priority_exponent if self.prioritized else None,
            priority_mix=self.priority_mix,
            random_shift=self.random_shift,
            sequences=self._sequences() if self.memory else None,
            storage=self.replay_storage,
            chunk_steps=self.chunk_steps,
        )

    def _sequences(self) -> Sequences:
        stride = self.sequence_stride or max(1, self.sequence_length // 2)
        return Sequences(self.burn_in, self.sequence_length, stride, self.memory_width)


def init_actor_and_critics(
    algorithm: Any, kind: Any, spec: Spec, key: Key, settings: Mapping[str, Any] | None = None
) -> tuple[ActorCritic, Key]:
    """Make an actor of this class (with these arguments) and critics; also return the next key."""
    actor_key, critic_key, key = jax.random.split(key, 3)
    config, networks = algorithm.config, algorithm.networks
    share = config.share_encoder
    actor = make_actor(kind, spec, config, networks, actor_key, share=share, settings=settings)
    form = config.return_form
    critics = make_critics(spec, config, networks, critic_key, distribution=form)
    return ActorCritic(actor, critics), key


def q_values(
    algorithm: Any, state: TrainState, observation: Array, action: Shaped[Array, "batch *action"]
) -> Float[Array, "critics batch"]:
    """Return Q(s, a) of every critic at normalized observations. Algorithms have it as a method."""
    return q_of_action(state.params.critic, observation, action)
