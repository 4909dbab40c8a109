"""The protocol of an algorithm: a config plus pure, jittable, vmappable functions.

An algorithm never sees an environment, a buffer, a logger, a file or a cluster. Everything
that changes lives in its State; `update` is `apply ∘ gradients` and nothing else, so that one
machine and many gradient workers compute the same thing.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int32, Shaped

from understudy.algorithms.settings import Config, setting
from understudy.nets import Networks
from understudy.types import (
    Batch,
    ConfigError,
    Continuous,
    Discrete,
    EnvironmentError,
    Key,
    Metrics,
    Scalar,
    Spec,
    Tree,
)

Index = int | Int32[Array, ""]  # of an update; an int where a program is compiled for it

# (actor, batch, key) -> (a scalar added to the actor's loss, metrics to log)
LossAddon = Callable[[Any, Batch, Key], tuple[Array, Metrics]]


@dataclass(frozen=True)
class Replay:
    """The appetite of an algorithm that learns from a replay ring."""

    buffer_size: int
    batch_size: int
    n_step: int
    start_steps: int  # uniformly random actions before the policy acts
    min_buffer_size: int  # transitions stored before the first update
    updates_per_step: float  # per environment transition, whatever the number of environments
    update_every: int  # transitions per block of updates


class Aux(NamedTuple):
    """What an update tells beside its gradients."""

    metrics: Metrics  # NaN where a part did not take part: absent from means, never zero
    priorities: Float[Array, " batch"]  # |TD error| per row


class Algorithm(abc.ABC):
    """Abstract; the final classes are in the folders beside this file."""

    name: ClassVar[str]
    config_class: ClassVar[type[Config]]
    supported_actions: ClassVar[tuple[type, ...]]

    def __init__(
        self,
        config: Any = None,
        *,
        networks: Networks | None = None,
        loss_addons: tuple[LossAddon, ...] = (),
    ):
        self.config = self.config_class() if config is None else config
        if not isinstance(self.config, self.config_class):
            wanted, got = self.config_class.__name__, type(config).__name__
            raise ConfigError(f"{self.name.upper()} takes a {wanted}, got a {got}")
        self.networks = networks or Networks()
        self.loss_addons = loss_addons

    @property
    @abc.abstractmethod
    def appetite(self) -> Replay:
        """What the engine must feed."""

    @abc.abstractmethod
    def init(self, spec: Spec, key: Key) -> Any:
        """Everything that will ever change."""

    @abc.abstractmethod
    def policy(self, state: Any) -> Any:
        """The smallest slice of the State that can act: what a worker is sent."""

    @abc.abstractmethod
    def act(
        self,
        policy: Any,
        memory: Tree,
        observation: Shaped[Array, "envs *observation"],
        first: Bool[Array, " envs"],
        key: Key,
        explore: bool,
    ) -> tuple[Shaped[Array, "envs ..."], Tree, Metrics]:
        """Actions for a row of environments, the memory they carry on, and extras.

        `first` marks rows whose episode has just begun, where memory restarts.
        """

    def memory(self, num_envs: int) -> Tree:
        """The memory before a first step; empty for algorithms that need none."""
        return ()

    def observe(self, state: Any, observations: Shaped[Array, "envs *observation"]) -> Any:
        """Take new observations into running statistics, where there are any."""
        return state

    def prepare(self, state: Any, batch: Batch) -> Batch:
        """What must look at the whole batch before it may be split into shards."""
        return batch

    @property
    def due_period(self) -> int:
        """After how many updates the pattern of `due` repeats."""
        return 1

    @abc.abstractmethod
    def due(self, index: Index) -> Any:
        """Which delayed parts take part in update number `index`.

        The index is the engine's own and is never batched over members: a batched predicate
        would turn a conditional into computing both sides. Where it is a plain int, the answer
        is plain too, and a program compiled for it holds no conditional at all.
        """

    @abc.abstractmethod
    def gradients(self, state: Any, batch: Batch, key: Key, due: Any) -> tuple[Any, Aux]:
        """The gradients of one batch at this state. Pure; noise is drawn per row."""

    @abc.abstractmethod
    def apply(self, state: Any, gradients: Any) -> Any:
        """Clip, descend, move targets, count. Skips what was not due."""

    def update(self, state: Any, batch: Batch, key: Key, due: Any) -> tuple[Any, Aux]:
        """apply ∘ gradients, and nothing else."""
        gradients, aux = self.gradients(state, batch, key, due)
        return self.apply(state, gradients), aux

    def check(self, spec: Spec) -> None:
        """Refuse, before anything starts, a spec this algorithm cannot learn."""
        if not isinstance(spec.action, self.supported_actions):
            names = {Continuous: "continuous (a bounded Box)", Discrete: "Discrete"}
            can = " or ".join(names[kind] for kind in self.supported_actions)
            raise EnvironmentError(
                f"{self.name.upper()} needs {can} actions, "
                f"but this environment's are {names[type(spec.action)].split(' ')[0]}"
            )
        if isinstance(spec.action, Continuous) and not spec.action.bounded:
            raise EnvironmentError(
                f"{self.name.upper()} needs a bounded action Box (finite low and high), got "
                f"low={list(spec.action.low)}, high={list(spec.action.high)}; "
                "wrap the environment in gymnasium.wrappers.RescaleAction or ClipAction"
            )
        if len(spec.observation.shape) != 1 or spec.observation.dtype != "float32":
            raise EnvironmentError(
                f"{self.name.upper()} supports vector observations of floats, got shape "
                f"{spec.observation.shape} of {spec.observation.dtype}; "
                "gymnasium.wrappers.FlattenObservation makes one vector of it"
            )


@dataclass(frozen=True)
class ReplayConfig(Config):
    """The settings that all algorithms with a replay ring share. Abstract."""

    learning_rate: float = setting(3e-4, at_least=0.0, moving=True)
    """Adam's step size, for every network without one of its own."""
    actor_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The actor's own step size (default: learning_rate)."""
    critic_learning_rate: float | None = setting(None, at_least=0.0, moving=True)
    """The critics' own step size (default: learning_rate)."""
    gamma: float = setting(0.99, at_least=0.0, at_most=1.0, moving=True)
    """Discount per step."""
    tau: float = setting(0.005, above=0.0, at_most=1.0, moving=True)
    """How far targets move towards their networks at each target update; 1 is a hard copy."""
    target_update_interval: int = setting(1, at_least=1)
    """Updates between two target updates."""
    buffer_size: int = setting(1_000_000, at_least=1)
    """Transitions the replay ring holds."""
    batch_size: int = setting(256, at_least=1)
    """Transitions per update."""
    n_step: int = setting(1, at_least=1)
    """Rewards summed before bootstrapping; sums never cross an episode."""
    start_steps: int = setting(10_000, at_least=0)
    """Steps of uniformly random actions before the policy acts."""
    min_buffer_size: int = setting(1_000, at_least=1)
    """Transitions stored before the first update."""
    updates_per_step: float = setting(1.0, above=0.0)
    """Updates per environment transition, whatever the number of environments."""
    update_every: int = setting(1, at_least=1)
    """Transitions between blocks of updates; the ratio stays updates_per_step."""
    reward_scale: float = setting(1.0, moving=True)
    """Factor on rewards when a batch is sampled; replay keeps them raw."""
    max_grad_norm: float | None = setting(None, above=0.0)
    """Clip each network's gradient to this global norm (default: off)."""
    hidden_sizes: tuple[int, ...] = setting((256, 256), at_least=1)
    """Hidden layers of every network without its own."""
    actor_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The actor's own hidden layers (default: hidden_sizes)."""
    critic_hidden_sizes: tuple[int, ...] | None = setting(None, at_least=1)
    """The critics' own hidden layers (default: hidden_sizes)."""
    num_critics: int = setting(2, at_least=1)
    """Independently initialised critics; the smallest opinion counts."""
    activation: str = setting("relu", choices=("relu", "tanh", "elu", "silu", "gelu"))
    """Activation of the hidden layers."""
    layer_norm: bool = setting(False)
    """LayerNorm before each activation of the critics."""
    initialisation: str = setting("kaiming", choices=("kaiming", "orthogonal"))
    """How weights begin."""

    def contradictions(self) -> list[str]:
        problems = []
        if self.batch_size > self.buffer_size:
            problems.append(
                f"batch_size {self.batch_size} is larger than buffer_size {self.buffer_size}"
            )
        if self.min_buffer_size > self.buffer_size:
            problems.append(
                f"min_buffer_size {self.min_buffer_size} is larger than "
                f"buffer_size {self.buffer_size}: no update would ever happen"
            )
        if self.n_step >= self.buffer_size:
            problems.append(f"n_step {self.n_step} must be below buffer_size {self.buffer_size}")
        return problems

    @property
    def appetite(self) -> Replay:
        return Replay(
            buffer_size=self.buffer_size,
            batch_size=self.batch_size,
            n_step=self.n_step,
            start_steps=self.start_steps,
            min_buffer_size=self.min_buffer_size,
            updates_per_step=self.updates_per_step,
            update_every=self.update_every,
        )


def initial_hyper(config: Config) -> dict[str, Scalar]:
    """The moving hyper-parameters as arrays, for `state.hyper`."""
    return {name: jnp.float32(value) for name, value in config.moving().items()}


def learning_rate(hyper: dict[str, Scalar], network: str) -> Scalar:
    """The network's own learning rate, or the common one."""
    return hyper.get(f"{network}_learning_rate", hyper["learning_rate"])


def adam(max_grad_norm: float | None) -> optax.GradientTransformation:
    """Adam's direction; the step size comes from `state.hyper` when it is taken."""
    if max_grad_norm is None:
        return optax.scale_by_adam()
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.scale_by_adam())


def descend(
    optimiser: optax.GradientTransformation,
    gradients: Tree,
    moments: Tree,
    parameters: Tree,
    step_size: Scalar,
) -> tuple[Tree, Tree]:
    """One optimiser step: the new parameters and moments."""
    direction, moments = optimiser.update(gradients, moments)
    parameters = jax.tree.map(lambda p, d: p - step_size * d, parameters, direction)
    return parameters, moments


def every(index: Index, interval: int) -> Bool[Array, ""] | bool:
    """Whether update `index` is one of every `interval`; plainly True when each one is."""
    return True if interval == 1 else index % interval == 0


def when(due: Bool[Array, ""] | bool, compute: Callable[[], Any], otherwise: Callable[[], Any]):
    """`compute()` if due, else `otherwise()`: only the branch taken costs anything."""
    if isinstance(due, bool):
        return compute() if due else otherwise()
    return jax.lax.cond(due, compute, otherwise)


def add_terms(
    addons: tuple[LossAddon, ...], actor: Any, batch: Batch, key: Key
) -> tuple[Scalar, Metrics]:
    """The sum of the users' terms for the actor's loss, and their metrics as `addon/…`."""
    total, metrics = jnp.float32(0.0), {}
    for place, addon in enumerate(addons):
        name = getattr(addon, "__name__", f"addon_{place}")
        answer = addon(actor, batch, jax.random.fold_in(key, place))
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise ConfigError(f"loss add-on '{name}' must return (a scalar, a dict of metrics)")
        term, own = answer
        for what, value in {"a term": term, **own}.items():
            if jnp.shape(value) != ():
                shape = jnp.shape(value)
                raise ConfigError(f"loss add-on '{name}': {what} must be a scalar, got {shape}")
        total = total + term
        metrics |= {f"addon/{key_}": jnp.float32(value) for key_, value in own.items()}
    return total, metrics
