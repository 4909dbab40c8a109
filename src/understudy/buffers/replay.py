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

from understudy.buffers import sum_tree
from understudy.buffers.step_shapes import row_shapes, size_of_rows
from understudy.buffers.sum_tree import SumTree
from understudy.ops.exploration import below
from understudy.ops.returns import n_step as n_step_return
from understudy.types import Batch, Key, Scalar, Spec, Transition

SMALLEST_ERROR = 1e-6  # added to errors, so that nothing is never drawn again


class Priorities(NamedTuple):
    """How often each slot is drawn. Priorities are kept raised to their exponent."""

    tree: SumTree  # leaf lane · slots + slot; 0 where there is nothing to draw
    largest: Scalar  # ever given; what a new step gets


class Ring(NamedTuple):
    storage: Transition  # [lanes, slots, ...]
    cursor: Int32[Array, " lanes"]  # where the next step of a lane goes
    stored: Int32[Array, " lanes"]  # how many steps of a lane can be sampled
    priorities: Priorities | None  # None: all stored steps alike


def _slots(capacity: int, lanes: int) -> int:
    return math.ceil(capacity / lanes) + 1


def size_in_bytes(spec: Spec, capacity: int, lanes: int, prioritised: bool = False) -> int:
    """What `create` will allocate."""
    places = lanes * _slots(capacity, lanes)
    return size_of_rows(spec) * places + (sum_tree.size_in_bytes(places) if prioritised else 0)


def create(spec: Spec, capacity: int, lanes: int, prioritised: bool = False) -> Ring:
    """An empty ring for `capacity` transitions in all."""
    slots = _slots(capacity, lanes)
    storage = jax.tree.map(lambda x: jnp.zeros((lanes, slots, *x.shape), x.dtype), row_shapes(spec))
    priorities = Priorities(sum_tree.create(lanes * slots), jnp.float32(1.0))
    # Two arrays, not one twice: donated buffers must not be shared.
    return Ring(
        storage=storage,
        cursor=jnp.zeros(lanes, jnp.int32),
        stored=jnp.zeros(lanes, jnp.int32),
        priorities=priorities if prioritised else None,
    )


def add(ring: Ring, step: Transition, valid: Bool[Array, " lanes"]) -> Ring:
    """Append one step of every lane. Rows that are not `valid` leave no trace, except that one
    which is `last` cuts the open episode: the lane's previous step becomes its last."""
    lanes, slots = ring.storage.reward.shape
    # The write must stay a scatter. XLA turns one of a single row into a dynamic-update-slice,
    # folds that into the gathers of a `sample` that follows, and then copies the whole ring in
    # order to keep its old and its new version. So a single lane writes a second row, to a slot
    # that does not exist, where it is dropped.
    lane, slot, nowhere = jnp.arange(lanes), ring.cursor, jnp.int32(slots)
    cut = step.last & ~valid
    before = jnp.where(cut, (slot - 1) % slots, nowhere)
    if lanes == 1:
        lane, slot = jnp.zeros(2, jnp.int32), jnp.stack([slot[0], nowhere])

    def write(store: Array, row: Array) -> Array:
        rows = jnp.broadcast_to(row, (len(lane), *row.shape[1:])).astype(store.dtype)
        return store.at[lane, slot].set(rows, mode="drop", unique_indices=True)

    storage = jax.tree.map(write, ring.storage, step)
    # Once more, and in the same scatter what a cut says of the step before.
    place = (jnp.tile(jnp.arange(lanes), 2), jnp.concatenate([ring.cursor, before]))
    last = ring.storage.last.at[place].set(
        jnp.concatenate([step.last, cut]), mode="drop", unique_indices=True
    )
    storage = storage._replace(last=last)
    advance = valid.astype(jnp.int32)
    cursor = (ring.cursor + advance) % slots
    return Ring(
        storage=storage,
        cursor=cursor,
        stored=jnp.minimum(ring.stored + advance, slots - 1),
        priorities=_make_drawable(ring, cursor, valid),
    )


def _make_drawable(
    ring: Ring, cursor: Int32[Array, " lanes"], valid: Bool[Array, " lanes"]
) -> Priorities | None:
    """Give the step just written the largest priority, and the slot that comes next none."""
    if ring.priorities is None:
        return None
    tree, largest = ring.priorities
    lanes, slots = ring.storage.reward.shape
    lane = jnp.arange(lanes, dtype=jnp.int32) * slots
    place = jnp.concatenate([lane + ring.cursor, lane + cursor])
    value = jnp.concatenate([jnp.where(valid, largest, 0.0), jnp.zeros(lanes)])
    return Priorities(sum_tree.write(tree, place, value), largest)


def num_stored(ring: Ring) -> Int32[Array, ""]:
    return jnp.sum(ring.stored)


def _locate(ring: Ring, nth: Int32[Array, " batch"]) -> tuple[Array, Array]:
    """Lane and slot of the nth stored step, counted lane by lane from each lane's oldest."""
    slots = ring.storage.reward.shape[1]
    if ring.stored.shape[0] == 1:
        lane, age = jnp.zeros_like(nth), nth
    else:
        ends = jnp.cumsum(ring.stored)
        lane = jnp.searchsorted(ends, nth, side="right", method="compare_all").astype(jnp.int32)
        age = nth - (ends - ring.stored)[lane]
    return lane, (ring.cursor[lane] - ring.stored[lane] + age) % slots


def sample(
    ring: Ring,
    key: Key,
    batch_size: int,
    *,
    gamma: Float[Array, ""],
    reward_scale: Float[Array, ""],
    n_step: int = 1,
    importance_exponent: Float[Array, ""] | float = 1.0,
) -> tuple[Batch, Int32[Array, " batch"]]:
    """A batch, with n-step sums that never cross an episode, and where its rows lie in the ring.
    The ring must not be empty.

    Weights are (N · probability)^−β, which undoes the bias of unequal probabilities in the
    measure of the exponent β; ones where all are equal."""
    slots = ring.storage.reward.shape[1]
    if ring.priorities is None:
        nth = below(key, (batch_size,), num_stored(ring))
        lane, first = _locate(ring, nth)
        place, weight = lane * slots + first, jnp.ones(batch_size)
    else:
        place, probability = sum_tree.sample(ring.priorities.tree, key, batch_size)
        lane, first = place // slots, place % slots
        weight = (num_stored(ring) * probability) ** -importance_exponent
    reward, discount, final = _returns(ring, lane, first, gamma, n_step)
    batch = Batch(
        observation=ring.storage.observation[lane, first],
        action=ring.storage.action[lane, first],
        reward=reward_scale * reward,
        discount=discount,
        next_observation=ring.storage.next_observation[lane, final],
        weight=weight,
        row=jnp.arange(batch_size, dtype=jnp.int32),
    )
    return batch, place


def _returns(
    ring: Ring, lane: Array, first: Array, gamma: Float[Array, ""], n_step: int
) -> tuple[Array, Array, Array]:
    """n-step reward, discount of what follows, and the slot of the last step taken."""
    if n_step == 1:
        reward = ring.storage.reward[lane, first]
        return reward, gamma * (1.0 - ring.storage.terminated[lane, first]), first
    slots = ring.storage.reward.shape[1]
    offsets = jnp.arange(n_step)
    window = (first[:, None] + offsets) % slots
    # What lies ahead of a step ends before the cursor.
    ahead = (ring.cursor[lane] - first) % slots
    present = offsets < ahead[:, None]
    facts = (ring.storage.reward, ring.storage.terminated, ring.storage.last)
    rewards, terminated, last = (fact[lane[:, None], window] for fact in facts)
    reward, discount, offset = n_step_return(rewards, terminated, last, present, gamma)
    return reward, discount, (first + offset) % slots


def revise(
    priorities: Priorities,
    place: Int32[Array, " batch"],
    error: Float[Array, " batch"],
    exponent: float,
    good: Bool[Array, ""],
) -> Priorities:
    """Give sampled rows the priority of their new errors; nothing changes unless `good`."""
    tree, largest = priorities
    priority = (jnp.abs(error) + SMALLEST_ERROR) ** exponent
    nowhere = jnp.iinfo(jnp.int32).max
    tree = sum_tree.write(tree, jnp.where(good, place, nowhere), priority)
    return Priorities(tree, jnp.where(good, jnp.maximum(largest, jnp.max(priority)), largest))
