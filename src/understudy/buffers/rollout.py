"""The rollout: what the present policy has just done, kept until it is learned from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.buffers.step_shapes import row_shapes, size_of_rows
from understudy.types import Spec, Trajectory, Transition


class Rollout(NamedTuple):
    storage: Transition  # [horizon, lanes, ...]
    valid: Bool[Array, "horizon lanes"]
    cursor: Int32[Array, ""]  # where the next step goes
    memory: Float[Array, "horizon lanes memory"] | None = None  # before each step


def size_in_bytes(spec: Spec, horizon: int, lanes: int, memory: int = 0) -> int:
    """What `create` will allocate, up to a few bytes."""
    return (size_of_rows(spec) + 4 * memory) * horizon * lanes


def create(spec: Spec, horizon: int, lanes: int, memory: int = 0) -> Rollout:
    """An empty rollout; `memory` is how many numbers an agent remembers, if it does."""
    storage = jax.tree.map(
        lambda x: jnp.zeros((horizon, lanes, *x.shape), x.dtype), row_shapes(spec)
    )
    remembered = jnp.zeros((horizon, lanes, memory)) if memory else None
    return Rollout(storage, jnp.zeros((horizon, lanes), bool), jnp.int32(0), remembered)


def add(
    rollout: Rollout,
    step: Transition,
    valid: Bool[Array, " lanes"],
    memory: Float[Array, "lanes memory"] | None = None,
) -> Rollout:
    """Append one step of every lane; after the horizon's last place comes the first again."""
    remembered = rollout.memory
    if remembered is not None:
        remembered = remembered.at[rollout.cursor].set(memory)
    storage = jax.tree.map(
        lambda store, row: store.at[rollout.cursor].set(row.astype(store.dtype)),
        rollout.storage,
        step,
    )
    return Rollout(
        storage=storage,
        valid=rollout.valid.at[rollout.cursor].set(valid),
        cursor=(rollout.cursor + 1) % rollout.valid.shape[0],
        memory=remembered,
    )


def trajectory(
    rollout: Rollout, *, gamma: Float[Array, ""], reward_scale: Float[Array, ""]
) -> Trajectory:
    """All of it, in the order it happened. The oldest step lies under the cursor, which need not
    be the first place: the host loop begins with a step that only reset. A row that is `last`
    but not valid cuts the open episode: the step before it counts as its last."""
    steps, valid = jax.tree.map(
        lambda x: jnp.roll(x, -rollout.cursor, axis=0), (rollout.storage, rollout.valid)
    )
    memory = rollout.memory
    cut = steps.last & ~valid
    followed_by_cut = jnp.concatenate([cut[1:], jnp.zeros_like(cut[:1])])
    return Trajectory(
        observation=steps.observation,
        action=steps.action,
        reward=reward_scale * steps.reward,
        discount=gamma * (1.0 - steps.terminated),
        last=steps.last | followed_by_cut,
        next_observation=steps.next_observation,
        valid=valid,
        memory=None if memory is None else memory[rollout.cursor],
    )
