"""The replay ring: raw facts go in, batches come out.

Each of N environments has a lane of its own, so that consecutive slots of a lane are
consecutive steps of one environment. The ring stores what happened (`Transition`); only
sampling turns it into an n-step reward and a discount, with the γ of the moment.

One slot per lane, the one under the cursor, is never sampled. A row that is no transition can
therefore be written there unconditionally and simply not advance the cursor: masked adds cost
nothing.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from understudy.math.returns import n_step as n_step_return
from understudy.types import Batch, Continuous, Key, Spec, Transition


class Ring(NamedTuple):
    storage: Transition  # [lanes, slots, ...]
    cursor: Int32[Array, " lanes"]  # where the next step of a lane goes
    stored: Int32[Array, " lanes"]  # how many steps of a lane can be sampled


def _rows(spec: Spec) -> Transition:
    """Shape and dtype of one stored step."""
    observation = jax.ShapeDtypeStruct(spec.observation.shape, spec.observation.dtype)
    if isinstance(spec.action, Continuous):
        action = jax.ShapeDtypeStruct((spec.action.size,), jnp.float32)
    else:
        action = jax.ShapeDtypeStruct((), jnp.int32)
    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    reward = jax.ShapeDtypeStruct((), jnp.float32)
    return Transition(observation, action, reward, flag, flag, observation)  # type: ignore


def _slots(capacity: int, lanes: int) -> int:
    return math.ceil(capacity / lanes) + 1


def size_in_bytes(spec: Spec, capacity: int, lanes: int) -> int:
    """What `create` will allocate."""
    row = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(_rows(spec)))
    return row * lanes * _slots(capacity, lanes)


def create(spec: Spec, capacity: int, lanes: int) -> Ring:
    """An empty ring for `capacity` transitions in all."""
    slots = _slots(capacity, lanes)
    storage = jax.tree.map(lambda x: jnp.zeros((lanes, slots, *x.shape), x.dtype), _rows(spec))
    # Two arrays, not one twice: donated buffers must not be shared.
    return Ring(storage, jnp.zeros(lanes, jnp.int32), jnp.zeros(lanes, jnp.int32))


def add(ring: Ring, step: Transition, valid: Bool[Array, " lanes"]) -> Ring:
    """Append one step of every lane; rows that are not `valid` leave no trace."""
    lanes, slots = ring.storage.reward.shape
    # The write must stay a scatter. XLA turns one of a single row into a dynamic-update-slice,
    # folds that into the gathers of a `sample` that follows, and then copies the whole ring in
    # order to keep its old and its new version. So a single lane writes a second row, to a slot
    # that does not exist, where it is dropped.
    lane, slot = jnp.arange(lanes), ring.cursor
    if lanes == 1:
        lane, slot = jnp.zeros(2, jnp.int32), jnp.stack([slot[0], jnp.int32(slots)])

    def write(store: Array, row: Array) -> Array:
        rows = jnp.broadcast_to(row, (len(lane), *row.shape[1:])).astype(store.dtype)
        return store.at[lane, slot].set(rows, mode="drop", unique_indices=True)

    storage = jax.tree.map(write, ring.storage, step)
    advance = valid.astype(jnp.int32)
    return Ring(
        storage=storage,
        cursor=(ring.cursor + advance) % slots,
        stored=jnp.minimum(ring.stored + advance, slots - 1),
    )


def num_stored(ring: Ring) -> Int32[Array, ""]:
    return jnp.sum(ring.stored)


def _locate(ring: Ring, nth: Int32[Array, " batch"]) -> tuple[Array, Array]:
    """Lane and age (0 = the lane's oldest) of the nth stored step, counted lane by lane."""
    if ring.stored.shape[0] == 1:
        return jnp.zeros_like(nth), nth
    ends = jnp.cumsum(ring.stored)
    lane = jnp.searchsorted(ends, nth, side="right", method="compare_all").astype(jnp.int32)
    return lane, nth - (ends - ring.stored)[lane]


def sample(
    ring: Ring,
    key: Key,
    batch_size: int,
    *,
    gamma: Float[Array, ""],
    reward_scale: Float[Array, ""],
    n_step: int = 1,
) -> Batch:
    """A uniform batch, with n-step sums that never cross an episode. The ring must not be empty."""
    slots = ring.storage.reward.shape[1]
    nth = jax.random.randint(key, (batch_size,), 0, num_stored(ring))
    lane, age = _locate(ring, nth)
    oldest = ring.cursor[lane] - ring.stored[lane]
    first = (oldest + age) % slots
    if n_step == 1:
        final = first
        reward = ring.storage.reward[lane, first]
        discount = gamma * (1.0 - ring.storage.terminated[lane, first])
    else:
        offsets = jnp.arange(n_step)
        window = (first[:, None] + offsets) % slots
        present = age[:, None] + offsets < ring.stored[lane][:, None]
        facts = (ring.storage.reward, ring.storage.terminated, ring.storage.last)
        rewards, terminated, last = (fact[lane[:, None], window] for fact in facts)
        reward, discount, offset = n_step_return(rewards, terminated, last, present, gamma)
        final = (first + offset) % slots
    return Batch(
        observation=ring.storage.observation[lane, first],
        action=ring.storage.action[lane, first],
        reward=reward_scale * reward,
        discount=discount,
        next_observation=ring.storage.next_observation[lane, final],
        weight=jnp.ones(batch_size),
        row=jnp.arange(batch_size, dtype=jnp.int32),
    )
