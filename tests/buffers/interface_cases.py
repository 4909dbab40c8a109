"""The buffers that the suite of the interface runs against, and their model: plain Python lists.

A sample is one step, one sequence or one whole rollout. Each has an id (the number of its first
frame) and facts, by name. The model says which samples are possible and what their facts are;
NaN stands for what nobody may rely on.
"""

import math
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from hypothesis import strategies as st

from tests.buffers.frame_lists import (
    KINDS,
    MOMENTS,
    Played,
    Slot,
    intact_sequences,
    intact_steps,
    number_of,
    spec_of,
    summed,
)  # fmt: skip
from tests.buffers.plain_lists import hyper
from understudy.buffers import (
    Buffer,
    FrameReplayBuffer,
    HostReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)  # fmt: skip
from understudy.types import Chunk, Sequences

LANES, BATCH, N_STEP, GAMMA, SCALE, BETA = 3, 256, 3, 0.9, 0.5, 0.4
VECTORS, IMAGES = spec_of(1), spec_of(3, "uint8")
PARTS = Sequences(burn_in=1, length=3, stride=2, memory=2)
STACKED_PARTS = Sequences(burn_in=0, length=3, stride=3, memory=2)
EXPONENT, MIX = 0.5, 0.9

REPLAY = dict(capacity=16, lanes=LANES, batch_size=BATCH, n_step=N_STEP)
FRAMES = dict(capacity=13, lanes=LANES, batch_size=BATCH, n_step=N_STEP)
LONGER = dict(capacity=30, lanes=LANES, batch_size=BATCH, n_step=N_STEP)
PRIORITIZED = dict(priority_exponent=EXPONENT)

BUFFERS: dict[str, Buffer] = {
    "uniform replay": ReplayBuffer(VECTORS, **REPLAY),
    "prioritized replay": ReplayBuffer(VECTORS, **REPLAY, **PRIORITIZED),
    "images": FrameReplayBuffer(IMAGES, **FRAMES),
    "prioritized images": FrameReplayBuffer(IMAGES, **FRAMES, **PRIORITIZED),
    "sequences": FrameReplayBuffer(IMAGES, **LONGER, sequences=STACKED_PARTS),
    "prioritized sequences": FrameReplayBuffer(
        VECTORS, **LONGER, **PRIORITIZED, priority_mix=MIX, sequences=PARTS
    ),
    "host replay in memory": HostReplayBuffer(FrameReplayBuffer(IMAGES, **FRAMES), 1, 0),
    "host replay in a file": HostReplayBuffer(
        FrameReplayBuffer(VECTORS, **LONGER, sequences=PARTS), 1, 0, Path(tempfile.gettempdir())
    ),
    "rollout": RolloutBuffer(VECTORS, 6, LANES, recurrent_width=2, extras=("log_prob",)),
}

# -- the real buffers, with programs that all tests share -----------------------------------------

_add = jax.jit(lambda buffer, state, chunk: buffer.add(state, chunk), static_argnums=0)
_sample = jax.jit(lambda buffer, *arguments: buffer.sample(*arguments), static_argnums=0)
_count = jax.jit(lambda buffer, state: buffer.num_stored(state), static_argnums=0)
_update = jax.jit(lambda buffer, *arguments: buffer.update_priorities(*arguments), static_argnums=0)


@cache
def _empty(buffer: Buffer):
    return jax.jit(buffer.init)()


def init(buffer: Buffer):
    return buffer.init() if buffer.external else _empty(buffer)


def with_seeds(tree):
    """With an axis of one seed in front, as states and chunks have it outside programs."""
    return jax.tree.map(lambda x: np.asarray(x)[None], tree)


def add(buffer: Buffer, state, chunk: Chunk):
    if buffer.external:
        return buffer.add(state, with_seeds(chunk))
    return _add(buffer, state, chunk)


def sample(buffer: Buffer, state, seed: int = 0):
    """A batch and its indices, of NumPy arrays."""
    if buffer.external:
        drawn, _ = buffer.sample_updates(state, seed, 1)
        state = jax.tree.map(lambda x: x[0, 0], drawn)
    hypers = hyper(GAMMA, SCALE, BETA)
    return jax.device_get(_sample(buffer, state, jax.random.PRNGKey(seed), hypers))


def count(buffer: Buffer, state) -> int:
    state = jax.tree.map(lambda x: x[0], state) if buffer.external else state
    return int(_count(frames_of(buffer), state))


def update(buffer: Buffer, state, batch, indices, errors, accepted: bool):
    return _update(buffer, state, indices, np.float32(errors), batch.weight, np.bool_(accepted))


# -- chunks ---------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """One chunk of a block: some steps of some lanes."""

    begin: int  # from the beginning of the block
    time: int
    first_lane: int | None = None
    lanes: int = LANES


Block = tuple[int, tuple[Piece, ...]]  # moments, and the chunks that they are handed over in


def whole(time: int) -> Block:
    return time, (Piece(0, time),)


LANE_BY_LANE: Block = (1, (Piece(0, 1, 2, 1), Piece(0, 1, 0, 1), Piece(0, 1, 1, 1)))
TWO_LANES_FIRST: Block = (3, (Piece(0, 3, 0, 2), *(Piece(time, 1, 2, 1) for time in range(3))))
TWO_LANES_LATER: Block = (3, (*(Piece(time, 1, 0, 1) for time in range(3)), Piece(0, 3, 1, 2)))


def blocks_of(buffer: Buffer) -> list[Block]:
    """One step, several, and as many as a lane takes. Few, since each shape has its program."""
    blocks = [whole(1), whole(3), whole(buffer.num_slots - 1)]
    if isinstance(buffer, RolloutBuffer):
        return blocks
    return [*blocks, LANE_BY_LANE, TWO_LANES_FIRST, TWO_LANES_LATER]


@st.composite
def plans(draw, buffer: Buffer, max_size: int = 8) -> tuple[list[str], list[Block]]:
    """The moments of a history, and the blocks that it is handed over in."""
    kinds = draw(st.sampled_from(KINDS))
    plan = draw(st.lists(st.sampled_from(blocks_of(buffer)), min_size=1, max_size=max_size))
    ends = np.cumsum([time for time, _ in plan])
    plan = plan[: np.searchsorted(ends, MOMENTS, side="right")]
    moments = int(ends[len(plan) - 1])
    text = draw(st.text(kinds, min_size=moments * LANES, max_size=moments * LANES))
    return [text[at : at + LANES] for at in range(0, len(text), LANES)], plan


def cut_out(played: Played, begin: int, piece: Piece) -> Chunk:
    """A chunk of what was played."""
    steps, valid, recurrent_state, _, _ = played.chunk
    rows = Chunk(steps, valid, recurrent_state, {"log_prob": steps.action[..., 0] / 2})
    first, begin = piece.first_lane or 0, begin + piece.begin
    chunk = jax.tree.map(lambda x: x[begin : begin + piece.time, first : first + piece.lanes], rows)
    return chunk if piece.first_lane is None else chunk._replace(first_lane=np.int32(first))


def add_plan(buffer: Buffer, state, played: Played, plan: list[Block], begin: int = 0):
    for time, pieces in plan:
        for piece in pieces:
            state = add(buffer, state, cut_out(played, begin, piece))
        begin += time
    return state


def add_singly(buffer: Buffer, state, played: Played):
    """One step after the other."""
    return add_plan(buffer, state, played, [whole(1)] * played.moments)


# -- the model ------------------------------------------------------------------------------------

Facts = dict[str, np.ndarray]


def frames_of(buffer: Buffer) -> Buffer:
    return buffer.frames if isinstance(buffer, HostReplayBuffer) else buffer


def sequences_of(buffer: Buffer) -> Sequences | None:
    return getattr(frames_of(buffer), "sequences", None)


def possible_samples(buffer: Buffer, played: Played) -> dict[int, Facts]:
    """Each sample that a buffer may give after all of this."""
    if isinstance(buffer, RolloutBuffer):
        return {0: rollout_facts(buffer, played)}
    frames, parts = frames_of(buffer), sequences_of(buffer)
    if parts is not None:
        places = intact_sequences(frames, played)
        return {number: sequence_facts(*at, parts) for number, at in places.items()}
    listed = isinstance(frames, ReplayBuffer)
    places = newest_steps(frames, played) if listed else intact_steps(frames, played)
    return {number: step_facts(*at) for number, at in places.items()}


def newest_steps(buffer: ReplayBuffer, played: Played) -> dict[int, tuple[list[Slot], int]]:
    """Each lane's newest steps: as many as are its share of the capacity."""
    most = math.ceil(buffer.capacity / buffer.lanes)
    return {
        slots[place].number: (slots, place)
        for slots in played.lanes
        for place in [at for at, slot in enumerate(slots) if slot.step][-most:]
    }


def step_facts(slots: list[Slot], place: int) -> Facts:
    slot = slots[place]
    if not slot.step:  # a row of a sequence: the final frame of an episode
        return dict(action=0, reward=0, discount=0, weight=0)
    reward, discount, steps = summed(slots, place, N_STEP, GAMMA)
    return dict(
        observation=slot.observation,
        action=-slot.number,
        reward=SCALE * reward,
        discount=discount,
        next_observation=slots[place + steps].observation,
        weight=1,
    )


def sequence_facts(slots: list[Slot], place: int, parts: Sequences) -> Facts:
    whole = parts.burn_in + parts.length
    known = slots[place : place + whole + N_STEP]
    observation = np.full((whole + N_STEP, *slots[0].observation.shape), np.nan)
    observation[: len(known)] = [slot.observation for slot in known]
    first = np.full(whole + N_STEP, np.nan)
    first[: len(known)] = [False, *(slot.first for slot in known[1:])]
    learned = range(parts.burn_in, whole)
    rows = [step_facts(slots, place + at) for at in learned]
    taken = [summed(slots, place + at, N_STEP, GAMMA)[2] for at in learned]
    return dict(
        observation=observation,
        first=first,
        recurrent_state=np.array(slots[place].recurrent_state),
        at=np.array(learned),
        then_at=np.array(learned) + taken,
        **{
            name: np.array([row[name] for row in rows])
            for name in ("action", "reward", "discount", "weight")
        },
    )


def rollout_facts(buffer: RolloutBuffer, played: Played) -> Facts:
    """The newest rows, in order; before the first there is nothing."""
    horizon = buffer.horizon
    steps, chunk_valid, recurrent_state, _, _ = played.chunk

    def newest(rows, nothing):
        rows = np.asarray(rows[: played.moments], float)[-horizon:]
        padding = np.full((horizon - len(rows), *rows.shape[1:]), nothing)
        return np.concatenate([padding, rows])

    valid, last = newest(chunk_valid, 0), newest(steps.last, 0)
    for time in range(horizon - 1):
        for lane in range(buffer.lanes):
            if last[time + 1, lane] and not valid[time + 1, lane]:
                last[time, lane] = True  # a cut

    def only_steps(rows):
        rows = newest(rows, np.nan)
        mask = valid.reshape(*valid.shape, *(1,) * (rows.ndim - 2)) == 1
        return np.where(mask, rows, np.nan)

    return dict(
        observation=only_steps(steps.observation),
        action=only_steps(steps.action),
        reward=only_steps(SCALE * steps.reward),
        discount=only_steps(GAMMA * (1.0 - steps.terminated)),
        last=last,
        next_observation=only_steps(steps.next_observation),
        valid=valid,
        recurrent_state=only_steps(recurrent_state)[0],
        log_prob=only_steps(steps.action[..., 0] / 2),
    )


# -- batches as samples ---------------------------------------------------------------------------


def to_samples(buffer: Buffer, batch) -> tuple[np.ndarray, Facts]:
    """Ids and facts of the samples of a batch, [samples, ...]."""
    if isinstance(buffer, RolloutBuffer):
        facts = batch._replace(memory=None, extras=None)._asdict()
        facts |= dict(recurrent_state=batch.memory, **batch.extras)
        return np.zeros(1, int), {k: v[None] for k, v in facts.items() if v is not None}
    facts = dict(reward=batch.reward, discount=batch.discount, weight=batch.weight)
    facts["action"] = batch.action[:, 0]
    newest = (
        frames_of(buffer).newest_frame if not isinstance(buffer, ReplayBuffer) else (lambda x: x)
    )
    if sequences_of(buffer) is None:
        seen = batch.observation
        facts |= dict(observation=seen, next_observation=batch.next_observation)
        return number_of(newest(seen)), facts
    facts = {name: rows.reshape(BATCH, -1) for name, rows in facts.items()}
    history, then = batch.observation, batch.next_observation
    for name in ("observation", "first", "memory"):
        np.testing.assert_array_equal(getattr(then, name), getattr(history, name))
    facts |= dict(observation=history.observation, first=history.first, at=history.at)
    facts |= dict(recurrent_state=history.memory, then_at=then.at)
    return number_of(newest(history.observation[:, 0])), facts


def assert_samples_are(batch, buffer: Buffer, possible: dict[int, Facts], skip=()) -> np.ndarray:
    """Each sample is one of the possible ones; returns their ids."""
    ids, facts = to_samples(buffer, batch)
    assert set(ids) <= set(possible)
    known, place = np.unique(ids, return_inverse=True)
    for name in facts.keys() - set(skip):
        got = np.asarray(facts[name], float)
        want = np.array([possible[number][name] for number in known], float)[place]
        assert got.shape == want.shape, name
        assert np.all(np.isfinite(got)) or isinstance(buffer, RolloutBuffer), name
        got = np.where(np.isnan(want), np.nan, got)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)
    return ids


@dataclass
class ListedPriorities:
    """The priority of each sample, by its id."""

    priorities: dict[int, float] = field(default_factory=dict)
    largest: float = 1.0

    def follow(self, ids) -> None:
        """These are the samples now: new ones get the largest priority, others are forgotten."""
        self.priorities = {number: self.priorities.get(number, self.largest) for number in ids}

    def weights(self, ids) -> np.ndarray:
        """(N · probability)^−β."""
        mean = sum(self.priorities.values()) / len(self.priorities)
        return np.array([self.priorities[number] / mean for number in ids]) ** -BETA

    def update(self, ids, errors) -> None:
        """Of several errors for one sample the largest counts."""
        new: dict[int, float] = {}
        for number, error in zip(ids, errors, strict=True):
            new[number] = max(new.get(number, 0.0), (abs(error) + 1e-6) ** EXPONENT)
        self.priorities |= new
        self.largest = max(self.largest, *new.values())


def error_of_samples(buffer: Buffer, errors, weight):
    """One error for each sample; of a sequence between the largest and the mean of its steps'."""
    if sequences_of(buffer) is None:
        return errors
    rows = zip(errors.reshape(BATCH, -1), weight.reshape(BATCH, -1), strict=True)
    sizes = [np.abs(error[own > 0]) for error, own in rows]
    return [MIX * size.max() + (1 - MIX) * size.mean() for size in sizes]
