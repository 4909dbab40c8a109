"""Replay: it stores steps as they happened, and samples batches.

Each of N environments has a lane of its own, so that consecutive slots of a lane hold consecutive
steps of one environment. The buffer stores what happened (`Step`); sampling turns it into an n-step
reward and a discount, with the γ of that moment.

One slot of each lane, the one under the cursor, is never sampled: an n-step sum ends before it.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.buffers import sum_tree
from understudy.buffers.base import (
    NOWHERE,
    Buffer,
    Hyper,
    Indices,
    Priorities,
    get_lanes,
    init_storage,
    lanes_of,
    renew_priorities,
    set_lanes,
    write_rows,
)
from understudy.ops.exploration import below
from understudy.ops.returns import n_step as n_step_return
from understudy.types import Batch, Chunk, Key, Spec, Step


class ReplayState(NamedTuple):
    storage: Step  # [lanes, slots, ...]
    cursor: Int32[Array, " lanes"]  # where the next step of a lane goes
    stored: Int32[Array, " lanes"]  # how many steps of a lane can be sampled
    priorities: Priorities | None  # None: all stored steps alike


@final
@dataclass(frozen=True)
class ReplayBuffer(Buffer):
    """Uniform or prioritized replay of observations that are vectors."""

    spec: Spec
    capacity: int  # steps in all
    lanes: int
    batch_size: int = 1
    n_step: int = 1
    priority_exponent: float | None = None  # None: uniform sampling

    @property
    def num_slots(self) -> int:
        return math.ceil(self.capacity / self.lanes) + 1

    def init(self) -> ReplayState:
        lanes, slots = self.lanes, self.num_slots
        return ReplayState(
            storage=init_storage(self.spec, lanes, slots),
            # Two arrays, not one twice: donated buffers must not be shared.
            cursor=jnp.zeros(lanes, jnp.int32),
            stored=jnp.zeros(lanes, jnp.int32),
            priorities=self.init_priorities(lanes * slots),
        )

    def add(self, state: ReplayState, chunk: Chunk) -> ReplayState:
        """Append all steps at once. Rows that are not valid are not written."""
        slots, lane, valid = self.num_slots, lanes_of(chunk), chunk.valid
        assert len(valid) < slots, f"{len(valid)} steps do not fit {slots} slots of a lane"
        cursor, stored = get_lanes(chunk, state.cursor), get_lanes(chunk, state.stored)
        slot, ended, latest, total = self._places(chunk, cursor)
        rows = chunk.steps._replace(last=chunk.steps.last | ended)
        place = (jnp.broadcast_to(lane, slot.shape).reshape(-1), slot.reshape(-1))
        # A cut also marks a step of an earlier chunk as an episode's last one.
        marked = [jnp.concatenate(pair) for pair in zip(place, (lane, latest), strict=True)]
        last = jnp.concatenate([rows.last.reshape(-1), jnp.ones_like(lane, bool)])
        storage = jax.tree.map(lambda x, row: write_rows(x, place, row), state.storage, rows)
        storage = storage._replace(last=write_rows(state.storage.last, marked, last))
        after = (cursor + total) % slots
        first = lane * slots
        fresh = jnp.where(slot < slots, first + slot, NOWHERE).reshape(-1)
        return ReplayState(
            storage=storage,
            cursor=set_lanes(chunk, state.cursor, after),
            stored=set_lanes(chunk, state.stored, jnp.minimum(stored + total, slots - 1)),
            priorities=renew_priorities(state.priorities, fresh, first + after),
        )

    def _places(self, chunk: Chunk, cursor: Array) -> tuple[Array, Array, Array, Array]:
        """The slot of every row, and which rows a cut of the chunk ends, [time, lanes] each; the
        slot of each lane's latest step before the chunk, where a cut ends that; and the steps of
        each lane. Rows that are not written get slots that do not exist, each another one."""
        slots, time, valid = self.num_slots, len(chunk.valid), chunk.valid
        advance, cut = valid.astype(jnp.int32), chunk.steps.last & ~valid
        if time == 1:  # nothing of the chunk comes before its row
            slot = jnp.where(valid, cursor, slots)
            latest = jnp.where(cut[0], (cursor - 1) % slots, slots + 1)
            return slot, jnp.zeros_like(valid), latest, advance[0]
        before = jnp.cumsum(advance, axis=0) - advance  # steps of the chunk, before each row
        nowhere = slots + jnp.arange(time, dtype=jnp.int32)[:, None]
        slot = jnp.where(valid, (cursor + before) % slots, nowhere)
        # A cut ends the step before it: one of this chunk, or the lane's latest.
        ended = jnp.any(cut & (before == (before + advance)[:, None]), axis=1) & valid
        at_first = jnp.any(cut & (before == 0), axis=0)
        latest = jnp.where(at_first, (cursor - 1) % slots, slots + time)
        return slot, ended, latest, before[-1] + advance[-1]

    def num_stored(self, state: ReplayState) -> Int32[Array, ""]:
        return jnp.sum(state.stored)

    def sample(self, state: ReplayState, key: Key, hyper: Hyper) -> tuple[Batch, Indices]:
        """Sample a batch with n-step sums that never cross an episode; the buffer holds a step.

        Weights are (N · probability)^−β, which undoes the bias of unequal probabilities to the
        extent of the exponent β; ones where all are equal."""
        slots, size = self.num_slots, self.batch_size
        if state.priorities is None:
            nth = below(key, (size,), self.num_stored(state))
            lane, first = self._locate(state, nth)
            place, weight = lane * slots + first, jnp.ones(size)
        else:
            place, probability = sum_tree.sample(state.priorities.tree, key, size)
            lane, first = place // slots, place % slots
            weight = (self.num_stored(state) * probability) ** -hyper["importance_exponent"]
        reward, discount, final = self._returns(state, lane, first, hyper["gamma"])
        batch = Batch(
            observation=state.storage.observation[lane, first],
            action=state.storage.action[lane, first],
            reward=hyper["reward_scale"] * reward,
            discount=discount,
            next_observation=state.storage.next_observation[lane, final],
            weight=weight,
            row=jnp.arange(size, dtype=jnp.int32),
        )
        return batch, place

    def _locate(self, state: ReplayState, nth: Int32[Array, " batch"]) -> tuple[Array, Array]:
        """Lane and slot of the nth stored step, counted lane by lane from each lane's oldest."""
        if self.lanes == 1:
            lane, age = jnp.zeros_like(nth), nth
        else:
            ends = jnp.cumsum(state.stored)
            lane = jnp.searchsorted(ends, nth, side="right", method="compare_all")
            lane = lane.astype(jnp.int32)
            age = nth - (ends - state.stored)[lane]
        return lane, (state.cursor[lane] - state.stored[lane] + age) % self.num_slots

    def _returns(
        self, state: ReplayState, lane: Array, first: Array, gamma: Float[Array, ""]
    ) -> tuple[Array, Array, Array]:
        """n-step reward, discount of what follows, and the slot of the last step summed."""
        store = state.storage
        if self.n_step == 1:
            reward = store.reward[lane, first]
            return reward, gamma * (1.0 - store.terminated[lane, first]), first
        slots, offsets = self.num_slots, jnp.arange(self.n_step)
        window = (first[:, None] + offsets) % slots
        # What lies ahead of a step ends before the cursor.
        ahead = (state.cursor[lane] - first) % slots
        present = offsets < ahead[:, None]
        facts = (store.reward, store.terminated, store.last)
        rewards, terminated, last = (fact[lane[:, None], window] for fact in facts)
        reward, discount, offset = n_step_return(rewards, terminated, last, present, gamma)
        return reward, discount, (first + offset) % slots
