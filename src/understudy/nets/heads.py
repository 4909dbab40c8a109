"""Actors and critics: an encoder, and the layer that gives its features a meaning."""

from typing import Any, final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.nets.initialise import Initialiser
from understudy.nets.mlp import Linear
from understudy.types import Key

# Bounds of the log standard deviation: wide enough for any policy that still acts, narrow
# enough that exp() stays harmless in float32.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


@final
class DeterministicActor(eqx.Module):
    """observation → action in [-1, 1]^size, bounded by tanh."""

    encoder: Any
    head: Linear

    def __init__(
        self, encoder: Any, features: int, action_size: int, key: Key, initialiser: Initialiser
    ):
        self.encoder = encoder
        self.head = Linear(features, action_size, key, initialiser)

    def __call__(self, observation: Float[Array, "*batch observation"]) -> Array:
        return jnp.tanh(self.head(self.encoder(observation)))


@final
class SquashedGaussianActor(eqx.Module):
    """observation → mean and log standard deviation of a Gaussian that tanh will squash."""

    encoder: Any
    head: Linear

    def __init__(
        self, encoder: Any, features: int, action_size: int, key: Key, initialiser: Initialiser
    ):
        self.encoder = encoder
        # One product for both halves: cheaper than two thin ones.
        self.head = Linear(features, 2 * action_size, key, initialiser)

    def __call__(self, observation: Float[Array, "*batch observation"]) -> tuple[Array, Array]:
        mean, log_std = jnp.split(self.head(self.encoder(observation)), 2, axis=-1)
        return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)


@final
class QCritic(eqx.Module):
    """(observation, action) → value. The action enters at the input, beside the observation,
    so that Q can bend in the action as freely as in the state."""

    encoder: Any
    head: Linear

    def __init__(self, encoder: Any, features: int, key: Key, initialiser: Initialiser):
        self.encoder = encoder
        self.head = Linear(features, 1, key, initialiser)

    def __call__(
        self,
        observation: Float[Array, "*batch observation"],
        action: Float[Array, "*batch action"],
    ) -> Float[Array, "*batch"]:
        together = jnp.concatenate([observation, action], axis=-1)
        return self.head(self.encoder(together))[..., 0]
