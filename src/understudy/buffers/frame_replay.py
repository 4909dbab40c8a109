"""Replay that keeps each frame once, and sequences with the memory before them.

Each of N environments has a lane of its own, and every slot of it holds one frame: the newest of
the observation. The slot after a step always holds what was seen next, also after an episode's
last step: there it is no step, only the final frame. Stacks are put together when sampled; their
frames never come from another episode, and an episode's first frame is repeated as often as it
takes.

With `sequences`, every slot whose number is a multiple of the stride can begin one, and the
memory before it is kept. What is true of the ring is true of a film: facts go in, and sampling
turns them into n-step rewards and discounts with the γ of the moment.

A film of NumPy arrays can be asked and gathered from like one of JAX arrays (`host_film`).
"""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from understudy.buffers import sum_tree
from understudy.buffers.frame_batch import Drawn, frames_back, to_batch
from understudy.buffers.frame_batch import sequence_errors as sequence_errors
from understudy.buffers.replay import Priorities
from understudy.ops.exploration import below
from understudy.types import Batch, Key, Sequences, Spec, Transition

Anywhere = Array | np.ndarray
# Of so many candidates for a row the first that is a step is taken. Where none is, its neighbour
# is: that is once in 100 million rows with episodes of 9 steps, and with the shortest ones, where
# it is once in 256, the neighbours are all there is.
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


class Film(eqx.Module):
    storage: Slots
    memory: Float[Anywhere, "... lanes starts memory"] | None  # None: no sequences
    cursor: Int32[Anywhere, "... lanes"]  # where the next step of a lane goes
    stored: Int32[Anywhere, "... lanes"]  # how many slots before the cursor are intact
    age: Int32[Anywhere, "... lanes"]  # steps of the open episode; 0: none is open
    priorities: Priorities | None  # None: all alike
    frames: int = eqx.field(static=True)  # in a stack
    sequences: Sequences | None = eqx.field(static=True)

    def _replace(self, **changes: Any) -> "Film":
        """As of a NamedTuple, which the ring is."""
        return dataclasses.replace(self, **changes)


def num_slots(spec: Spec, capacity: int, lanes: int, sequences: Sequences | None) -> int:
    """Of a lane: its share of the capacity, of which each ended episode takes one for its final
    frame; one under the cursor; and as many as a full lane has incomplete stacks."""
    frames = spec.observation.frames
    slots = max(math.ceil(capacity / lanes), 3) + frames
    if sequences is None:
        return slots
    stride = sequences.stride
    slots = max(slots, sequences.burn_in + sequences.length + frames + stride)
    return math.ceil(slots / stride) * stride


def slot_shapes(spec: Spec) -> Slots:
    """Shape and dtype of what one slot holds."""
    seen, action = spec.observation, spec.action.stored
    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    return Slots(
        frame=jax.ShapeDtypeStruct(seen.shape[1:] if seen.frames > 1 else seen.shape, seen.dtype),
        action=jax.ShapeDtypeStruct(action.shape, action.dtype),
        reward=jax.ShapeDtypeStruct((), jnp.float32),
        terminated=flag,
        last=flag,
        step=flag,
        age=jax.ShapeDtypeStruct((), jnp.int32),
    )


def create(
    spec: Spec,
    capacity: int,
    lanes: int,
    prioritised: bool = False,
    sequences: Sequences | None = None,
) -> Film:
    """An empty film of `capacity` frames in all; see `num_slots`."""
    slots = num_slots(spec, capacity, lanes, sequences)
    starts = slots if sequences is None else slots // sequences.stride
    priorities = Priorities(sum_tree.create(lanes * starts), jnp.float32(1.0))
    return Film(
        storage=jax.tree.map(
            lambda x: jnp.zeros((lanes, slots, *x.shape), x.dtype), slot_shapes(spec)
        ),
        memory=None if sequences is None else jnp.zeros((lanes, starts, sequences.memory)),
        # Three arrays, not one thrice: donated buffers must not be shared.
        cursor=jnp.zeros(lanes, jnp.int32),
        stored=jnp.zeros(lanes, jnp.int32),
        age=jnp.zeros(lanes, jnp.int32),
        priorities=priorities if prioritised else None,
        frames=spec.observation.frames,
        sequences=sequences,
    )


def size_in_bytes(
    spec: Spec,
    capacity: int,
    lanes: int,
    prioritised: bool = False,
    sequences: Sequences | None = None,
) -> int:
    """What `create` will allocate."""
    film = jax.eval_shape(partial(create, spec, capacity, lanes, prioritised, sequences))
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(film))


def add(
    film: Film,
    step: Transition,
    valid: Bool[Array, " lanes"],
    memory: Float[Array, "lanes memory"] | None = None,
) -> Film:
    """Append one step of every lane, and what was seen after it. `memory` is what was remembered
    before the step: zeros where an episode begins. Rows that are not `valid` leave no trace,
    except that one which is `last` cuts the open episode: the previous step becomes its last."""
    slots = film.storage.reward.shape[1]
    cut = step.last & ~valid & (film.age > 0)
    # Writes must stay scatters, of two rows at least: see `ring.add`. What is not to be written
    # goes to slots that do not exist, each to another one, and is dropped.
    here = jnp.where(valid, film.cursor, slots)
    after = jnp.where(valid, (film.cursor + 1) % slots, slots + 1)
    before = jnp.where(cut, (film.cursor - 1) % slots, slots + 2)
    final = jax.tree.map(jnp.zeros_like, (step.action, step.reward, valid))
    rows = Slots(
        frame=[newest(film, step.observation), newest(film, step.next_observation)],
        action=[step.action, final[0]],
        reward=[step.reward, final[1]],
        terminated=[step.terminated, final[2]],
        last=[step.last, final[2], cut],
        step=[valid, final[2]],
        age=[film.age, film.age + 1],
    )
    storage = Slots(
        *(_write(x, [here, after, before], new) for x, new in zip(film.storage, rows, strict=True))
    )
    kept = film.memory
    if film.sequences is not None:
        stride = film.sequences.stride
        begins = valid & (film.cursor % stride == 0)
        start = jnp.where(begins, film.cursor // stride, slots)
        kept = _write(kept, [start, jnp.full_like(start, slots + 1)], [memory, memory])
    advance = jnp.where(valid, 1 + step.last.astype(jnp.int32), cut.astype(jnp.int32))
    grown = Film(
        storage=storage,
        memory=kept,
        cursor=(film.cursor + advance) % slots,
        stored=jnp.minimum(film.stored + advance, slots - 1),
        age=jnp.where(cut | (valid & step.last), 0, film.age + valid),
        priorities=film.priorities,
        frames=film.frames,
        sequences=film.sequences,
    )
    return grown._replace(priorities=_make_drawable(film, grown, valid, advance))


def newest(film: Film, observation: Any) -> Any:
    """The last frame of each lane's stack."""
    return observation[:, -1] if film.frames > 1 else observation


def _write(store: Any, slots: list[Array], rows: list[Any]) -> Array:
    """To one slot of each lane after the other."""
    slot = jnp.concatenate(slots[: len(rows)])
    lane = jnp.tile(jnp.arange(store.shape[0]), len(rows))
    row = jnp.concatenate([row.astype(store.dtype) for row in rows])
    return store.at[lane, slot].set(row, mode="drop", unique_indices=True)


def _make_drawable(
    film: Film, grown: Film, valid: Bool[Array, " lanes"], advance: Int32[Array, " lanes"]
) -> Priorities | None:
    """Give what has become complete the largest priority, and what no longer is none."""
    if film.priorities is None:
        return None
    tree, largest = film.priorities
    lanes, slots = film.storage.reward.shape
    nowhere = jnp.iinfo(jnp.int32).max
    if film.sequences is None:
        stride, fresh = 1, jnp.where(valid, film.cursor, nowhere)[:, None]
    else:
        # An add moves the newest frame by two at most, and with it the start that it completes.
        stride = film.sequences.stride
        length = film.sequences.burn_in + film.sequences.length
        cursor = film.cursor + advance
        fresh = film.cursor - (film.age == 0) - length + 1
        fresh = fresh[:, None] + jnp.arange(2)
        complete = fresh <= (cursor - (grown.age == 0) - length)[:, None]
        complete &= fresh >= (cursor - grown.stored + _incomplete(grown))[:, None]
        fresh = jnp.where(complete, fresh % slots, nowhere)
    after = jnp.where(valid, (film.cursor + 1) % slots, nowhere)[:, None]
    oldest = (grown.cursor[:, None] + jnp.arange(film.frames)) % slots
    oldest = jnp.where((grown.stored == slots - 1)[:, None], oldest, nowhere)
    slot = jnp.concatenate([fresh, after, oldest], axis=1)
    value = jnp.zeros(slot.shape).at[:, : fresh.shape[1]].set(largest)
    place = jnp.arange(lanes, dtype=jnp.int32)[:, None] * (slots // stride) + slot // stride
    place = jnp.where((slot % stride == 0) & (slot < slots), place, nowhere)
    return Priorities(sum_tree.write(tree, place.reshape(-1), value.reshape(-1)), largest)


def _incomplete(film: Film) -> Any:
    """How many of each lane's oldest slots have lost frames of their stacks."""
    return (film.stored == film.storage.reward.shape[1] - 1) * (film.frames - 1)


def choices(film: Film) -> tuple[Any, Any]:
    """Of each lane: the first slot that can be drawn, which may be negative, and how many can:
    final frames among them, or sequences of which one begins every stride."""
    oldest = film.cursor - film.stored + _incomplete(film)
    if film.sequences is None:
        return oldest, film.cursor - oldest
    stride = film.sequences.stride
    final = film.cursor - (film.age == 0) - film.sequences.burn_in - film.sequences.length
    first = -(-oldest // stride)
    return first * stride, (final // stride - first + 1).clip(min=0)


def num_stored(film: Film) -> Int32[Array, ""]:
    """The steps that can be drawn, or the sequences."""
    slots = film.storage.reward.shape[1]
    first, count = choices(film)
    if film.sequences is not None:
        return jnp.sum(count)
    rank = (jnp.arange(slots) - first[:, None]) % slots
    return jnp.sum(film.storage.step & (rank < count[:, None]), dtype=jnp.int32)


def locate(film: Film, nth: Any) -> tuple[Any, Any]:
    """Lane and slot of one of `nth` [batch, candidates], which count what `choices` does."""
    slots, rows = film.storage.reward.shape[1], np.arange(len(nth))
    first, count = choices(film)
    ends = count.cumsum()
    lane = (nth[..., None] >= ends).sum(-1).clip(max=len(ends) - 1)
    rank = nth - (ends - count)[lane]
    if film.sequences is not None:
        return lane[:, 0], ((first[lane] + rank * film.sequences.stride) % slots)[:, 0]
    slot = (first[lane] + rank) % slots
    taken = film.storage.step[lane, slot].argmax(axis=1)
    lane, slot = lane[rows, taken], slot[rows, taken]
    # Beside a final frame is a step: before it or, where that has been overwritten, after it.
    aside = 2 * (slot == first[lane] % slots) - 1
    return lane, (slot + aside * ~film.storage.step[lane, slot]) % slots


def gather(film: Film, lane: Any, slot: Any, n_step: int, weight: Any) -> Drawn:
    """What lies at these places, [batch] each."""
    slots, stack, store = film.storage.reward.shape[1], film.frames, film.storage
    parts = film.sequences or Sequences(0, 1, 1, 0)
    lane, slot = lane[:, None], slot[:, None]
    ahead = parts.burn_in + np.arange(parts.length + n_step - 1)
    at = (slot + ahead) % slots
    # What lies ahead of a step ends before the cursor.
    present = store.step[lane, at] & (ahead < (film.cursor[lane] - slot) % slots)
    last = store.last[lane, at]
    if film.sequences is None:
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
        assert film.memory is not None
        memory = film.memory[lane[:, 0], slot[:, 0] // parts.stride]
        # Nothing is known of a final frame's, and nothing comes of it.
        memory = memory * store.step[lane, slot]
    return Drawn(
        frames=frames,
        age=age,
        memory=memory,
        action=store.action[lane, at[:, : parts.length]],
        reward=store.reward[lane, at],
        terminated=store.terminated[lane, at],
        last=last,
        present=present,
        weight=weight,
        stack=stack,
        sequences=film.sequences,
    )


def sample(
    film: Film,
    key: Key,
    batch_size: int,
    *,
    gamma: Float[Array, ""],
    reward_scale: Float[Array, ""],
    n_step: int = 1,
    importance_exponent: Float[Array, ""] | float = 1.0,
) -> tuple[Batch, Int32[Array, " batch"]]:
    """A batch of so many steps or sequences, and where they lie; see `to_batch` and
    `ring.sample`. A film of steps must not be empty; where there is no sequence yet, weights are
    0 and there is no place."""
    stride, tries = (1, TRIES) if film.sequences is None else (film.sequences.stride, 1)
    starts = film.storage.reward.shape[1] // stride
    total = jnp.sum(choices(film)[1])
    if film.priorities is None:
        nth = below(key, (batch_size, tries), jnp.maximum(total, 1))
        lane, slot = locate(film, nth)
        place, weight = lane * starts + slot // stride, jnp.ones(batch_size)
    else:
        place, probability = sum_tree.sample(film.priorities.tree, key, batch_size)
        lane, slot = place // starts, place % starts * stride
        weight = (num_stored(film) * probability) ** -importance_exponent
    drawn = gather(film, lane, slot, n_step, jnp.where(total > 0, weight, 0.0))
    place = jnp.where(total > 0, place, jnp.iinfo(jnp.int32).max)
    return to_batch(drawn, gamma=gamma, reward_scale=reward_scale), place
