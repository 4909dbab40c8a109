"""Generalized state-dependent exploration (Raffin et al., 2020, arXiv 2005.05719).

The noise on an action is a linear function of the features of the state. Its matrix is drawn
once and used for several steps: equal states get equal noise, and a trajectory stays smooth. Over
draws of the matrix the action is a Gaussian, whose density the loss uses.
"""

from typing import Any, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.heads import Network
from understudy.networks.mlp import Linear
from understudy.ops.distributions import Gaussian
from understudy.types import Key, Observation

# Without it, a state whose features are all zero would have no noise and its action no density.
_SMALLEST_VARIANCE = 1e-6


@final
class StateDependentActor(Network):
    """observation → a Gaussian whose standard deviation depends on the features of the state."""

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


def state_dependent_std(
    features: Float[Array, "*batch features"], log_std: Float[Array, "features action"]
) -> Float[Array, "*batch action"]:
    """Return the standard deviation of each action dimension, over draws of the matrix.

    The features enter without a gradient, as in the authors' code: they are learned for the
    mean, and `log_std` alone is learned for the noise.
    """
    fixed = jax.lax.stop_gradient(features)
    return jnp.sqrt(fixed**2 @ jnp.exp(log_std) ** 2 + _SMALLEST_VARIANCE)


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
