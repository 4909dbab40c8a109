"""Normalizer statistics in the State: what observations and returns look like so far.

Replay keeps raw observations and rewards; they are put into the units of the moment when a
batch is prepared and when the policy acts. What is off is None and costs nothing.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from understudy.networks.normalizer import Statistics, initial_statistics, normalize
from understudy.networks.normalizer import update_statistics
from understudy.types import History, Observation, Spec


class Normalizer(NamedTuple):
    observation: Statistics | None
    returns: Statistics | None


def init_normalizer(config: Any, spec: Spec) -> Normalizer:
    return Normalizer(
        observation=initial_statistics(spec.observation.shape)
        if config.normalize_observations
        else None,
        returns=initial_statistics(()) if config.normalize_rewards else None,
    )


def update_normalizer(
    normalizer: Normalizer,
    observation: Shaped[Array, "envs *observation"],
    open_return: Float[Array, " envs"],
    valid: Bool[Array, " envs"],
) -> Normalizer:
    seen, returns = normalizer
    return Normalizer(
        observation=None if seen is None else update_statistics(seen, observation, valid),
        returns=None if returns is None else update_statistics(returns, open_return, valid),
    )


def normalize_observation(statistics: Statistics | None, observation: Array) -> Array:
    """The observation as networks see it."""
    return observation if statistics is None else normalize(statistics, observation)


def _normalize(statistics: Statistics, seen: Observation) -> Observation:
    if not isinstance(seen, History):
        return normalize(statistics, seen)
    return dataclasses.replace(seen, observation=normalize(statistics, seen.observation))


def normalize_batch(normalizer: Normalizer, batch: Any) -> Any:
    """A batch or trajectory with observations and rewards in the units of the moment.

    Rewards are divided by the return's standard deviation and not centered: their sign, and so
    the best policy, stays."""
    if normalizer.observation is not None:
        batch = batch._replace(
            observation=_normalize(normalizer.observation, batch.observation),
            next_observation=_normalize(normalizer.observation, batch.next_observation),
        )
    if normalizer.returns is not None:
        batch = batch._replace(reward=batch.reward / jnp.sqrt(normalizer.returns.variance + 1e-8))
    return batch
