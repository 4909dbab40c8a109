"""The normalizer in the TrainState: running statistics of observations and returns.

Replay stores raw observations and rewards; they are normalized when a batch is prepared and when
the policy acts. Statistics that are off are None and cost nothing.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from understudy.networks.normalizer import (
    Statistics,
    initial_statistics,
    normalize,
    update_statistics,
)
from understudy.types import History, Observation, Scalar, Spec


class ReturnBound(NamedTuple):
    """The largest discounted return so far, and what it must not exceed after scaling."""

    largest: Scalar  # of absolute values
    limit: Scalar


class Normalizer(NamedTuple):
    observation: Statistics | None
    returns: Statistics | None
    bound: ReturnBound | None = None


def init_normalizer(config: Any, spec: Spec) -> Normalizer:
    """Make the statistics that the config asks for."""
    shape, limit = spec.observation.shape, config.return_limit
    return Normalizer(
        observation=initial_statistics(shape) if config.normalize_observations else None,
        returns=initial_statistics(()) if config.normalize_rewards else None,
        bound=None if limit is None else ReturnBound(jnp.float32(0.0), jnp.float32(limit)),
    )


def update_normalizer(
    normalizer: Normalizer,
    observation: Shaped[Array, "envs *observation"],
    open_return: Float[Array, " envs"],
    valid: Bool[Array, " envs"],
) -> Normalizer:
    """Add a row of observations and of the returns of the open episodes so far."""

    def update(statistics: Statistics | None, rows: Array) -> Statistics | None:
        return None if statistics is None else update_statistics(statistics, rows, valid)

    return Normalizer(
        observation=update(normalizer.observation, observation),
        returns=update(normalizer.returns, open_return),
        bound=_raised(normalizer.bound, open_return, valid),
    )


def normalize_observation(statistics: Statistics | None, observation: Observation) -> Observation:
    """Normalize an observation, or all of a History, if there are statistics."""
    if statistics is None:
        return observation
    if not isinstance(observation, History):
        return normalize(statistics, observation)
    normalized = normalize(statistics, observation.observation)
    return dataclasses.replace(observation, observation=normalized)


def normalize_batch(normalizer: Normalizer, batch: Any) -> Any:
    """Normalize the observations and rewards of a batch or trajectory by the present statistics.

    Rewards are divided by max(σ(G), max|G| / limit), where G are the discounted returns, and not
    centered: their sign, and so the best policy, stays. Without a limit the divisor is σ(G)."""
    statistics = normalizer.observation
    batch = batch._replace(
        observation=normalize_observation(statistics, batch.observation),
        next_observation=normalize_observation(statistics, batch.next_observation),
    )
    if normalizer.returns is not None:
        divisor = jnp.sqrt(normalizer.returns.variance + 1e-8)
        if normalizer.bound is not None:
            divisor = jnp.maximum(divisor, normalizer.bound.largest / normalizer.bound.limit)
        batch = batch._replace(reward=batch.reward / divisor)
    return batch


def _raised(
    bound: ReturnBound | None, open_return: Float[Array, " envs"], valid: Bool[Array, " envs"]
) -> ReturnBound | None:
    """Return the bound after a row of returns."""
    if bound is None:
        return None
    sizes = jnp.where(valid, jnp.abs(open_return), 0.0)
    return bound._replace(largest=jnp.maximum(bound.largest, jnp.max(sizes)))
