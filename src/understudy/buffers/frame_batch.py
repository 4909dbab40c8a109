"""Make a batch of sampled frames: assemble stacks, sum rewards."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from understudy.ops.returns import n_step as n_step_return
from understudy.types import Batch, History


class FrameSample(NamedTuple):
    """Arrays of the sampled places, of NumPy or of JAX, before rewards are summed."""

    frames: Any  # [batch, 2, stack, ...]; of sequences [batch, stack - 1 + time, ...]
    age: Any  # of sequences: [batch, time]; else None
    memory: Any  # of sequences: [batch, memory]; else None
    action: Any  # [batch, length, ...]
    reward: Any  # [batch, length + n_step - 1]
    terminated: Any  # alike
    last: Any  # alike
    present: Any  # alike: a step, and it has happened
    weight: Any  # [batch]


def frames_back(stack: int, age: Any) -> Any:
    """How far back each frame of a stack lies, [..., stack]: not beyond the episode's first."""
    back = np.arange(stack)[::-1]
    return back - (back - age[..., None]).clip(min=0)


def to_batch(sample: FrameSample, hyper: Mapping[str, Array]) -> Batch:
    """Make a batch, whose sums of rewards never cross an episode. Sequences give one row for each
    step that is learned from, in their order. Rows that are no steps are zeros of weight 0."""
    sample = jax.tree.map(jnp.asarray, sample)
    batch, length = sample.action.shape[:2]
    window = np.arange(length)[:, None] + np.arange(sample.reward.shape[1] - length + 1)
    facts = (sample.reward, sample.terminated, sample.last, sample.present)
    rows = [fact[:, window].reshape(batch * length, -1) for fact in facts]
    reward, discount, offset = n_step_return(*rows, gamma=hyper["gamma"])
    present = sample.present[:, :length]
    if sample.age is None:
        stacks = sample.frames if sample.frames.shape[2] > 1 else sample.frames[:, :, 0]
        seen, then, weight = stacks[:, 0], stacks[:, 1], sample.weight
    else:
        seen, then = _histories(sample, offset.reshape(batch, length) + 1)
        weight = (sample.weight[:, None] * present).reshape(-1)
    return Batch(
        observation=seen,
        action=sample.action.reshape(batch * length, *sample.action.shape[2:]),
        reward=hyper["reward_scale"] * reward,
        discount=discount * present.reshape(-1),
        next_observation=then,
        weight=weight,
        row=jnp.arange(batch * length, dtype=jnp.int32),
    )


def _histories(sample: FrameSample, taken: Int32[Array, "batch length"]) -> tuple[History, History]:
    """Up to each step, and up to what follows the steps that were summed."""
    observation, age = sample.frames, sample.age
    stack = observation.shape[1] - age.shape[1] + 1
    burn_in = age.shape[1] - sample.reward.shape[1] - 1
    if stack > 1:
        time = np.arange(age.shape[1])[:, None] + stack - 1
        place = time - frames_back(stack, age)
        observation = observation[jnp.arange(len(age))[:, None, None], place]
    first = (age == 0).at[:, 0].set(False)
    at = jnp.broadcast_to(burn_in + jnp.arange(taken.shape[1], dtype=jnp.int32), taken.shape)
    return (
        History(observation, first, sample.memory, at, burn_in=burn_in),
        History(observation, first, sample.memory, at + taken, burn_in=burn_in),
    )
