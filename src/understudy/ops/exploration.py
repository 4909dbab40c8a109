"""Exploration: correlated noise, random choices, and fast random integers."""

from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.types import Key, Scalar, Tree


@final
class HeldNoise(NamedTuple):
    """Standard normals of each environment, and for how many more steps they stay the same."""

    normals: Float[Array, "envs action"]
    steps_left: Int32[Array, " envs"]


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


def initial_noise(num_envs: int, size: int) -> HeldNoise:
    """Return the state of `next_normals` before the first step."""
    return HeldNoise(jnp.zeros((num_envs, size)), jnp.zeros(num_envs, jnp.int32))


def next_normals(
    held: Tree, first: Bool[Array, " envs"], key: Key, shape: tuple[int, int], longest: int
) -> tuple[Float[Array, "envs action"], Tree]:
    """Draw standard normals, each held for k steps of its environment or until the episode ends. k
    has a zeta distribution, truncated: P(k) ∝ k⁻² for k ≤ `longest`. Also return the next state."""
    if longest == 1:
        return jax.random.normal(key, shape), held
    noise_key, steps_key = jax.random.split(key)
    logits = -2.0 * jnp.log(jnp.arange(1.0, longest + 1.0))
    steps = 1 + jax.random.categorical(steps_key, logits, shape=shape[:1])
    renewed = first | (held.steps_left == 0)
    fresh = jax.random.normal(noise_key, shape)
    normals = jnp.where(renewed[:, None], fresh, held.normals)
    return normals, HeldNoise(normals, jnp.where(renewed, steps, held.steps_left) - 1)


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
