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
from understudy.types import History, Observation, Spec


class Normalizer(NamedTuple):
    observation: Statistics | None
    returns: Statistics | None


def init_normalizer(config: Any, spec: Spec) -> Normalizer:
    """Make the statistics that the config asks for."""
    shape = spec.observation.shape
    return Normalizer(
        observation=initial_statistics(shape) if config.normalize_observations else None,
        returns=initial_statistics(()) if config.normalize_rewards else None,
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

    Rewards are divided by the return's standard deviation and not centered: their sign, and so
    the best policy, stays."""
    statistics = normalizer.observation
    batch = batch._replace(
        observation=normalize_observation(statistics, batch.observation),
        next_observation=normalize_observation(statistics, batch.next_observation),
    )
    if normalizer.returns is not None:
        batch = batch._replace(reward=batch.reward / jnp.sqrt(normalizer.returns.variance + 1e-8))
    return batch
