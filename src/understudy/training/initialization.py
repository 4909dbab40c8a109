"""The first state of a learner, and the names of its metrics."""

import jax
import jax.numpy as jnp

from understudy.algorithms.base import Algorithm
from understudy.training.meter import empty_meter
from understudy.training.program_cache import shared
from understudy.training.setup import make_buffer
from understudy.training.update import LearnerState, sample_batch
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
