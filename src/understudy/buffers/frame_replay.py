"""Replay that stores each frame once, and sequences with the recurrent state before them.

Each of N environments has a lane of its own, and every slot of it holds one frame: the newest of
the observation. The slot after a step always holds the next frame, also after an episode's last
step: there it is no step, only the final frame. Stacks are put together when sampled; their frames
never come from another episode, and an episode's first frame is repeated as often as needed.

With `sequences`, every slot whose number is a multiple of the stride can begin one, and the
recurrent state before it is stored. As in `replay`, sampling forms n-step rewards and discounts
with the γ of that moment.

`choices`, `locate` and `gather` take states of NumPy arrays, too (`host_replay`).
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from understudy.buffers import sum_tree
from understudy.buffers.base import (
    NOWHERE,
    Buffer,
    Hyper,
    Indices,
    Priorities,
    get_lanes,
    lanes_of,
    renew_priorities,
    set_lanes,
    write_rows,
)
from understudy.buffers.frame_batch import FrameSample, frames_back, to_batch
from understudy.ops.exploration import below
from understudy.types import Batch, Chunk, Key, Sequences, Spec, Step

# Of so many candidates for a row the first that is a step is taken. Where none is, its neighbor
# is: that is once in 100 million rows with episodes of 9 steps, and with the shortest ones, where
# it is once in 256, the neighbors are all there is.
TRIES = 8


class Slots(NamedTuple):
    """All [lanes, slots, ...]."""

    frame: Any
    action: Any
    reward: Any
    terminated: Any
    last: Any
    step: Any  # one was taken here; not so in an episode's final frame
    age: Any  # steps from the episode's beginning up to here


class FrameReplayState(NamedTuple):
    """Of JAX or of NumPy arrays."""

    storage: Slots
    recurrent_state: Any  # [lanes, starts, width]; None: no sequences
    cursor: Any  # [lanes]: where the next step of a lane goes
    stored: Any  # [lanes]: how many slots before the cursor are intact
    age: Any  # [lanes]: steps of the open episode; 0: none is open
    priorities: Priorities | None  # None: all alike


@final
@dataclass(frozen=True)
class FrameReplayBuffer(Buffer):
    """Uniform or prioritized replay of images, and of sequences for recurrent networks."""

    spec: Spec
    capacity: int  # frames in all
    lanes: int
    batch_size: int = 1  # steps, or sequences
    n_step: int = 1
    priority_exponent: float | None = None  # None: uniform sampling
    priority_mix: float = 0.9  # of the largest error of a sequence, the rest of the mean one
    sequences: Sequences | None = None

    @property
    def stack(self) -> int:
        """Frames of one observation."""
        return self.spec.observation.frames

    @property
    def stride(self) -> int:
        """Slots between two places that can be sampled."""
        return 1 if self.sequences is None else self.sequences.stride

    @property
    def num_slots(self) -> int:
        """Of a lane: its share of the capacity, of which each ended episode takes one for its final
        frame; one under the cursor; and as many as a full lane has incomplete stacks."""
        slots = max(math.ceil(self.capacity / self.lanes), 3) + self.stack
        if self.sequences is None:
            return slots
        length = self.sequences.burn_in + self.sequences.length
        slots = max(slots, length + self.stack + self.stride)
        return math.ceil(slots / self.stride) * self.stride

    def init(self) -> FrameReplayState:
        lanes, slots, sequences = self.lanes, self.num_slots, self.sequences
        starts, seen, action = slots // self.stride, self.spec.observation, self.spec.action.stored

        def zeros(dtype: str = "bool", shape: tuple[int, ...] = ()) -> Array:
            return jnp.zeros((lanes, slots, *shape), dtype)

        return FrameReplayState(
            storage=Slots(
                frame=zeros(seen.dtype, seen.shape[1:] if self.stack > 1 else seen.shape),
                action=zeros(action.dtype, action.shape),
                reward=zeros("float32"),
                terminated=zeros(),
                last=zeros(),
                step=zeros(),
                age=zeros("int32"),
            ),
            recurrent_state=sequences and jnp.zeros((lanes, starts, sequences.memory)),
            # Three arrays, not one thrice: donated buffers must not be shared.
            cursor=jnp.zeros(lanes, jnp.int32),
            stored=jnp.zeros(lanes, jnp.int32),
            age=jnp.zeros(lanes, jnp.int32),
            priorities=self.init_priorities(lanes * starts),
        )

    def newest_frame(self, observation: Any) -> Any:
        """The last frame of each lane's stack."""
        return observation[:, -1] if self.stack > 1 else observation

    def add(self, state: FrameReplayState, chunk: Chunk) -> FrameReplayState:
        """Append one step of every lane after the other, and the frame after each."""
        assert len(chunk.valid) < self.num_slots, "a chunk does not fit a lane"

        def one(state: FrameReplayState, row: Chunk) -> tuple[FrameReplayState, None]:
            return self._add_step(state, row._replace(first_lane=chunk.first_lane)), None

        rows = chunk._replace(first_lane=None)
        if len(chunk.valid) == 1:
            return one(state, jax.tree.map(lambda x: x[0], rows))[0]
        return jax.lax.scan(one, state, rows)[0]

    def _add_step(self, state: FrameReplayState, row: Chunk) -> FrameReplayState:
        """Append one row of a chunk, [lanes, ...]."""
        lane, counters = lanes_of(row), (state.cursor, state.stored, state.age)
        own = (get_lanes(row, counter) for counter in counters)
        places, rows, start, moved = self.plan_step(own, row.steps, row.valid)

        def write(store: Array, rows: list[Array]) -> Array:
            several = jnp.concatenate([row.astype(store.dtype) for row in rows])
            slot = jnp.concatenate(places[: len(rows)])
            return write_rows(store, (jnp.tile(lane, len(rows)), slot), several)

        storage = Slots(*map(write, state.storage, rows))
        recurrent_state = state.recurrent_state
        if self.sequences is not None:
            recurrent_state = write_rows(recurrent_state, (lane, start), row.recurrent_state)
        pairs = zip(counters, moved, strict=True)
        counters = (set_lanes(row, old, new) for old, new in pairs)
        grown = FrameReplayState(storage, recurrent_state, *counters, priorities=None)
        return grown._replace(priorities=self._prioritize(state, grown, row))

    def plan_step(self, counters: Any, step: Step, valid: Any) -> tuple[list[Any], Slots, Any, Any]:
        """The slots that a step of each lane is written to; for each array, the rows for the first
        of these slots; the place of the recurrent state, where a sequence begins; and the new
        counters: cursor, number of stored slots and age of each lane.

        A row that is not valid leaves no trace, except that one which is `last` cuts the open
        episode. What is not to be written goes to slots that do not exist, each to another one."""
        slots, numpy = self.num_slots, valid.__array_namespace__()
        cursor, stored, age = counters
        cut = step.last & ~valid & (age > 0)
        here = numpy.where(valid, cursor, slots)
        after = numpy.where(valid, (cursor + 1) % slots, slots + 1)
        before = numpy.where(cut, (cursor - 1) % slots, slots + 2)
        start = numpy.where(here % self.stride == 0, here // self.stride, slots)
        action, reward, no = map(numpy.zeros_like, (step.action, step.reward, valid))
        rows = Slots(
            frame=[self.newest_frame(step.observation), self.newest_frame(step.next_observation)],
            action=[step.action, action],
            reward=[step.reward, reward],
            terminated=[step.terminated, no],
            last=[step.last, no, cut],
            step=[valid, no],
            age=[age, age + 1],
        )
        advance = numpy.where(valid, 1 + step.last.astype(np.int32), cut.astype(np.int32))
        moved = (
            (cursor + advance) % slots,
            numpy.minimum(stored + advance, slots - 1),
            numpy.where(cut | (valid & step.last), 0, age + valid),
        )
        return [here, after, before], rows, start, moved

    def _prioritize(
        self, state: FrameReplayState, grown: FrameReplayState, row: Chunk
    ) -> Priorities | None:
        """Give what has become complete the largest priority, and what no longer is none."""
        slots, stride, valid = self.num_slots, self.stride, row.valid
        cursor, age = get_lanes(row, state.cursor), get_lanes(row, state.age)
        newest, stored = get_lanes(row, grown.cursor), get_lanes(row, grown.stored)
        if self.sequences is None:
            fresh = jnp.where(valid, cursor, NOWHERE)[:, None]
        else:
            # An add moves the newest frame by two at most, and with it the start that it completes.
            length = self.sequences.burn_in + self.sequences.length
            moved = cursor + (newest - cursor) % slots
            fresh = cursor - (age == 0) - length + 1
            fresh = fresh[:, None] + jnp.arange(2)
            ended = get_lanes(row, grown.age) == 0
            complete = fresh <= (moved - ended - length)[:, None]
            complete &= fresh >= (moved - stored + self._incomplete(stored))[:, None]
            fresh = jnp.where(complete, fresh % slots, NOWHERE)
        after = jnp.where(valid, (cursor + 1) % slots, NOWHERE)[:, None]
        oldest = (newest[:, None] + jnp.arange(self.stack)) % slots
        oldest = jnp.where((stored == slots - 1)[:, None], oldest, NOWHERE)

        def places(slot: Array) -> Array:
            place = lanes_of(row)[:, None] * (slots // stride) + slot // stride
            return jnp.where((slot % stride == 0) & (slot < slots), place, NOWHERE).reshape(-1)

        gone = jnp.concatenate([after, oldest], axis=1)
        return renew_priorities(state.priorities, places(fresh), places(gone))

    def _incomplete(self, stored: Any) -> Any:
        """How many of each lane's oldest slots have lost frames of their stacks."""
        return (stored == self.num_slots - 1) * (self.stack - 1)

    def choices(self, state: FrameReplayState) -> tuple[Any, Any]:
        """Of each lane: the first slot that can be sampled, which may be negative, and how many
        can: final frames among them, or sequences of which one begins every stride."""
        oldest = state.cursor - state.stored + self._incomplete(state.stored)
        if self.sequences is None:
            return oldest, state.cursor - oldest
        stride = self.stride
        final = state.cursor - (state.age == 0) - self.sequences.burn_in - self.sequences.length
        first = -(-oldest // stride)
        return first * stride, (final // stride - first + 1).clip(min=0)

    def num_stored(self, state: FrameReplayState) -> Int32[Array, ""]:
        """The steps that can be sampled, or the sequences."""
        slots = self.num_slots
        first, count = self.choices(state)
        if self.sequences is not None:
            return jnp.sum(count)
        rank = (jnp.arange(slots) - first[:, None]) % slots
        return jnp.sum(state.storage.step & (rank < count[:, None]), dtype=jnp.int32)

    def locate(self, state: FrameReplayState, nth: Any) -> tuple[Any, Any]:
        """Lane and slot of one of `nth` [batch, candidates], which count what `choices` does."""
        slots, rows, step = self.num_slots, np.arange(len(nth)), state.storage.step
        first, count = self.choices(state)
        ends = count.cumsum()
        lane = (nth[..., None] >= ends).sum(-1).clip(max=len(ends) - 1)
        rank = nth - (ends - count)[lane]
        if self.sequences is not None:
            return lane[:, 0], ((first[lane] + rank * self.stride) % slots)[:, 0]
        slot = (first[lane] + rank) % slots
        taken = step[lane, slot].argmax(axis=1)
        lane, slot = lane[rows, taken], slot[rows, taken]
        # Beside a final frame is a step: before it or, where that has been overwritten, after it.
        aside = 2 * (slot == first[lane] % slots) - 1
        return lane, (slot + aside * ~step[lane, slot]) % slots

    def gather(self, state: FrameReplayState, lane: Any, slot: Any, weight: Any) -> FrameSample:
        """Read what is stored at these places, [batch] each."""
        slots, stack, store = self.num_slots, self.stack, state.storage
        parts, n_step = self.sequences or Sequences(0, 1, 1, 0), self.n_step
        lane, slot = lane[:, None], slot[:, None]
        ahead = parts.burn_in + np.arange(parts.length + n_step - 1)
        at = (slot + ahead) % slots
        # What lies ahead of a step ends before the cursor.
        present = store.step[lane, at] & (ahead < (state.cursor[lane] - slot) % slots)
        last = store.last[lane, at]
        if self.sequences is None:
            taken = 1 + (present[:, 1:] & ~last[:, :-1]).cumprod(axis=1).sum(axis=1)
            moment = slot + np.arange(2) * taken[:, None]
            back = frames_back(stack, store.age[lane, slot] + moment - slot)
            frames = store.frame[lane[..., None], (moment[..., None] - back) % slots]
            age = memory = None
        else:
            time = np.arange(parts.burn_in + parts.length + n_step)
            before = np.arange(1 - stack, len(time))
            frames = store.frame[lane, (slot + before) % slots]
            age = store.age[lane, (slot + time) % slots]
            assert state.recurrent_state is not None
            memory = state.recurrent_state[lane[:, 0], slot[:, 0] // parts.stride]
            # That of a final frame is not known, and not needed.
            memory = memory * store.step[lane, slot]
        return FrameSample(
            frames=frames,
            age=age,
            memory=memory,
            action=store.action[lane, at[:, : parts.length]],
            reward=store.reward[lane, at],
            terminated=store.terminated[lane, at],
            last=last,
            present=present,
            weight=weight,
        )

    def sample(self, state: FrameReplayState, key: Key, hyper: Hyper) -> tuple[Batch, Indices]:
        """Sample a batch of steps or sequences; see `to_batch`. Where there is no sequence yet,
        weights are 0 and indices do not exist. A buffer of steps must not be empty."""
        size, tries = self.batch_size, TRIES if self.sequences is None else 1
        starts = self.num_slots // self.stride
        total = jnp.sum(self.choices(state)[1])
        if state.priorities is None:
            nth = below(key, (size, tries), jnp.maximum(total, 1))
            lane, slot = self.locate(state, nth)
            place, weight = lane * starts + slot // self.stride, jnp.ones(size)
        else:
            place, probability = sum_tree.sample(state.priorities.tree, key, size)
            lane, slot = place // starts, place % starts * self.stride
            weight = (self.num_stored(state) * probability) ** -hyper["importance_exponent"]
        found = self.gather(state, lane, slot, jnp.where(total > 0, weight, 0.0))
        return to_batch(found, hyper), jnp.where(total > 0, place, NOWHERE)

    def errors_by_place(self, errors: Array, weight: Array) -> Array:
        """One error for each sequence: between the mean (`priority_mix` 0) and the largest (1) of
        its steps' absolute errors. Rows of weight 0 are no steps."""
        if self.sequences is None:
            return errors
        counts = weight.reshape(self.batch_size, -1) > 0
        size = jnp.where(counts, jnp.abs(errors).reshape(self.batch_size, -1), 0.0)
        mean = jnp.sum(size, axis=1) / jnp.maximum(jnp.sum(counts, axis=1), 1)
        return self.priority_mix * jnp.max(size, axis=1) + (1.0 - self.priority_mix) * mean
