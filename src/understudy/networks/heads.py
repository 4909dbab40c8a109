"""Actors and critics: an observation encoder, hidden layers (`encoder`) and a linear head.

The observation encoder does nothing to plain vectors. Calling an actor returns what its losses
need: an action or a distribution. `mode` returns the action without exploration.
"""

import itertools
import math
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.encoders import Identity
from understudy.networks.mlp import MLP, Linear
from understudy.ops.distributions import Categorical, Gaussian, MultiCategorical
from understudy.ops.return_distributions import ReturnForm
from understudy.types import ConfigError, Key, Observation

# Bounds of the log standard deviation: wide enough for any policy that still acts, narrow
# enough that exp() stays harmless in float32.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0

# Bounds of a standard deviation that is not squashed: actions are in [-1, 1], and a larger
# deviation would put most samples on the bounds.
STD_MIN, STD_MAX = 1e-4, 1.0

# Without it, a state whose features are all zero would have no state-dependent noise and its action
# no density.
SMALLEST_VARIANCE = 1e-6


class Network(eqx.Module):
    """What actors and critics have in common. Abstract."""

    outputs_per_size: ClassVar[int] = 1  # of the head, for each number that an action consists of

    observation_encoder: Any = eqx.field(default_factory=Identity, kw_only=True)
    encoder: Any
    head: Linear

    def outputs(self, observation: Observation) -> Float[Array, "*batch outputs"]:
        """Return the outputs of the head."""
        return self.head(self.encoder(self.observation_encoder(observation)))

    def mode(self, observation: Observation) -> Array:
        """Return the action without exploration, of an actor that returns a distribution."""
        return self(observation).mode()  # pyright: ignore[reportCallIssue]


@final
class DeterministicActor(Network):
    """observation → action in [-1, 1]^size, bounded by tanh."""

    def __call__(self, observation: Observation) -> Array:
        return jnp.tanh(self.outputs(observation))

    def mode(self, observation: Observation) -> Array:
        return self(observation)


@final
class SquashedGaussianActor(Network):
    """observation → mean and log standard deviation of a Gaussian that tanh will squash."""

    outputs_per_size = 2  # one product for both halves is cheaper than two thin ones

    def __call__(self, observation: Observation) -> tuple[Array, Array]:
        mean, log_std = jnp.split(self.outputs(observation), 2, axis=-1)
        return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)

    def mode(self, observation: Observation) -> Array:
        return jnp.tanh(self(observation)[0])


@final
class GaussianActor(Network):
    """observation → a Gaussian whose log standard deviation is a parameter, equal in all states."""

    log_std: Float[Array, " action"]

    def __init__(self, encoder: Any, head: Linear, initial_log_std: int | float = 0.0):
        super().__init__(encoder, head)
        self.log_std = jnp.full(head.bias.shape, initial_log_std, jnp.float32)

    def __call__(self, observation: Observation) -> Gaussian:
        return Gaussian(self.outputs(observation), self.log_std)


@final
class StateDependentActor(Network):
    """observation → a Gaussian whose standard deviation depends on the features of the state:
    generalized state-dependent exploration (Raffin et al., 2020, arXiv 2005.05719).

    The noise on an action is a linear function of the features of the state. Its matrix is drawn
    once and used for several steps: equal states get equal noise, and a trajectory stays smooth.
    Over draws of the matrix the action is a Gaussian, whose density the loss uses.
    """

    log_std: Float[Array, "features action"]

    def __init__(self, encoder: Any, head: Linear, initial_log_std: int | float = -2.0):
        super().__init__(encoder, head)
        self.log_std = jnp.full(head.weight.shape, initial_log_std, jnp.float32)

    def __call__(self, observation: Observation) -> Gaussian:
        mean, features = self.mean_and_features(observation)
        return Gaussian(mean, jnp.log(state_dependent_std(features, self.log_std)))

    def mean_and_features(
        self, observation: Observation
    ) -> tuple[Float[Array, "*batch action"], Float[Array, "*batch features"]]:
        """Return the action's mean, and the features that its noise is a function of."""
        features = self.encoder(self.observation_encoder(observation))
        return self.head(features), features


@final
class BoundedGaussianActor(Network):
    """observation → a Gaussian of mean in [-1, 1] and standard deviation in [1e-4, 1].

    The deviation is a logistic function: for small deviations it equals softplus's tail, and it
    approaches its upper bound smoothly. A clipped deviation would have no gradient there.
    """

    outputs_per_size = 2

    def __init__(self, encoder: Any, head: Linear, initial_std: int | float = 0.5):
        if not STD_MIN < initial_std < STD_MAX:
            raise ConfigError(
                f"an initial std must be between {STD_MIN:g} and {STD_MAX:g}, got {initial_std:g}"
            )
        size = head.bias.shape[0] // 2
        part = (initial_std - STD_MIN) / (STD_MAX - STD_MIN)
        # The half that makes the deviation starts without weights: `initial_std` in every state.
        weight = head.weight.at[:, size:].set(0.0)
        bias = head.bias.at[size:].set(math.log(part / (1.0 - part)))
        head = eqx.tree_at(lambda head: (head.weight, head.bias), head, (weight, bias))
        super().__init__(encoder, head)

    def __call__(self, observation: Observation) -> Gaussian:
        mean, spread = jnp.split(self.outputs(observation), 2, axis=-1)
        std = STD_MIN + (STD_MAX - STD_MIN) * jax.nn.sigmoid(spread)
        return Gaussian(jnp.tanh(mean), jnp.log(std))


@final
class CategoricalActor(Network):
    """observation → a distribution over one choice."""

    def __call__(self, observation: Observation) -> Categorical:
        return Categorical(self.outputs(observation))


@final
class MultiCategoricalActor(Network):
    """observation → independent distributions over several choices, of `choices[i]` each."""

    choices: tuple[int, ...] = eqx.field(static=True)

    def __check_init__(self):
        outputs = self.head.bias.shape[0]
        if sum(self.choices) != outputs:
            raise ValueError(f"{self.choices} are {sum(self.choices)} choices, not {outputs}")

    def __call__(self, observation: Observation) -> MultiCategorical:
        ends = list(itertools.accumulate(self.choices))[:-1]
        return MultiCategorical(tuple(jnp.split(self.outputs(observation), ends, axis=-1)))


@final
class QCritic(Network):
    """(observation, action) → value. The action is an input of the first layer, beside the
    observation, so that Q can be as nonlinear in the action as in the state. Actions may have one
    more axis than observations: several actions in each state."""

    distribution: ReturnForm | None = eqx.field(static=True, default=None)  # None: a scalar head

    def __call__(
        self, observation: Observation, action: Float[Array, "*batch action"]
    ) -> Float[Array, "*batch"]:
        outputs = self.return_parameters(observation, action)
        return outputs[..., 0] if self.distribution is None else self.distribution.mean(outputs)

    def return_parameters(
        self, observation: Observation, action: Float[Array, "*batch action"]
    ) -> Float[Array, "*batch n"]:
        """Return the outputs of the head: the parameters of the distribution of returns."""
        state = self.observation_encoder(observation)
        if action.ndim > state.ndim:
            if isinstance(self.encoder, MLP) and self.encoder.layers:
                return self.head(self.encoder.with_each(state, action))
            state = jnp.repeat(state[..., None, :], action.shape[-2], axis=-2)
        inputs = jnp.concatenate([state, action], axis=-1)
        return self.head(self.encoder(inputs))


@final
class StateValue(Network):
    """observation → value."""

    def __call__(self, observation: Observation) -> Float[Array, "*batch"]:
        return self.outputs(observation)[..., 0]


@final
class QValues(Network):
    """observation → the value of each choice."""

    distribution: ReturnForm | None = eqx.field(static=True, default=None)  # None: a scalar head

    def __call__(self, observation: Observation) -> Float[Array, "*batch choices"]:
        if self.distribution is None:
            return self.outputs(observation)
        return self.distribution.mean(self.return_parameters(observation))

    def return_parameters(self, observation: Observation) -> Float[Array, "*batch choices n"]:
        """Return the parameters of the distribution of returns of each choice."""
        return _by_choice(self.outputs(observation), self.distribution)


@final
class DuelingQValues(eqx.Module):
    """observation → V + A - mean(A): the value of each choice (Wang et al., 2016, eq. 9).

    `streams` are the hidden layers that V and A do not share. Two bare linear layers on the same
    features would be equal to one linear layer. With a distribution of returns, the equation holds
    for each of its parameters.
    """

    observation_encoder: Any = eqx.field(default_factory=Identity, kw_only=True)
    encoder: Any
    streams: tuple[Any, Any]
    value: Linear
    advantage: Linear
    distribution: ReturnForm | None = eqx.field(static=True, default=None)  # None: a scalar head

    def __call__(self, observation: Observation) -> Float[Array, "*batch choices"]:
        if self.distribution is not None:
            return self.distribution.mean(self.return_parameters(observation))
        value, advantage = self._streams(observation)
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)

    def return_parameters(self, observation: Observation) -> Float[Array, "*batch choices n"]:
        """Return the parameters of the distribution of returns of each choice."""
        value, advantage = (_by_choice(x, self.distribution) for x in self._streams(observation))
        return value + advantage - jnp.mean(advantage, axis=-2, keepdims=True)

    def _streams(self, observation: Observation) -> tuple[Array, Array]:
        shared = self.encoder(self.observation_encoder(observation))
        return self.value(self.streams[0](shared)), self.advantage(self.streams[1](shared))


def _by_choice(outputs: Float[Array, "*batch outputs"], form: ReturnForm | None) -> Array:
    """Give the outputs of a head an axis of choices: [*batch, choices, parameters]."""
    return outputs.reshape(*outputs.shape[:-1], -1, 1 if form is None else form.size)


def state_dependent_std(
    features: Float[Array, "*batch features"], log_std: Float[Array, "features action"]
) -> Float[Array, "*batch action"]:
    """Return the standard deviation of each action dimension, over draws of the matrix.

    The features enter without a gradient, as in the authors' code: they are learned for the
    mean, and `log_std` alone is learned for the noise.
    """
    fixed = jax.lax.stop_gradient(features)
    return jnp.sqrt(fixed**2 @ jnp.exp(log_std) ** 2 + SMALLEST_VARIANCE)


def exploration_matrices(
    log_std: Float[Array, "features action"], num_envs: int, key: Key
) -> Float[Array, "{num_envs} features action"]:
    """Draw one matrix for each environment, with entries from N(0, exp(log_std)²)."""
    return jnp.exp(log_std) * jax.random.normal(key, (num_envs, *log_std.shape))


def state_dependent_noise(
    features: Float[Array, "envs features"], matrix: Float[Array, "envs features action"]
) -> Float[Array, "envs action"]:
    """Return the noise to add to the mean of each environment's action."""
    return jnp.einsum("ef,efa->ea", features, matrix)
