"""Sample and update, guarded: what both loops do between acting and acting again."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import Algorithm, Index
from understudy.experience import Ring, create, sample
from understudy.types import Key, Metrics, Spec, Tree


class Meter(NamedTuple):
    """Sums of metrics since the last log, kept on the device; fetched once per log."""

    total: Float[Array, " metrics"]
    count: Float[Array, " metrics"]
    discarded: Int32[Array, ""]  # updates thrown away because they were not finite
    discarded_in_a_row: Int32[Array, ""]


class Learner(NamedTuple):
    """What updates change: the algorithm's State and the record of how it went."""

    state: Any
    meter: Meter


def metric_names(algorithm: Algorithm, spec: Spec) -> list[str]:
    """The names of the numbers in a Meter, in order; nothing is computed."""

    def metrics(key: Key) -> Metrics:
        state = algorithm.init(spec, key)
        ring = create(spec, capacity=1, lanes=1)
        gamma = jnp.float32(1.0)
        batch = sample(ring, key, algorithm.appetite.batch_size, gamma=gamma, reward_scale=gamma)
        _, aux = algorithm.gradients(state, batch, key, algorithm.due(jnp.int32(0)))
        return aux.metrics

    return sorted(jax.eval_shape(metrics, jax.random.PRNGKey(0)))


def empty_meter(size: int) -> Meter:
    return Meter(jnp.zeros(size), jnp.zeros(size), jnp.int32(0), jnp.int32(0))


def finite(gradients: Tree) -> Bool[Array, ""]:
    """Whether every gradient is finite and its square too (Adam's second moment needs that)."""
    leaves = [x for x in jax.tree.leaves(gradients) if isinstance(x, jax.Array) and x.dtype != bool]
    return jnp.isfinite(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves))


def update(algorithm: Algorithm, learner: Learner, ring: Ring, index: Index) -> Learner:
    """One guarded update of one member from a fresh batch.

    An update that is not finite is discarded as a whole: weights, moments, targets and counters
    keep their values; only the random key moves on.
    """
    state, meter = learner
    appetite = algorithm.appetite
    key, sample_key, update_key = jax.random.split(state.key, 3)
    batch = sample(
        ring,
        sample_key,
        appetite.batch_size,
        gamma=state.hyper["gamma"],
        reward_scale=state.hyper["reward_scale"],
        n_step=appetite.n_step,
    )
    batch = algorithm.prepare(state, batch)
    gradients, aux = algorithm.gradients(state, batch, update_key, algorithm.due(index))
    good = finite(gradients)
    proposed = algorithm.apply(state, gradients)
    state = jax.tree.map(lambda new, old: jnp.where(good, new, old), proposed, state)
    return Learner(state._replace(key=key), _record(meter, aux.metrics, good))


def updates(
    algorithm: Algorithm, learner: Learner, ring: Ring, first_index: Index, count: int
) -> Learner:
    """`count` updates in one program."""
    if count == 1:
        return update(algorithm, learner, ring, first_index)
    indices = first_index + jnp.arange(count, dtype=jnp.int32)
    learner, _ = jax.lax.scan(
        lambda carry, index: (update(algorithm, carry, ring, index), None), learner, indices
    )
    return learner


def _record(meter: Meter, metrics: dict[str, Array], good: Bool[Array, ""]) -> Meter:
    values = jnp.stack([metrics[name] for name in sorted(metrics)])
    counted = jnp.isfinite(values) & good  # NaN marks a part that was not due
    return Meter(
        total=meter.total + jnp.where(counted, values, 0.0),
        count=meter.count + counted,
        discarded=meter.discarded + ~good,
        discarded_in_a_row=jnp.where(good, 0, meter.discarded_in_a_row + 1),
    )
