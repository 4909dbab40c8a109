"""Actors and critics: an encoder, and the layer that gives its features a meaning.

Before its encoder every one has `observation_encoder` (see there), which do nothing where observations are
vectors and nothing need be remembered. Called, an actor answers with what its losses need: an
action, or what describes a distribution. `mode` is the action it would take if it did not explore.
"""

import itertools
import math
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.encoders import Identity
from understudy.networks.initializers import Initializer
from understudy.networks.mlp import Linear
from understudy.ops.distributions import Categorical, Gaussian, MultiCategorical
from understudy.types import ConfigError, Key, Observation

# Bounds of the log standard deviation: wide enough for any policy that still acts, narrow
# enough that exp() stays harmless in float32.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0

# Bounds of a standard deviation that is not squashed: actions live in [-1, 1], and what spreads
# further than that lands on the bounds.
STD_MIN, STD_MAX = 1e-4, 1.0


@final
class DeterministicActor(eqx.Module):
    """observation → action in [-1, 1]^size, bounded by tanh."""

    observation_encoder: Any
    encoder: Any
    head: Linear

    def __init__(
        self, encoder: Any, features: int, action_size: int, key: Key, initializer: Initializer
    ):
        self.observation_encoder, self.encoder = Identity(), encoder
        self.head = Linear(features, action_size, key, initializer)

    def __call__(self, observation: Observation) -> Array:
        return jnp.tanh(self.head(self.encoder(self.observation_encoder(observation))))

    def mode(self, observation: Observation) -> Array:
        return self(observation)


@final
class SquashedGaussianActor(eqx.Module):
    """observation → mean and log standard deviation of a Gaussian that tanh will squash."""

    observation_encoder: Any
    encoder: Any
    head: Linear

    def __init__(
        self, encoder: Any, features: int, action_size: int, key: Key, initializer: Initializer
    ):
        self.observation_encoder, self.encoder = Identity(), encoder
        # One product for both halves: cheaper than two thin ones.
        self.head = Linear(features, 2 * action_size, key, initializer)

    def __call__(self, observation: Observation) -> tuple[Array, Array]:
        mean, log_std = jnp.split(
            self.head(self.encoder(self.observation_encoder(observation))), 2, axis=-1
        )
        return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)

    def mode(self, observation: Observation) -> Array:
        return jnp.tanh(self(observation)[0])


@final
class GaussianActor(eqx.Module):
    """observation → a Gaussian whose log standard deviation is a parameter, the same everywhere."""

    observation_encoder: Any
    encoder: Any
    head: Linear
    log_std: Float[Array, " action"]

    def __init__(
        self,
        encoder: Any,
        features: int,
        action_size: int,
        key: Key,
        initializer: Initializer,
        initial_log_std: int | float = 0.0,
    ):
        self.observation_encoder, self.encoder = Identity(), encoder
        self.head = Linear(features, action_size, key, initializer)
        self.log_std = jnp.full(action_size, initial_log_std, jnp.float32)

    def __call__(self, observation: Observation) -> Gaussian:
        return Gaussian(
            self.head(self.encoder(self.observation_encoder(observation))), self.log_std
        )

    def mode(self, observation: Observation) -> Array:
        return self(observation).mode()


@final
class BoundedGaussianActor(eqx.Module):
    """observation → a Gaussian of mean in [-1, 1] and standard deviation in [1e-4, 1].

    The logistic curve is as good as softplus's tail where the deviation is small, and it nears
    its upper bound smoothly: a clipped deviation would have no gradient to come back by.
    """

    observation_encoder: Any
    encoder: Any
    head: Linear

    def __init__(
        self,
        encoder: Any,
        features: int,
        action_size: int,
        key: Key,
        initializer: Initializer,
        initial_std: int | float = 0.5,
    ):
        if not STD_MIN < initial_std < STD_MAX:
            raise ConfigError(
                f"an initial std must be between {STD_MIN:g} and {STD_MAX:g}, got {initial_std:g}"
            )
        self.observation_encoder, self.encoder = Identity(), encoder
        part = (initial_std - STD_MIN) / (STD_MAX - STD_MIN)
        head = Linear(features, 2 * action_size, key, initializer)
        # The half that makes the deviation starts without weights: `initial_std` in every state.
        self.head = eqx.tree_at(
            lambda head: (head.weight, head.bias),
            head,
            (
                head.weight.at[:, action_size:].set(0.0),
                head.bias.at[action_size:].set(math.log(part / (1.0 - part))),
            ),
        )

    def __call__(self, observation: Observation) -> Gaussian:
        mean, spread = jnp.split(
            self.head(self.encoder(self.observation_encoder(observation))), 2, axis=-1
        )
        std = STD_MIN + (STD_MAX - STD_MIN) * jax.nn.sigmoid(spread)
        return Gaussian(jnp.tanh(mean), jnp.log(std))

    def mode(self, observation: Observation) -> Array:
        return self(observation)[0]


@final
class CategoricalActor(eqx.Module):
    """observation → a distribution over one choice."""

    observation_encoder: Any
    encoder: Any
    head: Linear

    def __init__(
        self, encoder: Any, features: int, action_size: int, key: Key, initializer: Initializer
    ):
        self.observation_encoder, self.encoder = Identity(), encoder
        self.head = Linear(features, action_size, key, initializer)

    def __call__(self, observation: Observation) -> Categorical:
        return Categorical(self.head(self.encoder(self.observation_encoder(observation))))

    def mode(self, observation: Observation) -> Array:
        return self(observation).mode()


@final
class MultiCategoricalActor(eqx.Module):
    """observation → independent distributions over several choices, of `choices[i]` each."""

    observation_encoder: Any
    encoder: Any
    head: Linear
    choices: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        encoder: Any,
        features: int,
        action_size: int,
        key: Key,
        initializer: Initializer,
        choices: tuple[int, ...],
    ):
        if sum(choices) != action_size:
            raise ValueError(f"{choices} are {sum(choices)} choices, not {action_size}")
        self.observation_encoder, self.encoder = Identity(), encoder
        self.head = Linear(features, action_size, key, initializer)
        self.choices = choices

    def __call__(self, observation: Observation) -> MultiCategorical:
        ends = list(itertools.accumulate(self.choices))[:-1]
        return MultiCategorical(
            tuple(
                jnp.split(
                    self.head(self.encoder(self.observation_encoder(observation))), ends, axis=-1
                )
            )
        )

    def mode(self, observation: Observation) -> Array:
        return self(observation).mode()


@final
class QCritic(eqx.Module):
    """(observation, action) → value. The action enters at the input, beside the observation,
    so that Q can bend in the action as freely as in the state."""

    observation_encoder: Any
    encoder: Any
    head: Linear

    def __init__(self, encoder: Any, features: int, key: Key, initializer: Initializer):
        self.observation_encoder, self.encoder = Identity(), encoder
        self.head = Linear(features, 1, key, initializer)

    def __call__(
        self,
        observation: Observation,
        action: Float[Array, "*batch action"],
    ) -> Float[Array, "*batch"]:
        together = jnp.concatenate([self.observation_encoder(observation), action], axis=-1)
        return self.head(self.encoder(together))[..., 0]


@final
class StateValue(eqx.Module):
    """observation → value."""

    observation_encoder: Any
    encoder: Any
    head: Linear

    def __init__(self, encoder: Any, features: int, key: Key, initializer: Initializer):
        self.observation_encoder, self.encoder = Identity(), encoder
        self.head = Linear(features, 1, key, initializer)

    def __call__(self, observation: Observation) -> Float[Array, "*batch"]:
        return self.head(self.encoder(self.observation_encoder(observation)))[..., 0]


@final
class QValues(eqx.Module):
    """observation → the value of each choice."""

    observation_encoder: Any
    encoder: Any
    head: Linear

    def __init__(
        self, encoder: Any, features: int, choices: int, key: Key, initializer: Initializer
    ):
        self.observation_encoder, self.encoder = Identity(), encoder
        self.head = Linear(features, choices, key, initializer)

    def __call__(self, observation: Observation) -> Float[Array, "*batch choices"]:
        return self.head(self.encoder(self.observation_encoder(observation)))


@final
class DuelingQValues(eqx.Module):
    """observation → V + A - mean(A): the value of each choice (Wang et al., 2016, eq. 9).

    `streams` are what V and A do not share: hidden layers of their own. Two bare linear layers
    on the same features would be one linear layer again.
    """

    observation_encoder: Any
    encoder: Any
    streams: tuple[Any, Any]
    value: Linear
    advantage: Linear

    def __init__(
        self,
        encoder: Any,
        streams: tuple[Any, Any],
        features: int,
        choices: int,
        key: Key,
        initializer: Initializer,
    ):
        value_key, advantage_key = jax.random.split(key)
        self.observation_encoder, self.encoder = Identity(), encoder
        self.streams = streams
        self.value = Linear(features, 1, value_key, initializer)
        self.advantage = Linear(features, choices, advantage_key, initializer)

    def __call__(self, observation: Observation) -> Float[Array, "*batch choices"]:
        shared = self.encoder(self.observation_encoder(observation))
        value = self.value(self.streams[0](shared))
        advantage = self.advantage(self.streams[1](shared))
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)
