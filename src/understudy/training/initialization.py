"""The first state of a learner, and the names of its metrics."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from understudy.algorithms.base import Algorithm
from understudy.training.program_cache import shared
from understudy.training.setup import TrainingSetup, make_buffer
from understudy.training.update import LearnerState, empty_meter, sample_batch
from understudy.types import Key, Metrics, Spec


def init_learner(algorithm: Algorithm, spec: Spec, num_envs: int, key: Key) -> LearnerState:
    """The learner of one seed, before anything was learned."""
    meter = empty_meter(len(metric_names(algorithm, spec, num_envs)))
    return LearnerState(algorithm.init(spec, key), meter, jnp.zeros(num_envs))


@shared
def metric_names(algorithm: Algorithm, spec: Spec, num_envs: int) -> list[str]:
    """The names of the numbers in a Meter, in order; nothing is computed."""

    def metrics(key: Key) -> Metrics:
        state = algorithm.init(spec, key)
        buffer = make_buffer(algorithm, spec, num_envs)
        batch, _ = sample_batch(algorithm, buffer, state, buffer.init(), key)
        _, aux = algorithm.gradients(state, batch, key, algorithm.update_mask(jnp.int32(0)))
        return aux.metrics

    return sorted(jax.eval_shape(metrics, jax.ShapeDtypeStruct((2,), jnp.uint32)))


def learner_shapes(setup: TrainingSetup) -> LearnerState:
    """The shapes of a trainer's learner [seeds, ...], without making one."""
    keys = jax.ShapeDtypeStruct((setup.num_seeds, 2), jnp.uint32)
    return jax.eval_shape(init_program(setup.unseeded, None), keys)


@shared
def init_program(setup: TrainingSetup, sharding: NamedSharding | None) -> Any:
    """Makes the first learners of a key for each seed."""
    init = partial(init_learner, setup.algorithm, setup.spec, setup.num_envs)
    return jax.jit(jax.vmap(init), out_shardings=sharding)
