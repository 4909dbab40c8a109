"""Returns and advantages that stop at the end of an episode."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.types import Scalar


def n_step(
    reward: Float[Array, "batch n"],
    terminated: Bool[Array, "batch n"],
    last: Bool[Array, "batch n"],
    present: Bool[Array, "batch n"],
    gamma: Float[Array, ""],
) -> tuple[Float[Array, " batch"], Float[Array, " batch"], Int32[Array, " batch"]]:
    """Sum n consecutive rewards, up to the end of the episode or of the data.

    Returns the discounted sum of the m ≤ n steps taken, the discount γᵐ·(1 − terminated) of the
    value after them, and the offset m − 1 of the last step taken. `present[:, 0]` must be true: a
    sum is never empty.
    """
    # Step k is taken if the data reaches it and no earlier step was an episode's last.
    unbroken = jnp.cumprod(~last[:, :-1], axis=1, dtype=bool)
    taken = present.at[:, 1:].set(present[:, 1:] & unbroken)
    taken = jnp.cumprod(taken, axis=1, dtype=bool)
    powers = gamma ** jnp.arange(reward.shape[1])
    total = jnp.sum(jnp.where(taken, powers * reward, 0.0), axis=1)
    steps = jnp.sum(taken, axis=1, dtype=jnp.int32)
    ended = jnp.any(taken & terminated, axis=1)
    discount = gamma**steps * (1.0 - ended)
    return total, discount, steps - 1


def gae(
    reward: Float[Array, "time envs"],
    discount: Float[Array, "time envs"],
    last: Bool[Array, "time envs"],
    value: Float[Array, "time envs"],
    next_value: Float[Array, "time envs"],
    trace_decay: Scalar,
) -> Float[Array, "time envs"]:
    """Generalized advantage estimates (Schulman et al., 2016, eq. 16) with `trace_decay` γ·λ.

    `discount` is zero where the task terminated: nothing is bootstrapped there. `last` cuts the
    trace at every end of an episode: a truncated episode bootstraps from V of its final
    observation, and nothing of its successor enters.
    """
    surprise = reward + discount * next_value - value

    def step(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, ends = now
        # `where`, not a product with zero: NaN × 0 would spread to the episode before.
        advantage = delta + trace_decay * jnp.where(ends, 0.0, later)
        return advantage, advantage

    nothing = jnp.zeros_like(surprise[0])
    return jax.lax.scan(step, nothing, (surprise, last), reverse=True)[1]
