"""Exploration: correlated noise, random choices, and fast random integers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.types import Key, Scalar


def ornstein_uhlenbeck(
    previous: Float[Array, "envs action"],
    first: Bool[Array, " envs"],
    normals: Float[Array, "envs action"],
    theta: Scalar | float,
    sigma: Scalar | float,
) -> Float[Array, "envs action"]:
    """Take one step of noise whose correlation over k steps is (1 - θ)ᵏ; θ = 1 is white noise.

    The standard deviation is σ at every step, also at an episode's `first`. Noise that starts at
    zero would explore less after a reset.
    """
    # √(1 - (1-θ)²) without cancellation at small θ
    fresh = sigma * jnp.sqrt(theta * (2.0 - theta)) * normals
    return jnp.where(first[:, None], sigma * normals, (1.0 - theta) * previous + fresh)


def epsilon_greedy(
    greedy: Int32[Array, " envs"], choices: int, epsilon: Scalar | float, key: Key
) -> Int32[Array, " envs"]:
    """Replace each row, with probability ε, by a random one of all `choices`."""
    when, what = jax.random.bits(key, (2, *greedy.shape))
    explores = when.astype(jnp.float32) * 2.0**-32 < epsilon
    return jnp.where(explores, (what % choices).astype(jnp.int32), greedy)


def below(key: Key, shape: tuple[int, ...], bound: Int32[Array, ""]) -> Int32[Array, "..."]:
    """Draw integers from 0 to `bound` − 1. Their probabilities differ by one part in 2³²/bound;
    `jax.random.randint` corrects even that, at three times the cost."""
    bits = jax.random.bits(key, shape)
    return (bits % bound.astype(jnp.uint32)).astype(jnp.int32)
