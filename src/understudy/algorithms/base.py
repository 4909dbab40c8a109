"""The protocol of an algorithm: a config plus pure, jittable, vmappable functions.

An algorithm never sees an environment, a buffer, a logger, a file or a cluster. Everything
that changes is in its TrainState; `update` is `apply ∘ gradients` and nothing else, so that one
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
    move_targets,
    only,
)
from understudy.algorithms.spec_check import check_spec
from understudy.algorithms.train_state import TrainState
from understudy.networks import Networks
from understudy.networks.encoders import encode_step, share_encoder
from understudy.networks.normalizer import Statistics
from understudy.types import ConfigError, Key, Metrics, Observation, Scalar, Spec, Tree

# (actor, batch, key) -> (a scalar added to the actor's loss, metrics to log)
LossAddon = Callable[[Any, Any, Key], tuple[Array, Metrics]]

Needs = ReplayNeeds | RolloutNeeds
First = Bool[Array, " envs"]  # an episode begins here
PerRow = Float[Array, " batch"]
Explored = tuple[Shaped[Array, "envs *action"], Tree, Metrics]  # actions, noise state, extras


class Aux(NamedTuple):
    """What an update returns beside its gradients."""

    metrics: Metrics  # NaN if a part did not take part: means leave it out
    priorities: Float[Array, " batch"]  # |TD error| per row


Result = tuple[Gradients, Aux]  # of `gradients`


class ActorPolicy(NamedTuple):
    """The policy of an actor without settings of its own."""

    actor: Any
    normalizer: Statistics | None  # of observations, if they are normalized


class Memory(NamedTuple):
    """What acting carries from step to step, if an agent is recurrent."""

    recurrent_state: Float[Array, "envs state"]
    noise: Tree


class Algorithm(abc.ABC):
    """Abstract; the final classes are in the folders beside this file."""

    name: ClassVar[str]
    config_class: ClassVar[type[Config]]
    supported_actions: ClassVar[tuple[type, ...]]
    target_names: ClassVar[tuple[str, ...]] = ()  # the params that have a target in the paper
    num_envs: ClassVar[int] = 1  # environments per seed, if the user gives no number
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
        if loss_addons and "actor" not in self.optimizers.networks:
            raise ConfigError(f"{self.name.upper()} has no actor for loss add-ons to act on")

    def __eq__(self, other: object) -> bool:
        """Two of one class and config make the same programs. An algorithm with networks or
        add-ons of the user equals itself alone: their behavior cannot be compared."""
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
        """The data that the algorithm must be given."""
        return self.config.needs

    @property
    def optimizers(self) -> Optimizers:
        """The optimizers of the params."""
        return Optimizers(self.config)

    @property
    def targeted(self) -> tuple[str, ...]:
        """The params that have a target with these settings."""
        kept = {"critics": ("critic",), "off": ()}
        chosen = kept.get(getattr(self.config, "target_networks", "all"), self.target_names)
        return tuple(name for name in self.target_names if name in chosen)

    @property
    def delays(self) -> Delays:
        """The parts that are not updated every time."""
        return self.config.delays

    def init(self, spec: Spec, key: Key) -> TrainState:
        """Make everything that will ever change."""
        params, key = self.init_params(spec, key)
        return TrainState(
            params=params,
            # Copies: donated buffers must not be shared.
            targets=jax.tree.map(jnp.copy, only(params, self.targeted)),
            opt_state=self.optimizers.init(params),
            normalizer=normalization.init_normalizer(self.config, spec),
            hyper=self.init_hyper(spec),
            updates=jnp.int32(0),
            key=key,
        )

    @abc.abstractmethod
    def init_params(self, spec: Spec, key: Key) -> tuple[Any, Key]:
        """Make the networks and learned numbers; also return the key to continue with."""

    def init_hyper(self, spec: Spec) -> dict[str, Scalar]:
        """Make the hyper-parameters that can move."""
        return {name: jnp.float32(value) for name, value in self.config.moving().items()}

    def policy(self, state: Any) -> Any:
        """Return the smallest part of the state that can act: what a worker is sent. Its first
        field is the network that acts, and `normalizer` holds the statistics of observations."""
        actor = share_encoder(state.params.actor, state.params.critic)
        return ActorPolicy(actor, state.normalizer.observation)

    def act(
        self,
        policy: Any,
        memory: Tree,
        observation: Shaped[Array, "envs *observation"],
        first: First,
        key: Key,
        explore: bool,
    ) -> tuple[Shaped[Array, "envs ..."], Tree, Metrics]:
        """Return actions for a row of environments, the memory after them, and extras.

        `first` marks rows whose episode has just begun: their memory starts again.
        """
        recurrent = self.config.memory_width > 0
        state, noise = memory if recurrent else (None, memory)
        normalized = normalization.normalize_observation(policy.normalizer, observation)
        encoded, state = encode_step(policy[0], state, normalized, first)
        if explore:
            action, noise, extras = self.explore(policy, noise, encoded, first, key)
        else:
            action, extras = self.greedy_action(policy, encoded), {}
        return action, noise if state is None else Memory(state, noise), extras

    @abc.abstractmethod
    def explore(
        self, policy: Any, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        """Return exploring actions, the noise state after them, and extras. The observation is
        normalized and, for a recurrent network, encoded."""

    def greedy_action(self, policy: Any, observation: Observation) -> Shaped[Array, "envs *action"]:
        """Return the actions that the policy prefers."""
        return policy.actor.mode(observation)

    def memory(self, policy: Any, num_envs: int) -> Tree:
        """Return the memory before a first step, which is empty for most algorithms. The sizes
        are those of the policy's networks."""
        noise, width = self.init_noise(policy, num_envs), self.config.memory_width
        return Memory(jnp.zeros((num_envs, width)), noise) if width else noise

    def init_noise(self, policy: Any, num_envs: int) -> Tree:
        """Return the state of the exploration noise before the first step."""
        return ()

    def prepare(self, state: Any, batch: Any) -> Any:
        """Do what needs the whole batch before it may be split into shards.

        Here: normalize observations and rewards, and scale importance weights. Their maximum is 1;
        if some rows are no steps (weight 0), weights are enlarged such that a mean over rows is
        one over steps."""
        batch = normalization.normalize_batch(state.normalizer, batch)
        weight = batch.weight / jnp.max(batch.weight)
        steps = jnp.maximum(jnp.sum(weight > 0), 1)
        return batch._replace(weight=weight * (weight.size / steps))

    @abc.abstractmethod
    def gradients(self, state: TrainState, batch: Any, key: Key, mask: UpdateMask) -> Result:
        """Return the gradients of one prepared batch at this state. Pure; noise is drawn by row."""

    def apply(self, state: TrainState, gradients: Gradients) -> TrainState:
        """Clip, descend, move targets, count. Delayed parts do not change."""
        params, opt_state = self.optimizers.step(state, gradients)
        return state._replace(
            params=params,
            targets=move_targets(state, params, self.targeted, gradients.mask.targets),
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
        """Return the delayed parts that take part in update number `index`."""
        return self.delays.mask(index)

    def get_weights(self, state: Any) -> dict[str, Tree]:
        """Return the networks that learn, by name, without their targets."""
        return {name: getattr(state.params, name) for name in self.optimizers.networks}

    def set_weights(self, state: Any, weights: dict[str, Tree]) -> Any:
        """Return the state with these networks; targets become copies of them at once."""
        followed = {name: network for name, network in weights.items() if name in self.targeted}
        return state._replace(
            params=state.params._replace(**weights),
            targets=state.targets._replace(**jax.tree.map(jnp.copy, followed)),
        )

    def check(self, spec: Spec) -> None:
        """Refuse, before anything starts, a spec that this algorithm cannot learn."""
        check_spec(self, spec)
