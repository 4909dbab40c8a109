"""Sampled frames become a batch: stacks are put together, rewards summed."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from understudy.ops.returns import n_step as n_step_return
from understudy.types import Batch, History, Sequences


class Drawn(eqx.Module):
    """What lies at the places that were drawn, of NumPy or of JAX, before anything is summed."""

    frames: Any  # [batch, 2, stack, ...]; of sequences [batch, stack - 1 + time, ...]
    age: Any  # of sequences: [batch, time]; else None
    memory: Any  # of sequences: [batch, memory]; else None
    action: Any  # [batch, length, ...]
    reward: Any  # [batch, length + n_step - 1]
    terminated: Any  # alike
    last: Any  # alike
    present: Any  # alike: a step, and it has happened
    weight: Any  # [batch]
    stack: int = eqx.field(static=True)
    sequences: Sequences | None = eqx.field(static=True)


def frames_back(stack: int, age: Any) -> Any:
    """How far back each frame of a stack lies, [..., stack]: not beyond the episode's first."""
    back = np.arange(stack)[::-1]
    return back - (back - age[..., None]).clip(min=0)


def to_batch(drawn: Drawn, hyper: Mapping[str, Array]) -> Batch:
    """Sums that never cross an episode. Of sequences: one row for each step that is learned from,
    in order of the sequences. Rows that are no steps are zeros of weight 0."""
    drawn = jax.tree.map(jnp.asarray, drawn)
    batch, length = drawn.action.shape[:2]
    window = np.arange(length)[:, None] + np.arange(drawn.reward.shape[1] - length + 1)
    facts = (drawn.reward, drawn.terminated, drawn.last, drawn.present)
    rows = [fact[:, window].reshape(batch * length, -1) for fact in facts]
    reward, discount, offset = n_step_return(*rows, gamma=hyper["gamma"])
    present = drawn.present[:, :length]
    if drawn.sequences is None:
        stacks = drawn.frames if drawn.stack > 1 else drawn.frames[:, :, 0]
        seen, then, weight = stacks[:, 0], stacks[:, 1], drawn.weight
    else:
        taken = offset.reshape(batch, length) + 1
        seen, then = _histories(drawn, taken)
        weight = (drawn.weight[:, None] * present).reshape(-1)
    return Batch(
        observation=seen,
        action=drawn.action.reshape(batch * length, *drawn.action.shape[2:]),
        reward=hyper["reward_scale"] * reward,
        discount=discount * present.reshape(-1),
        next_observation=then,
        weight=weight,
        row=jnp.arange(batch * length, dtype=jnp.int32),
    )


def _histories(drawn: Drawn, taken: Int32[Array, "batch length"]) -> tuple[History, History]:
    """Up to each step, and up to what follows the steps that were summed."""
    parts, age, memory = drawn.sequences, drawn.age, drawn.memory
    assert parts is not None and age is not None and memory is not None
    if drawn.stack > 1:
        time = np.arange(age.shape[1])[:, None] + drawn.stack - 1
        place = time - frames_back(drawn.stack, age)
        observation = drawn.frames[jnp.arange(len(age))[:, None, None], place]
    else:
        observation = drawn.frames
    first = (age == 0).at[:, 0].set(False)
    at = jnp.broadcast_to(parts.burn_in + jnp.arange(parts.length, dtype=jnp.int32), taken.shape)
    return (
        History(observation, first, memory, at, burn_in=parts.burn_in),
        History(observation, first, memory, at + taken, burn_in=parts.burn_in),
    )


def sequence_errors(
    error: Float[Array, " rows"],
    batch_weight: Float[Array, " rows"],
    batch_size: int,
    mix: float,
) -> Float[Array, " batch"]:
    """One error for each sequence: between the mean (`mix` 0) and the largest (1) of its steps'
    absolute errors. Rows of weight 0 are no steps."""
    counts = batch_weight.reshape(batch_size, -1) > 0
    size = jnp.where(counts, jnp.abs(error).reshape(batch_size, -1), 0.0)
    mean = jnp.sum(size, axis=1) / jnp.maximum(jnp.sum(counts, axis=1), 1)
    return mix * jnp.max(size, axis=1) + (1.0 - mix) * mean
