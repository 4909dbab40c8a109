"""The objectives of clipped policy gradients (Schulman et al., arXiv 1707.06347)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.types import Scalar


class Rows(NamedTuple):
    observation: Float[Array, "rows observation"]
    action: Int32[Array, " rows"]
    log_prob: Float[Array, " rows"]  # when it was acted
    advantage: Float[Array, " rows"]
    value_target: Float[Array, " rows"]
    weight: Float[Array, " rows"]
    row: Int32[Array, " rows"]


def ratio(log_prob: Float[Array, " rows"], batch: Rows) -> Float[Array, " rows"]:
    """How much likelier an action is than when it was acted."""
    return jnp.exp(log_prob - batch.log_prob)


def clipped_loss(log_prob: Float[Array, " rows"], batch: Rows, clip: Scalar) -> Scalar:
    """−min(r·A, clip(r)·A): no gain from probabilities that have moved further than the clip."""
    moved = ratio(log_prob, batch)
    bounded = jnp.clip(moved, 1.0 - clip, 1.0 + clip)
    gain = jnp.minimum(moved * batch.advantage, bounded * batch.advantage)
    return -jnp.mean(batch.weight * gain)


def value_loss(value: Float[Array, " rows"], batch: Rows) -> Scalar:
    return 0.5 * jnp.mean(batch.weight * (value - batch.value_target) ** 2)
