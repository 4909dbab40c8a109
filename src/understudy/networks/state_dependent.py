"""Generalized state-dependent exploration (Raffin et al., 2020, arXiv 2005.05719).

The noise on an action is a linear function of the features of the state. Its matrix is drawn
once and kept for a while: equal states get equal noise, and a trajectory stays smooth. Over
draws of the matrix the action is a Gaussian, whose density the loss uses.
"""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.encoders import Identity
from understudy.networks.initializers import Initializer
from understudy.networks.mlp import Linear
from understudy.types import Key, Observation

# A state without features would have no noise, and its action no density.
_SMALLEST_VARIANCE = 1e-6


@final
class StateDependentActor(eqx.Module):
    """observation → the action's mean, and the features that make its noise."""

    observation_encoder: Any
    encoder: Any
    head: Linear
    log_std: Float[Array, "features action"]

    def __init__(
        self,
        encoder: Any,
        features: int,
        action_size: int,
        key: Key,
        initializer: Initializer,
        initial_log_std: int | float = -2.0,
    ):
        self.observation_encoder, self.encoder = Identity(), encoder
        self.head = Linear(features, action_size, key, initializer)
        self.log_std = jnp.full((features, action_size), initial_log_std, jnp.float32)

    def __call__(
        self, observation: Observation
    ) -> tuple[Float[Array, "*batch action"], Float[Array, "*batch features"]]:
        features = self.encoder(self.observation_encoder(observation))
        return self.head(features), features

    def mode(self, observation: Observation) -> Array:
        return self(observation)[0]


def state_dependent_std(
    features: Float[Array, "*batch features"], log_std: Float[Array, "features action"]
) -> Float[Array, "*batch action"]:
    """The standard deviation of each dimension of the action, over draws of the matrix.

    The features enter without a gradient, as in the authors' code: they are learned for the
    mean, and `log_std` alone is learned for the noise.
    """
    fixed = jax.lax.stop_gradient(features)
    return jnp.sqrt(fixed**2 @ jnp.exp(log_std) ** 2 + _SMALLEST_VARIANCE)


def exploration_matrices(
    log_std: Float[Array, "features action"], num_envs: int, key: Key
) -> Float[Array, "{num_envs} features action"]:
    """One matrix for each environment, with entries from N(0, exp(log_std)²)."""
    return jnp.exp(log_std) * jax.random.normal(key, (num_envs, *log_std.shape))


def state_dependent_noise(
    features: Float[Array, "envs features"], matrix: Float[Array, "envs features action"]
) -> Float[Array, "envs action"]:
    """What is added to the mean of each environment's action while its matrix is kept."""
    return jnp.einsum("ef,efa->ea", features, matrix)
