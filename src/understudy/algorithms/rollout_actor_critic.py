"""An actor and a value network that learn from rollouts: how A2C and PPO make them, act with them
and prepare a rollout. Functions of a config; the algorithms are composed of them."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, Shaped

from understudy.algorithms import rollouts
from understudy.algorithms.base import Algorithm, Explored, First, PerRow
from understudy.algorithms.normalization import normalize_batch
from understudy.algorithms.rollouts import Distribution
from understudy.algorithms.train_state import ActorCritic, TrainState
from understudy.networks import (
    MLP,
    CategoricalActor,
    GaussianActor,
    Linear,
    MultiCategoricalActor,
    Networks,
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
    MultiDiscrete,
    Observation,
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


class Rollout(NamedTuple):
    """A rollout with its advantages. The columns are [time, envs]; with memory [envs, time]."""

    observation: Observation  # rows ordered like the columns; with memory the histories
    action: Shaped[Array, "one other *action"]
    value: Float[Array, "one other"]
    advantage: Float[Array, "one other"]
    value_target: Float[Array, "one other"]
    weight: Float[Array, "one other"]  # 0 for rows without a step; its mean is 1
    extras: dict[str, Float[Array, "one other"]] | None  # of acting


def init_actor_critic(
    config: Any, networks: Networks, spec: Spec, key: Key
) -> tuple[ActorCritic, Key]:
    """Make both networks; also return the key to continue with."""
    actor_key, critic_key, key = jax.random.split(key, 3)
    kind, settings = _actor_class(config, spec)
    actor = make_actor(kind, spec, config, networks, actor_key, POLICY_GAIN, settings=settings)
    critic: Any  # V; with a shared encoder it reads the actor's features
    if config.share_encoder:
        features = actor.head.weight.shape[0]
        head = Linear(features, 1, critic_key, scaled(config.initialization, VALUE_GAIN))
        critic = StateValue(MLP(features, (), key), head)
    else:
        share = config.memory is not None
        critic = make_value(spec, config, networks, critic_key, VALUE_GAIN, share)
    return ActorCritic(actor, critic), key


def _actor_class(config: Any, spec: Spec) -> tuple[Any, dict[str, Any]]:
    """Return the class of the actor for these actions, and its settings."""
    if isinstance(spec.action, Discrete):
        return CategoricalActor, {}
    if isinstance(spec.action, MultiDiscrete):
        return MultiCategoricalActor, {"choices": spec.action.choices}
    kind = StateDependentActor if config.state_dependent_exploration else GaussianActor
    log_std = config.initial_log_std
    return kind, {} if log_std is None else {"initial_log_std": log_std}


def check_actor_critic(algorithm: Algorithm, spec: Spec) -> None:
    """Refuse settings that do not fit the actions or the user's networks."""
    name, config = algorithm.name.upper(), algorithm.config
    if config.state_dependent_exploration and not isinstance(spec.action, Continuous):
        raise ConfigError(f"{name}: state_dependent_exploration is for continuous actions only")
    if config.share_encoder and algorithm.networks.critic_encoder is not None:
        raise ConfigError(
            f"{name}: with share_encoder there is no critic_encoder: the value reads the actor's"
        )


# -- acting -----------------------------------------------------------------------------------


def init_noise(config: Any, policy: Any, num_envs: int) -> Tree:
    """Return the state of the exploration noise before the first step."""
    if not config.state_dependent_exploration:
        return ()
    return Exploration(jnp.zeros((num_envs, *policy.actor.log_std.shape)), jnp.int32(0))


def explore(
    config: Any, policy: Any, noise: Tree, observation: Observation, first: First, key: Key
) -> Explored:
    """Return actions, the noise state after them, and their log-probabilities.

    Continuous actions are not clipped here: their density is that of the sample, and `envs` clips
    them to the environment's bounds."""
    distribution = policy.actor(observation)
    if config.state_dependent_exploration:
        noise = _redraw(config, policy, noise, first, key)
        mean, features = policy.actor.mean_and_features(observation)
        action = mean + state_dependent_noise(features, noise.matrix)
    else:
        action = distribution.sample(key)
    return action, noise, {"log_prob": distribution.log_prob(action)}


def _redraw(config: Any, policy: Any, noise: Exploration, first: First, key: Key) -> Exploration:
    """Draw new noise functions where an episode begins, and for all environments at once when the
    interval is over: by default a rollout's noise is that of the present policy."""
    interval = config.noise_reset_interval or config.horizon
    drawn = exploration_matrices(policy.actor.log_std, len(first), key)
    renewed = first | (noise.age == 0)
    matrix = jnp.where(renewed[:, None, None], drawn, noise.matrix)
    return Exploration(matrix, (noise.age + 1) % interval)


# -- learning ---------------------------------------------------------------------------------


def prepare_rollout(config: Any, state: TrainState, batch: Trajectory) -> Rollout:
    """Normalize a rollout and compute its advantages, which follow traces through time."""
    steps = rollouts.only_valid(normalize_batch(state.normalizer, batch))
    value, next_value, observation = _values(config, state, steps)
    trace_decay = state.hyper["gamma"] * state.hyper["gae_lambda"]
    advantage = rollouts.advantages(steps, value, next_value, trace_decay)
    target = advantage + value
    if config.normalize_advantages:
        advantage = rollouts.standardized(advantage, steps.valid)
    weight = rollouts.weights(steps.valid)
    columns: Any = (steps.action, value, advantage, target, weight, steps.extras)
    if steps.memory is not None:
        columns = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), columns)
    return Rollout(observation, *columns)


def _values(
    config: Any, state: TrainState, steps: Trajectory
) -> tuple[Float[Array, "time envs"], Float[Array, "time envs"], Observation]:
    """Return V before and after each step, and the observations before it as rows: ordered by
    environment for recurrent networks, otherwise by time."""
    value = partial(value_of, config, state.params.actor, state.params.critic)
    if steps.memory is None:
        rows = rollouts.rows(steps.observation)
        return value(steps.observation), value(steps.next_observation), rows
    before, after = rollouts.histories(steps)
    features = encode_each(state.params.actor.observation_encoder, before, after)
    here, there = (value(Features(x)).reshape(steps.valid.shape[::-1]).T for x in features)
    return here, there, before


def value_of(
    config: Any, actor: Any, critic: Any, observation: Observation
) -> Float[Array, "*batch"]:
    """Return V, which may read the actor's features."""
    if config.share_encoder:
        return critic(actor.encoder(actor.observation_encoder(observation)))
    return share_encoder(critic, actor)(observation)


def distribution_and_value(
    config: Any, params: ActorCritic, observation: Observation
) -> tuple[Distribution, PerRow]:
    """Return the policy and V in the loss."""
    actor, critic = params
    if config.share_encoder or isinstance(critic.observation_encoder, SharedEncoder):
        # Encoded once: one backward pass.
        observation = Features(actor.observation_encoder(observation))
    return actor(observation), value_of(config, actor, critic, observation)


def evaluate_actions(
    config: Any, params: Any, observation: Array, action: Array
) -> tuple[PerRow, PerRow, PerRow]:
    """Return value, log-probability and entropy."""
    distribution = params.actor(observation)
    value = value_of(config, params.actor, params.critic, observation)
    return value, distribution.log_prob(action), distribution.entropy()
