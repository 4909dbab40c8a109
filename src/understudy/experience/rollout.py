"""The rollout: what the present policy has just done, kept until it is learned from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.experience.rows import row_shapes, size_of_rows
from understudy.types import Spec, Trajectory, Transition


class Rollout(NamedTuple):
    storage: Transition  # [horizon, lanes, ...]
    valid: Bool[Array, "horizon lanes"]
    cursor: Int32[Array, ""]  # where the next step goes


def size_in_bytes(spec: Spec, horizon: int, lanes: int) -> int:
    """What `create` will allocate, up to a few bytes."""
    return size_of_rows(spec) * horizon * lanes


def create(spec: Spec, horizon: int, lanes: int) -> Rollout:
    """An empty rollout."""
    storage = jax.tree.map(
        lambda x: jnp.zeros((horizon, lanes, *x.shape), x.dtype), row_shapes(spec)
    )
    return Rollout(storage, jnp.zeros((horizon, lanes), bool), jnp.int32(0))


def add(rollout: Rollout, step: Transition, valid: Bool[Array, " lanes"]) -> Rollout:
    """Append one step of every lane; after the horizon's last place comes the first again."""
    storage = jax.tree.map(
        lambda store, row: store.at[rollout.cursor].set(row.astype(store.dtype)),
        rollout.storage,
        step,
    )
    return Rollout(
        storage=storage,
        valid=rollout.valid.at[rollout.cursor].set(valid),
        cursor=(rollout.cursor + 1) % rollout.valid.shape[0],
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
    )
