"""Which container feeds which appetite, and how a batch is drawn from it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.algorithms.base import Algorithm, Appetite, Memory, Replay
from understudy.buffers import Film, Ring, Rollout, rollout
from understudy.buffers import frame_replay as film
from understudy.buffers import replay as ring
from understudy.buffers.frame_batch import Drawn, sequence_errors, to_batch
from understudy.buffers.replay import Priorities, revise
from understudy.networks.augmentation import random_shift
from understudy.networks.encoders import without
from understudy.types import Batch, History, Key, Spec, Transition, Tree

Experience = Ring | Film | Rollout


def on_film(appetite: Appetite, spec: Spec) -> bool:
    """Whether replay keeps frames once and can give sequences: for images, and for memory. The
    plain ring, which keeps what was seen twice, is quicker with vectors."""
    seen = spec.observation
    pictures = seen.is_image or seen.in_bytes
    return isinstance(appetite, Replay) and (pictures or appetite.sequences is not None)


def size_in_bytes(appetite: Appetite, spec: Spec, lanes: int, on_host: bool = False) -> int:
    """What `create` will allocate, or a film on the host."""
    if not isinstance(appetite, Replay):
        return rollout.size_in_bytes(spec, appetite.horizon, lanes, appetite.memory)
    size, prioritised = appetite.buffer_size, appetite.priority_exponent is not None
    if on_host or on_film(appetite, spec):
        return film.size_in_bytes(spec, size, lanes, prioritised, appetite.sequences)
    return ring.size_in_bytes(spec, size, lanes, prioritised)


def create(appetite: Appetite, spec: Spec, lanes: int) -> Experience:
    """An empty container for the experience of `lanes` environments."""
    if not isinstance(appetite, Replay):
        return rollout.create(spec, appetite.horizon, lanes, appetite.memory)
    size, prioritised = appetite.buffer_size, appetite.priority_exponent is not None
    if on_film(appetite, spec):
        return film.create(spec, size, lanes, prioritised, appetite.sequences)
    return ring.create(spec, size, lanes, prioritised)


def remembered(memory: Tree, first: Bool[Array, " lanes"]) -> Float[Array, "lanes memory"] | None:
    """What experience keeps of the memory that a step is acted from."""
    return without(memory.hidden, first) if isinstance(memory, Memory) else None


def add(
    experience: Experience,
    step: Transition,
    valid: Bool[Array, " lanes"],
    memory: Float[Array, "lanes memory"] | None = None,
) -> Experience:
    """Append one step of every lane; rows that are not `valid` are not learned from. `memory` is
    what was `remembered` before it."""
    if isinstance(experience, Ring):
        return ring.add(experience, step, valid)
    if isinstance(experience, Film):
        return film.add(experience, step, valid, memory)
    return rollout.add(experience, step, valid, memory)


def fill(
    experience: Experience,
    steps: Transition,
    valid: Bool[Array, "time lanes"],
    memory: Float[Array, "time lanes memory"] | None = None,
) -> Rollout:
    """A whole rollout at once, [time, lanes, ...], in place of all that was there."""
    assert isinstance(experience, Rollout)
    return Rollout(steps, valid, jnp.zeros_like(experience.cursor), memory)


def with_priorities(experience: Experience, priorities: Priorities | None) -> Experience:
    """The same steps, drawn by other priorities."""
    if priorities is None or isinstance(experience, Rollout):
        return experience
    return experience._replace(priorities=priorities)


def revised(
    appetite: Replay,
    experience: Ring | Film,
    place: Int32[Array, " batch"],
    errors: Float[Array, " rows"],
    weight: Float[Array, " rows"],
    good: Bool[Array, ""],
) -> Priorities | None:
    """The priorities that follow from the errors of what was drawn."""
    if experience.priorities is None:
        return None
    assert appetite.priority_exponent is not None
    if appetite.sequences is not None:
        errors = sequence_errors(errors, weight, len(place), appetite.priority_mix)
    return revise(experience.priorities, place, errors, appetite.priority_exponent, good)


def draw(
    algorithm: Algorithm, state: Any, experience: Experience | Drawn, key: Key
) -> tuple[Any, Int32[Array, " batch"] | None]:
    """A batch, prepared; and where its rows lie in the ring, if it came from one. What the host
    has drawn is a batch already, but for its sums."""
    gamma, reward_scale = state.hyper["gamma"], state.hyper["reward_scale"]
    if isinstance(experience, Rollout):
        steps = rollout.trajectory(experience, gamma=gamma, reward_scale=reward_scale)
        return algorithm.prepare(state, steps), None
    appetite = algorithm.appetite
    assert isinstance(appetite, Replay)
    if isinstance(experience, Drawn):
        batch = to_batch(experience, gamma=gamma, reward_scale=reward_scale)
        if appetite.random_shift:
            batch = shifted(batch, experience.stack, appetite.random_shift, key)
        return algorithm.prepare(state, batch), None
    container: Any = film if isinstance(experience, Film) else ring
    batch, place = container.sample(
        experience,
        key,
        appetite.batch_size,
        gamma=gamma,
        reward_scale=reward_scale,
        n_step=appetite.n_step,
        importance_exponent=state.hyper["importance_exponent"],
    )
    if appetite.random_shift:
        assert isinstance(experience, Film)
        batch = shifted(batch, experience.frames, appetite.random_shift, key)
    return algorithm.prepare(state, batch), place


def shifted(batch: Batch, frames: int, most: int, key: Key) -> Batch:
    """Images moved by a few pixels, each row's by its own (each sequence's all alike)."""
    here, there = jax.random.split(jax.random.fold_in(key, 1))
    seen, then = batch.observation, batch.next_observation

    def move(images: Array, key: Key) -> Array:
        rows = jnp.arange(len(images), dtype=jnp.int32)
        return random_shift(images, images.shape[1:], most, key, rows, frames)

    if isinstance(seen, History):  # one sequence, asked about at two times
        moved = jax.vmap(move, (1, None), 1)(seen.observation, here)
        seen, then = (dataclasses.replace(one, observation=moved) for one in (seen, then))
        return batch._replace(observation=seen, next_observation=then)
    return batch._replace(observation=move(seen, here), next_observation=move(then, there))
