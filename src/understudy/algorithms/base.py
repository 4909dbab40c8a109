"""The protocol of an algorithm: a config plus pure, jittable, vmappable functions.

An algorithm never sees an environment, a buffer, a logger, a file or a cluster. Everything
that changes lives in its State; `update` is `apply ∘ gradients` and nothing else, so that one
machine and many gradient workers compute the same thing.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from understudy.algorithms import normalization
from understudy.algorithms.config import Config
from understudy.algorithms.off_policy import ReplayNeeds
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.algorithms.optim import (
    Delays,
    Gradients,
    Index,
    Optimizers,
    UpdateMask,
    hard_copy,
    initial_hyper,
    move_targets,
)
from understudy.algorithms.spec_check import check_spec
from understudy.algorithms.train_state import NoTargets, TrainState
from understudy.networks import Networks
from understudy.networks.encoders import encode_step
from understudy.types import ConfigError, Key, Metrics, Observation, Scalar, Spec, Tree

# (actor, batch, key) -> (a scalar added to the actor's loss, metrics to log)
LossAddon = Callable[[Any, Any, Key], tuple[Array, Metrics]]

Needs = ReplayNeeds | RolloutNeeds


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
    target_class: ClassVar[Any] = NoTargets  # its fields name the params that have a target
    num_envs: ClassVar[int] = 1  # environments per seed, where the user names no number
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

    @property
    @abc.abstractmethod
    def optimizers(self) -> Optimizers:
        """What moves the params, with which step sizes."""

    @property
    def delays(self) -> Delays:
        """Which parts are not updated every time."""
        return Delays()

    def init(self, spec: Spec, key: Key) -> TrainState:
        """Everything that will ever change."""
        params, key = self.init_params(spec, key)
        targets = (hard_copy(getattr(params, name)) for name in self.target_class._fields)
        return TrainState(
            params=params,
            targets=self.target_class(*targets),
            opt_state=self.optimizers.init(params),
            normalizer=normalization.init_normalizer(self.config, spec),
            hyper=self.init_hyper(spec),
            updates=jnp.int32(0),
            key=key,
        )

    @abc.abstractmethod
    def init_params(self, spec: Spec, key: Key) -> tuple[Any, Key]:
        """Networks, and numbers that are learned; and the key to go on with."""

    def init_hyper(self, spec: Spec) -> dict[str, Scalar]:
        """The hyper-parameters that can move."""
        return initial_hyper(self.config)

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
        observation = normalization.normalize_observation(policy.normalizer, observation)
        if not self.config.memory_width:
            return self.choose(policy, memory, observation, first, key, explore)
        # The first part of every policy is the network that acts.
        seen, hidden = encode_step(policy[0], memory.hidden, observation, first)
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
        noise, width = self.init_noise(policy, num_envs), self.config.memory_width
        return Memory(jnp.zeros((num_envs, width)), noise) if width else noise

    def init_noise(self, policy: Any, num_envs: int) -> Tree:
        """What exploration carries from step to step, before the first one."""
        return ()

    def prepare(self, state: Any, batch: Any) -> Any:
        """What must look at the whole batch before it may be split into shards.

        Here: observations and rewards in the State's present units, and importance weights of
        which the largest is 1, made larger where rows are no steps (of weight 0): a mean over
        rows is then one over steps."""
        batch = normalization.normalize_batch(state.normalizer, batch)
        weight = batch.weight / jnp.max(batch.weight)
        steps = jnp.maximum(jnp.sum(weight > 0), 1)
        return batch._replace(weight=weight * (weight.size / steps))

    @abc.abstractmethod
    def gradients(
        self, state: TrainState, batch: Any, key: Key, mask: UpdateMask
    ) -> tuple[Gradients, Aux]:
        """The gradients of one prepared batch at this state. Pure; noise is drawn per row."""

    def apply(self, state: TrainState, gradients: Gradients) -> TrainState:
        """Clip, descend, move targets, count. Delayed parts keep their values."""
        assert gradients.mask is not None
        params, opt_state = self.optimizers.step(state, gradients)
        return state._replace(
            params=params,
            targets=move_targets(state, params, gradients.mask.targets),
            opt_state=opt_state,
            updates=state.updates + 1,
        )

    def update(
        self, state: TrainState, batch: Any, key: Key, mask: UpdateMask
    ) -> tuple[TrainState, Aux]:
        """apply ∘ gradients, and nothing else."""
        gradients, aux = self.gradients(state, batch, key, mask)
        return self.apply(state, gradients), aux

    def update_mask(self, index: Index) -> UpdateMask:
        """Which delayed parts take part in update number `index`."""
        return self.delays.mask(index)

    def get_weights(self, state: Any) -> dict[str, Tree]:
        """The networks that learn, by name. Their targets are not among them."""
        return {name: getattr(state.params, name) for name in self.optimizers.networks}

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
        check_spec(self, spec)
