"""The objective of PPO (Schulman et al., "Proximal Policy Optimization Algorithms", arXiv
1707.06347). Advantages and entropy are in algorithms/rollouts.py."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, Shaped

from understudy.types import Observation, Scalar


class Prepared(NamedTuple):
    """A rollout for the loss: rows in any order. With memory, `PPO.prepare` returns [envs, time, …]
    in their place, so that minibatches have whole environments."""

    observation: Observation
    action: Shaped[Array, "rows *action"]
    log_prob: Float[Array, " rows"]  # of the policy that acted
    value: Float[Array, " rows"]  # before the updates of this rollout
    advantage: Float[Array, " rows"]
    value_target: Float[Array, " rows"]
    weight: Float[Array, " rows"]  # 0 for rows without a step; its mean over the rollout is 1
    updates: Int32[Array, " rows"]  # that were done before this rollout
    row: Int32[Array, " rows"]


def log_ratio(log_prob: Float[Array, " rows"], batch: Prepared) -> Float[Array, " rows"]:
    """log r = log π(a|s) − log π_old(a|s); 0 in rows without a step."""
    return jnp.where(batch.weight > 0, log_prob - batch.log_prob, 0.0)


def actor_loss(log_ratio: Float[Array, " rows"], batch: Prepared, clip_range: Scalar) -> Scalar:
    """Eq. 7: −min(r·A, clip(r, 1 − ε, 1 + ε)·A). There is no gain from moving r beyond the clip."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
    gain = jnp.minimum(ratio * batch.advantage, clipped * batch.advantage)
    return -jnp.mean(batch.weight * gain)


def value_loss(value: Float[Array, " rows"], batch: Prepared, clip_range: Scalar | None) -> Scalar:
    """(R − V(s))²; with a clip range the larger of that and the error of a V that stays within the
    range around its value before the updates."""
    error = (batch.value_target - value) ** 2
    if clip_range is not None:
        moved = jnp.clip(value - batch.value, -clip_range, clip_range)
        error = jnp.maximum(error, (batch.value_target - batch.value - moved) ** 2)
    return jnp.mean(batch.weight * error)


def approx_kl(log_ratio: Float[Array, " rows"], batch: Prepared) -> Scalar:
    """Schulman's k3 estimator of KL(π_old ‖ π): the mean of (r − 1) − log r, which is never
    negative (http://joschu.net/blog/kl-approx.html)."""
    return jnp.mean(batch.weight * (jnp.expm1(log_ratio) - log_ratio))


def clip_fraction(log_ratio: Float[Array, " rows"], batch: Prepared, clip_range: Scalar) -> Scalar:
    """Return the share of steps whose ratio is beyond the clip."""
    return jnp.mean(batch.weight * (jnp.abs(jnp.expm1(log_ratio)) > clip_range))
