"""Densities of actions: Gaussians, and Gaussians squashed by tanh into (-1, 1)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.types import Key

_LOG_TWO_PI = 1.8378770664093453
# atanh is evaluated at most this close to ±1, so that the log-probability of an action on the
# bound is finite in float32.
_LARGEST_SQUASHED = 1.0 - 1e-6


def gaussian_log_prob(
    value: Float[Array, "*batch action"],
    mean: Float[Array, "*batch action"],
    log_std: Float[Array, "*batch action"],
) -> Float[Array, "*batch"]:
    """Log-density of independent Gaussians, summed over the action's dimensions."""
    standardized = (value - mean) * jnp.exp(-log_std)
    return jnp.sum(-0.5 * (standardized**2 + _LOG_TWO_PI) - log_std, axis=-1)


def log_tanh_slope(pre_squash: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 - tanh(u)²), in a form that does not under- or overflow for large |u|."""
    return 2.0 * (jnp.log(2.0) - pre_squash - jax.nn.softplus(-2.0 * pre_squash))


def squashed_gaussian_sample(
    mean: Float[Array, "*batch action"],
    log_std: Float[Array, "*batch action"],
    noise: Float[Array, "*batch action"],
) -> tuple[Float[Array, "*batch action"], Float[Array, "*batch"]]:
    """The reparameterized action tanh(mean + std·noise) and its log-density."""
    pre_squash = mean + jnp.exp(log_std) * noise
    gaussian = jnp.sum(-0.5 * (noise**2 + _LOG_TWO_PI) - log_std, axis=-1)
    return jnp.tanh(pre_squash), gaussian - jnp.sum(log_tanh_slope(pre_squash), axis=-1)


def squashed_gaussian_log_prob(
    action: Float[Array, "*batch action"],
    mean: Float[Array, "*batch action"],
    log_std: Float[Array, "*batch action"],
) -> Float[Array, "*batch"]:
    """Log-density of a squashed action; finite as |action| → 1."""
    pre_squash = jnp.arctanh(jnp.clip(action, -_LARGEST_SQUASHED, _LARGEST_SQUASHED))
    gaussian = gaussian_log_prob(pre_squash, mean, log_std)
    return gaussian - jnp.sum(log_tanh_slope(pre_squash), axis=-1)


def row_normals(key: Key, row: Array, size: int) -> Float[Array, "batch {size}"]:
    """Draw standard normals such that each row depends only on its place in the batch.

    A shard with rows 64…127 draws the same noise as the whole batch does there, so the mean of the
    shards' gradients is the gradient of the batch.
    """

    def draw(place: Array) -> Array:
        return jax.random.normal(jax.random.fold_in(key, place), (size,))

    return jax.vmap(draw)(row)
