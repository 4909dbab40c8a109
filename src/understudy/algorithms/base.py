"""The protocol of an algorithm: a config plus pure, jittable, vmappable functions.

An algorithm never sees an environment, a buffer, a logger, a file or a cluster. Everything
that changes lives in its State; `update` is `apply ∘ gradients` and nothing else, so that one
machine and many gradient workers compute the same thing.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Shaped

from understudy.algorithms import normalization
from understudy.algorithms.config import Config
from understudy.networks import Networks, seen_by_both
from understudy.networks.encoders import look, make_senses
from understudy.types import (
    ArraySpec,
    ConfigError,
    Continuous,
    Discrete,
    EnvironmentError,
    Joint,
    Key,
    Metrics,
    MultiDiscrete,
    Observation,
    Sequences,
    Spec,
    Tree,
)

Index = int | Int32[Array, ""]  # of an update; an int where a program is compiled for it

# (actor, batch, key) -> (a scalar added to the actor's loss, metrics to log)
LossAddon = Callable[[Any, Any, Key], tuple[Array, Metrics]]


@dataclass(frozen=True)
class ReplayNeeds:
    """What an algorithm needs that learns from replay."""

    on_policy: ClassVar[bool] = False

    buffer_size: int
    batch_size: int
    n_step: int
    start_steps: int | None  # uniformly random actions before the policy acts
    max_start_steps: int  # where their number depends on the length of the run
    min_buffer_size: int  # transitions stored before the first update
    updates_per_step: float  # per environment transition, whatever the number of environments
    update_every: int  # updates happen where transitions pass a multiple of this
    updates_per_vector_step: float | None = None  # per step of all environments, instead
    priority_exponent: float | None = None  # None: uniform sampling
    priority_mix: float = 0.9  # of the largest error of a sequence, the rest of the mean one
    random_shift: int = 0  # pixels
    sequences: Sequences | None = None  # for an agent that remembers; a batch is made of these
    storage: str = "auto"  # where it is kept: device, host or disk
    chunk_steps: int | None = None  # that are handed to the learner at a time


@dataclass(frozen=True)
class RolloutNeeds:
    """What an algorithm needs that learns from what its present policy has just done."""

    on_policy: ClassVar[bool] = True

    horizon: int  # steps of every environment between two updates
    minibatches: int  # of each epoch: updates, each on its share of the rows
    memory: int = 0  # numbers of a recurrent state
    epochs: int = 1  # how often the updates go through a rollout
    extras: tuple[str, ...] = ()  # of acting, that are stored with each step

    @property
    def updates(self) -> int:
        """Updates that follow a rollout."""
        return self.epochs * self.minibatches


Needs = ReplayNeeds | RolloutNeeds

MOST_JOINT_ACTIONS = 1_024


class Aux(NamedTuple):
    """What an update tells beside its gradients."""

    metrics: Metrics  # NaN where a part did not take part: absent from means, never zero
    priorities: Float[Array, " batch"]  # |TD error| per row


class Memory(NamedTuple):
    """What acting carries from step to step, where an agent remembers."""

    hidden: Float[Array, "envs memory"]
    noise: Tree


class Algorithm(abc.ABC):
    """Abstract; the final classes are in the folders beside this file."""

    name: ClassVar[str]
    config_class: ClassVar[type[Config]]
    supported_actions: ClassVar[tuple[type, ...]]
    networks_in_state: ClassVar[tuple[str, ...]]  # the params that are networks
    num_envs: ClassVar[int] = 1  # environments per member, where the user names no number
    needs_bounds: ClassVar[bool] = True  # of continuous actions

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

    def __eq__(self, other: object) -> bool:
        """Two of one class and config make the same programs. One with parts of the user's own
        equals itself alone: what those do may depend on more than can be compared."""
        if not isinstance(other, Algorithm) or type(self) is not type(other):
            return False
        standard = self._is_standard and other._is_standard
        return self is other or (standard and self.config == other.config)

    def __hash__(self) -> int:
        return hash((type(self), self.config))

    @property
    def _is_standard(self) -> bool:
        return self.networks == Networks() and not self.loss_addons

    @property
    def needs(self) -> Needs:
        """What data the algorithm must be given."""
        return self.config.needs

    @abc.abstractmethod
    def init(self, spec: Spec, key: Key) -> Any:
        """Everything that will ever change."""

    @abc.abstractmethod
    def policy(self, state: Any) -> Any:
        """The smallest slice of the State that can act: what a worker is sent."""

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
        observation = normalization.normalised(policy.seen, observation)
        if not self.config.memory_width:
            return self.choose(policy, memory, observation, first, key, explore)
        # The first part of every policy is the network that acts.
        seen, hidden = look(policy[0], memory.hidden, observation, first)
        assert hidden is not None
        action, noise, extras = self.choose(policy, memory.noise, seen, first, key, explore)
        return action, Memory(hidden, noise), extras

    @abc.abstractmethod
    def choose(
        self,
        policy: Any,
        noise: Tree,
        seen: Observation,
        first: Bool[Array, " envs"],
        key: Key,
        explore: bool,
    ) -> tuple[Shaped[Array, "envs ..."], Tree, Metrics]:
        """`act`, when the observation has been looked at and remembered; `noise` is what lingers
        of earlier steps' noise."""

    def memory(self, policy: Any, num_envs: int) -> Tree:
        """The memory before a first step; empty for algorithms that need none. (The policy says
        how large things are.)"""
        noise, width = self.lingering_noise(policy, num_envs), self.config.memory_width
        return Memory(jnp.zeros((num_envs, width)), noise) if width else noise

    def lingering_noise(self, policy: Any, num_envs: int) -> Tree:
        """What exploration carries from step to step, before the first one."""
        return ()

    def observe(
        self,
        state: Any,
        observation: Shaped[Array, "envs *observation"],
        open_return: Float[Array, " envs"],
        valid: Bool[Array, " envs"],
    ) -> Any:
        """Take one step of every environment into the running statistics, where there are any:
        what was seen, and the discounted return of each episode so far."""
        statistics = normalization.take_in(state.normalizer, observation, open_return, valid)
        return state._replace(normalizer=statistics)

    def prepare(self, state: Any, batch: Any) -> Any:
        """What must look at the whole batch before it may be split into shards.

        Here: observations and rewards in the State's present units, and importance weights of
        which the largest is 1, made larger where rows are no steps (of weight 0): a mean over
        rows is then one over steps."""
        batch = normalization.normalise_batch(state.normalizer, batch)
        weight = batch.weight / jnp.max(batch.weight)
        steps = jnp.maximum(jnp.sum(weight > 0), 1)
        return batch._replace(weight=weight * (weight.size / steps))

    def for_actor(self, state: Any, batch: Any) -> Any:
        """A batch whose observations actor and critics have looked at by the senses they share, if
        no gradient of the actor's goes into them."""
        if self.config.actor_trains_encoder:
            return batch
        seen = seen_by_both(state.params.actor, state.params.critic, batch.observation)
        return batch._replace(observation=seen)

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
    def gradients(self, state: Any, batch: Any, key: Key, due: Any) -> tuple[Any, Aux]:
        """The gradients of one prepared batch at this state. Pure; noise is drawn per row."""

    @abc.abstractmethod
    def apply(self, state: Any, gradients: Any) -> Any:
        """Clip, descend, move targets, count. Skips what was not due."""

    def update(self, state: Any, batch: Any, key: Key, due: Any) -> tuple[Any, Aux]:
        """apply ∘ gradients, and nothing else."""
        gradients, aux = self.gradients(state, batch, key, due)
        return self.apply(state, gradients), aux

    def get_weights(self, state: Any) -> dict[str, Tree]:
        """The networks that learn, by name. Their targets are not among them."""
        return {name: getattr(state.params, name) for name in self.networks_in_state}

    def set_weights(self, state: Any, weights: dict[str, Tree]) -> Any:
        """The State with these networks; targets follow at once, as hard copies."""
        copies = {
            name: jax.tree.map(jnp.copy, network)
            for name, network in weights.items()
            if name in state.targets._fields
        }
        return state._replace(
            params=state.params._replace(**weights), targets=state.targets._replace(**copies)
        )

    def check(self, spec: Spec) -> None:
        """Refuse, before anything starts, a spec this algorithm cannot learn."""
        names = {
            Continuous: "continuous (a bounded Box)" if self.needs_bounds else "continuous (a Box)",
            Discrete: "Discrete",
            MultiDiscrete: "MultiDiscrete",
        }
        if not isinstance(spec.action, self.supported_actions):
            can = " or ".join(names[kind] for kind in self.supported_actions)
            raise EnvironmentError(
                f"{self.name.upper()} needs {can} actions, "
                f"but this environment's are {names[type(spec.action)].split(' ')[0]}"
            )
        if self.needs_bounds and isinstance(spec.action, Continuous) and not spec.action.bounded:
            raise EnvironmentError(
                f"{self.name.upper()} needs a bounded action Box (finite low and high), got "
                f"low={list(spec.action.low)}, high={list(spec.action.high)}; "
                "wrap the environment in gymnasium.wrappers.RescaleAction or ClipAction"
            )
        self._check_observation(spec.observation)

    def _check_observation(self, seen: ArraySpec) -> None:
        name, config = self.name.upper(), self.config
        vector = len(seen.shape) == 1 and seen.dtype == "float32"
        if not (vector or seen.is_image or seen.in_bytes):
            raise EnvironmentError(
                f"{name} supports vectors of floats, images of uint8 or bool and dicts of these, "
                f"got shape {seen.shape} of {seen.dtype}; "
                "gymnasium.wrappers.FlattenObservation makes one vector of it"
            )
        if config.normalise_observations and not vector:
            raise ConfigError(f"{name}: normalise_observations is for vectors, not for images")
        if getattr(config, "random_shift", 0) and not seen.is_image:
            raise ConfigError(f"{name}: random_shift is for images")
        key = jax.ShapeDtypeStruct((2,), jnp.uint32)
        jax.eval_shape(lambda key: make_senses(seen, config, self.networks.encoder, key)[0], key)

    def adapt(self, spec: Spec) -> Spec:
        """The spec as this algorithm sees it: several choices at once become one, where it can
        make only one."""
        several = spec.action
        can = self.supported_actions
        # What only a continuous action would fit stays as it is, for `check` to refuse.
        if not isinstance(several, MultiDiscrete) or MultiDiscrete in can or Discrete not in can:
            return spec
        joint = Joint.over(several)
        if joint.n > MOST_JOINT_ACTIONS:
            raise EnvironmentError(
                f"{self.name.upper()} makes one choice among all combinations, and {joint.n:,} "
                f"of them are too many (at most {MOST_JOINT_ACTIONS:,}); A2C chooses each by itself"
            )
        return Spec(spec.observation, joint)


def mean_of_shards(shards: Sequence[Any]) -> Any:
    """The gradients of a whole batch out of those of its equal shards. What was due is the same
    for all of them and is not averaged."""
    bare = [shard._replace(due=None) for shard in shards]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *bare)
    return mean._replace(due=shards[0].due)
