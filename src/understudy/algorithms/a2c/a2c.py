"""A2C: networks, exploration and the order of an update. The maths is in losses.py."""

from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.algorithms.a2c import losses
from understudy.algorithms.a2c.config import A2CConfig
from understudy.algorithms.a2c.losses import Prepared
from understudy.algorithms.aux_losses import add_terms
from understudy.algorithms.base import ActorPolicy, Algorithm, Aux, Explored, First, PerRow, Result
from understudy.algorithms.normalization import normalize_batch
from understudy.algorithms.optim import Gradients, Optimizers, UpdateMask
from understudy.algorithms.train_state import ActorCritic, TrainState
from understudy.networks import (
    MLP,
    CategoricalActor,
    GaussianActor,
    Linear,
    MultiCategoricalActor,
    StateDependentActor,
    StateValue,
    share_encoder,
)
from understudy.networks.build import make_actor, make_value
from understudy.networks.encoders import Features, SharedEncoder, encode_each
from understudy.networks.heads import exploration_matrices, state_dependent_noise
from understudy.networks.mlp import scaled
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

# A policy that starts near zero explores in all directions alike.
POLICY_GAIN, VALUE_GAIN = 0.01, 1.0


class Exploration(NamedTuple):
    """The noise functions of state-dependent exploration that are in use."""

    matrix: Float[Array, "envs features action"]
    age: Int32[Array, ""]  # steps since all were drawn; at 0 they are drawn again


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
        return Optimizers(self.config, clip_together=True)

    def init_params(self, spec: Spec, key: Key) -> tuple[ActorCritic, Key]:
        actor_key, critic_key, key = jax.random.split(key, 3)
        config, (kind, settings) = self.config, self._actor_class(spec)
        actor = make_actor(
            kind, spec, config, self.networks, actor_key, POLICY_GAIN, settings=settings
        )
        critic: Any  # V; with a shared encoder it reads the actor's features
        if config.share_encoder:
            features = actor.head.weight.shape[0]
            head = Linear(features, 1, critic_key, scaled(config.initialization, VALUE_GAIN))
            critic = StateValue(MLP(features, (), key), head)
        else:
            share = config.memory is not None
            critic = make_value(spec, config, self.networks, critic_key, VALUE_GAIN, share)
        return ActorCritic(actor, critic), key

    def _actor_class(self, spec: Spec) -> tuple[Any, dict[str, Any]]:
        """Return the class of the actor for these actions, and its settings."""
        if isinstance(spec.action, Discrete):
            return CategoricalActor, {}
        if isinstance(spec.action, MultiDiscrete):
            return MultiCategoricalActor, {"choices": spec.action.choices}
        state_dependent = self.config.state_dependent_exploration
        kind = StateDependentActor if state_dependent else GaussianActor
        log_std = self.config.initial_log_std
        return kind, {} if log_std is None else {"initial_log_std": log_std}

    def init_noise(self, policy: ActorPolicy, num_envs: int) -> Tree:
        if not self.config.state_dependent_exploration:
            return ()
        return Exploration(jnp.zeros((num_envs, *policy.actor.log_std.shape)), jnp.int32(0))

    def explore(
        self, policy: ActorPolicy, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        """Continuous actions are not clipped here: their density is that of the sample, and
        `envs` clips them to the environment's bounds."""
        distribution = policy.actor(observation)
        if self.config.state_dependent_exploration:
            noise = self._redraw(policy, noise, first, key)
            mean, features = policy.actor.mean_and_features(observation)
            action = mean + state_dependent_noise(features, noise.matrix)
        else:
            action = distribution.sample(key)
        return action, noise, {"log_prob": distribution.log_prob(action)}

    def _redraw(
        self, policy: ActorPolicy, noise: Exploration, first: First, key: Key
    ) -> Exploration:
        """Draw new noise functions where an episode begins, and for all environments at once when
        the interval is over: by default a rollout's noise is that of the present policy."""
        interval = self.config.noise_reset_interval or self.config.horizon
        drawn = exploration_matrices(policy.actor.log_std, len(first), key)
        renewed = first | (noise.age == 0)
        matrix = jnp.where(renewed[:, None, None], drawn, noise.matrix)
        return Exploration(matrix, (noise.age + 1) % interval)

    def prepare(self, state: TrainState, batch: Trajectory) -> Prepared:
        """Compute advantages, which follow traces through time, and put all steps into rows."""
        steps = losses.only_valid(normalize_batch(state.normalizer, batch))
        value, next_value, observation = self._values(state, steps)
        trace_decay = state.hyper["gamma"] * state.hyper["gae_lambda"]
        advantage = losses.advantages(steps, value, next_value, trace_decay)
        target = advantage + value
        if self.config.normalize_advantages:
            advantage = losses.standardized(advantage, steps.valid)
        columns = (steps.action, advantage, target, losses.weights(steps.valid))
        if steps.memory is not None:
            columns = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), columns)
        row = jnp.arange(steps.valid.size, dtype=jnp.int32)
        action, advantage, target, weight = map(losses.rows, columns)
        return Prepared(observation, action, advantage, target, weight, row)

    def _values(self, state: TrainState, steps: Trajectory) -> tuple[Array, Array, Observation]:
        """Return V before and after each step, [time, envs], and the observations before it as
        rows: ordered by environment for recurrent networks, otherwise by time."""
        value = partial(self._value, state.params.actor, state.params.critic)
        if steps.memory is None:
            rows = losses.rows(steps.observation)
            return value(steps.observation), value(steps.next_observation), rows
        before, after = losses.histories(steps)
        features = encode_each(state.params.actor.observation_encoder, before, after)
        here, there = (value(Features(x)).reshape(steps.valid.shape[::-1]).T for x in features)
        return here, there, before

    def gradients(self, state: TrainState, batch: Prepared, key: Key, mask: UpdateMask) -> Result:
        """One loss for policy and value."""

        def objective(params: ActorCritic) -> tuple[Scalar, Metrics]:
            actor, critic = params
            observation = batch.observation
            shared = isinstance(critic.observation_encoder, SharedEncoder)
            if self.config.share_encoder or shared:
                # Encoded once: one backward pass.
                observation = Features(actor.observation_encoder(observation))
            distribution = actor(observation)
            value = self._value(actor, critic, observation)
            extra, addon_metrics = add_terms(self.loss_addons, actor, batch, key)
            actor_loss = losses.actor_loss(distribution, batch) + extra
            value_loss = losses.value_loss(value, batch)
            entropy_loss = losses.entropy_loss(distribution, batch)
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

    def _value(self, actor: Any, critic: Any, observation: Observation) -> Float[Array, "*batch"]:
        if self.config.share_encoder:
            return critic(actor.encoder(actor.observation_encoder(observation)))
        return share_encoder(critic, actor)(observation)

    def value(self, state: TrainState, observation: Array) -> PerRow:
        return self._value(state.params.actor, state.params.critic, observation)

    def log_prob(self, state: TrainState, observation: Array, action: Array) -> PerRow:
        return state.params.actor(observation).log_prob(action)

    def evaluate_actions(
        self, state: TrainState, observation: Array, action: Array
    ) -> tuple[PerRow, PerRow, PerRow]:
        """Return value, log-probability and entropy."""
        distribution = state.params.actor(observation)
        value = self.value(state, observation)
        return value, distribution.log_prob(action), distribution.entropy()

    def check(self, spec: Spec) -> None:
        super().check(spec)
        if self.config.state_dependent_exploration and not isinstance(spec.action, Continuous):
            raise ConfigError("A2C: state_dependent_exploration is for continuous actions only")
        if self.config.share_encoder and self.networks.critic_encoder is not None:
            raise ConfigError(
                "A2C: with share_encoder there is no critic_encoder: the value reads the actor's"
            )
