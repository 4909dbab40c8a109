"""A2C: the order of things. The maths is in losses.py."""

from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Shaped

from understudy.algorithms import normalization
from understudy.algorithms.a2c import losses
from understudy.algorithms.a2c.config import A2CConfig
from understudy.algorithms.a2c.losses import Prepared, distribution
from understudy.algorithms.aux_losses import add_terms
from understudy.algorithms.base import Algorithm, Aux
from understudy.algorithms.normalization import normalize_observation
from understudy.algorithms.optim import Gradients, Optimizers, UpdateMask
from understudy.algorithms.train_state import TrainState
from understudy.networks import (
    MLP,
    CategoricalActor,
    GaussianActor,
    MultiCategoricalActor,
    Features,
    StateDependentActor,
    StateValue,
    exploration_matrices,
    share_encoder,
    state_dependent_noise,
)
from understudy.networks.build import make_actor, make_value
from understudy.networks.encoders import SharedEncoder
from understudy.networks.initializers import scaled
from understudy.networks.normalizer import Statistics
from understudy.types import (
    ConfigError,
    Continuous,
    Discrete,
    Key,
    Metrics,
    MultiDiscrete,
    Observation,
    Scalar,
    Spec,
    Trajectory,
    Tree,
)

# A policy that begins near its middle explores in all directions alike.
POLICY_GAIN, VALUE_GAIN = 0.01, 1.0


class Params(NamedTuple):
    actor: Any
    critic: Any  # V; with a shared encoder it reads the actor's features


class Policy(NamedTuple):
    actor: Any
    normalizer: Statistics | None  # of observations, if they are normalized


class Exploration(NamedTuple):
    """The noise functions of state-dependent exploration that are in use."""

    matrix: Float[Array, "envs features action"]
    age: Int32[Array, ""]  # steps since all were drawn; they are due at 0


@final
class A2C(Algorithm):
    """Advantage Actor-Critic, synchronous, for discrete, multi-discrete and continuous actions."""

    name = "a2c"
    config_class = A2CConfig
    supported_actions = (Discrete, MultiDiscrete, Continuous)
    num_envs = 8
    needs_bounds = False
    config: A2CConfig

    @property
    def optimizers(self) -> Optimizers:
        return Optimizers(
            self.config,
            learning_rates={"actor": "actor_learning_rate", "critic": "critic_learning_rate"},
            clip_together=True,
        )

    def init_params(self, spec: Spec, key: Key) -> tuple[Params, Key]:
        actor_key, critic_key, key = jax.random.split(key, 3)
        actor = make_actor(
            self._head(spec), spec, self.config, self.networks, actor_key, POLICY_GAIN
        )
        critic: Any
        if self.config.share_encoder:
            features = actor.head.weight.shape[0]
            initializer = scaled(self.config.initialization, VALUE_GAIN)
            critic = StateValue(MLP(features, (), key), features, critic_key, initializer)
        else:
            remembers = self.config.memory is not None
            critic = make_value(
                spec, self.config, self.networks, critic_key, VALUE_GAIN, share=remembers
            )
        return Params(actor, critic), key

    def _head(self, spec: Spec) -> Any:
        """What makes the actor for these actions."""
        if isinstance(spec.action, Discrete):
            return CategoricalActor
        if isinstance(spec.action, MultiDiscrete):
            return partial(MultiCategoricalActor, choices=spec.action.choices)
        state_dependent = self.config.state_dependent_exploration
        head = StateDependentActor if state_dependent else GaussianActor
        log_std = self.config.initial_log_std
        if log_std is None:
            log_std = -2.0 if state_dependent else 0.0
        return partial(head, initial_log_std=log_std)

    def policy(self, state: TrainState) -> Policy:
        return Policy(state.params.actor, state.normalizer.observation)

    def init_noise(self, policy: Policy, num_envs: int) -> Tree:
        if not self.config.state_dependent_exploration:
            return ()
        return Exploration(jnp.zeros((num_envs, *policy.actor.log_std.shape)), jnp.int32(0))

    def choose(
        self,
        policy: Policy,
        noise: Tree,
        seen: Observation,
        first: Bool[Array, " envs"],
        key: Key,
        explore: bool,
    ) -> tuple[Shaped[Array, "envs *action"], Tree, Metrics]:
        """A continuous action is not clipped here: its density is that of what was drawn, and
        the border keeps it in the environment's bounds."""
        if not explore:
            return policy.actor.mode(seen), noise, {}
        chances = distribution(policy.actor, seen)
        if self.config.state_dependent_exploration:
            noise = self._redraw(policy, noise, first, key)
            mean, features = policy.actor(seen)
            action = mean + state_dependent_noise(features, noise.matrix)
        else:
            action = chances.sample(key)
        return action, noise, {"log_prob": chances.log_prob(action)}

    def _redraw(
        self, policy: Policy, noise: Exploration, first: Bool[Array, " envs"], key: Key
    ) -> Exploration:
        """New noise functions where an episode begins, and for all when their time is over: one
        clock for all, so that by default a rollout's noise is the present policy's."""
        interval = self.config.noise_reset_interval or self.config.horizon
        drawn = exploration_matrices(policy.actor.log_std, len(first), key)
        due = first | (noise.age == 0)
        matrix = jnp.where(due[:, None, None], drawn, noise.matrix)
        return Exploration(matrix, (noise.age + 1) % interval)

    def prepare(self, state: TrainState, batch: Trajectory) -> Prepared:
        """Advantages, which follow traces through time, and rows that no longer need to."""
        steps = losses.only_valid(normalization.normalize_batch(state.normalizer, batch))
        value, next_value, observation = self._values(state, steps)
        trace_decay = state.hyper["gamma"] * state.hyper["gae_lambda"]
        advantage = losses.advantages(steps, value, next_value, trace_decay)
        target = advantage + value
        if self.config.normalize_advantages:
            advantage = losses.standardized(advantage, steps.valid)
        facts = (steps.action, advantage, target, losses.weights(steps.valid))
        if steps.memory is not None:
            facts = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), facts)
        action, advantage, target, weight = map(losses.rows, facts)
        return Prepared(
            observation=observation,
            action=action,
            advantage=advantage,
            value_target=target,
            weight=weight,
            row=jnp.arange(steps.valid.size, dtype=jnp.int32),
        )

    def _values(self, state: TrainState, steps: Trajectory) -> tuple[Array, Array, Observation]:
        """V before and after each step, [time, envs], and what was seen before it, by rows: one
        environment after the other where there is a memory, otherwise one time after the other."""
        value = partial(self._value, state.params.actor, state.params.critic)
        if steps.memory is None:
            seen = losses.rows(steps.observation)
            return value(steps.observation), value(steps.next_observation), seen
        before, after = losses.histories(steps)
        shape = steps.valid.shape[::-1]
        return value(before).reshape(shape).T, value(after).reshape(shape).T, before

    def gradients(
        self, state: TrainState, batch: Prepared, key: Key, mask: UpdateMask
    ) -> tuple[Gradients, Aux]:
        """One loss for policy and value."""

        def objective(params: Params) -> tuple[Scalar, Metrics]:
            actor, critic = params
            seen = batch.observation
            if self.config.share_encoder or isinstance(critic.observation_encoder, SharedEncoder):
                seen = Features(
                    actor.observation_encoder(seen)
                )  # looked at once: one backward pass
            chances = distribution(actor, seen)
            value = self._value(actor, critic, seen)
            extra, addon_metrics = add_terms(self.loss_addons, actor, batch, key)
            actor_loss = losses.actor_loss(chances, batch) + extra
            value_loss = losses.value_loss(value, batch)
            entropy_loss = losses.entropy_loss(chances, batch)
            loss = (
                actor_loss
                + state.hyper["value_coeff"] * value_loss
                + state.hyper["entropy_coeff"] * entropy_loss
            )
            return loss, {
                "loss": loss,
                "actor_loss": actor_loss,
                "value_loss": value_loss,
                "entropy_loss": entropy_loss,
                "explained_variance": losses.explained_variance(value, batch),
                **addon_metrics,
            }

        gradients, metrics = jax.grad(objective, has_aux=True)(state.params)
        return Gradients(gradients, mask), Aux(metrics, jnp.abs(batch.advantage))

    def _value(self, actor: Any, critic: Any, seen: Observation) -> Float[Array, "*batch"]:
        if self.config.share_encoder:
            return critic(actor.encoder(actor.observation_encoder(seen)))
        return share_encoder(critic, actor)(seen)

    def value(self, state: TrainState, observation: Array) -> Float[Array, " batch"]:
        observation = normalize_observation(state.normalizer.observation, observation)
        return self._value(state.params.actor, state.params.critic, observation)

    def log_prob(
        self, state: TrainState, observation: Array, action: Array
    ) -> Float[Array, " batch"]:
        observation = normalize_observation(state.normalizer.observation, observation)
        return distribution(state.params.actor, observation).log_prob(action)

    def evaluate_actions(
        self, state: TrainState, observation: Array, action: Array
    ) -> tuple[Float[Array, " batch"], Float[Array, " batch"], Float[Array, " batch"]]:
        """Value, log-probability and entropy."""
        observation = normalize_observation(state.normalizer.observation, observation)
        chances = distribution(state.params.actor, observation)
        value = self._value(state.params.actor, state.params.critic, observation)
        return value, chances.log_prob(action), chances.entropy()

    def check(self, spec: Spec) -> None:
        super().check(spec)
        if self.config.state_dependent_exploration and not isinstance(spec.action, Continuous):
            raise ConfigError("A2C: state_dependent_exploration is for continuous actions only")
        if self.config.share_encoder and self.networks.critic_encoder is not None:
            raise ConfigError(
                "A2C: with share_encoder there is no critic_encoder: the value reads the actor's"
            )
