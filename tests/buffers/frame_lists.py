"""Environments that are played, and everything they gave in plain Python lists: what a frame
replay buffer must agree with.

Every frame carries its own number, and so says where it came from. The kinds of moments: "-" is a
step, "T" terminates, "t" truncates, "C" is an environment that failed, "X" is nothing at all.
Rows of the last two carry garbage.
"""

from collections import deque
from dataclasses import dataclass, replace
from functools import cache
from itertools import count

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.buffers.plain_lists import hyper
from understudy.buffers import FrameReplayBuffer
from understudy.types import ArraySpec, Chunk, Continuous, Sequences, Spec, Step

MOMENTS = 48  # all histories are as long, so that one program plays them
ACTION = Continuous((-1.0,), (1.0,), (1,))

take = jax.jit(FrameReplayBuffer.sample, static_argnums=0)
num_stored = jax.jit(FrameReplayBuffer.num_stored, static_argnums=0)


def some(chosen, every):
    """All of `every`, of which only those in `chosen` are not slow."""
    return [
        pytest.param(*case, marks=() if place in chosen else pytest.mark.slow)
        for place, case in enumerate(every)
    ]


def spec_of(stack: int, dtype: str = "float32") -> Spec:
    """Frames of two numbers; of bytes, images of 1 × 2 pixels."""
    frame = (2,) if dtype == "float32" else (1, 2)
    shape = (stack, *frame) if stack > 1 else frame
    return Spec(ArraySpec(shape, dtype, frames=stack), ACTION)


def frame_of(number: int, dtype: str) -> np.ndarray:
    if dtype == "float32":
        return np.array([number, -number], dtype)
    return np.array([[number // 256, number % 256]], dtype)


def number_of(frame) -> np.ndarray:
    """The numbers of frames [..., 2] or [..., 1, 2]."""
    if frame.dtype == np.float32:
        return frame[..., 0].astype(int)
    return 256 * frame[..., 0, 0].astype(int) + frame[..., 0, 1]


@dataclass(frozen=True)
class Slot:
    """A step, or the frame after the last one."""

    number: int
    observation: np.ndarray
    step: bool = False
    first: bool = False
    reward: float = 0.0
    terminated: bool = False
    last: bool = False
    recurrent_state: tuple[float, float] = (0.0, 0.0)


class Environment:
    """Stacks frames as a wrapper does, and writes down what it gives."""

    def __init__(self, spec: Spec, numbers, slots: list[Slot]):
        self.spec, self.numbers, self.slots = spec.observation, numbers, slots
        self.reset()

    def reset(self) -> None:
        number = next(self.numbers)
        self.frames = deque([number] * self.spec.frames, maxlen=self.spec.frames)
        self.fresh = True

    def observation(self) -> np.ndarray:
        frames = np.stack([frame_of(number, self.spec.dtype) for number in self.frames])
        return frames if self.spec.frames > 1 else frames[0]

    def seen(self, **facts) -> Slot:
        return Slot(self.frames[-1], self.observation(), **facts)

    def play(self, kind: str):
        """The row of this moment: a step or None, what was seen next, and whether it is last."""
        if kind == "X":
            return None, None, False
        if kind == "C":
            if not self.fresh:
                self.slots[-1] = replace(self.slots[-1], last=True)
                self.slots.append(self.seen())
                self.reset()
            return None, None, True
        number = self.frames[-1]
        recurrent_state = (0.0, 0.0) if self.fresh else (number + 0.25, number + 0.5)
        reward, ends = float(number % 7) - 2.0, kind in "Tt"
        step = self.seen(
            step=True, first=self.fresh, reward=reward, terminated=kind == "T", last=ends,
            recurrent_state=recurrent_state,
        )  # fmt: skip
        self.slots.append(step)
        self.frames.append(next(self.numbers))
        self.fresh, then = False, self.observation()
        if ends:
            self.slots.append(self.seen())
            self.reset()
        return step, then, ends


@dataclass(frozen=True)
class Played:
    """What happened, as a chunk [MOMENTS, lanes, ...] and as a list of slots for every lane."""

    moments: int  # rows after these are nothing at all
    chunk: Chunk
    lanes: list[list[Slot]]
    is_open: list[bool]  # the episode goes on: a lane's last slot is the frame under the cursor


def play(moments: list[str], spec: Spec) -> Played:
    """Each moment has one kind for every lane."""
    lanes, shape = len(moments[0]), spec.observation.shape
    slots: list[list[Slot]] = [[] for _ in range(lanes)]
    environments = [
        Environment(spec, count(1 + 1000 * lane), own) for lane, own in enumerate(slots)
    ]
    garbage = -1000 if spec.observation.dtype == "float32" else 255
    steps = Step(
        observation=np.full((MOMENTS, lanes, *shape), garbage, spec.observation.dtype),
        action=np.full((MOMENTS, lanes, 1), -1000, np.float32),
        reward=np.full((MOMENTS, lanes), 9e9, np.float32),
        terminated=np.ones((MOMENTS, lanes), bool),
        last=np.zeros((MOMENTS, lanes), bool),
        next_observation=np.full((MOMENTS, lanes, *shape), garbage, spec.observation.dtype),
    )
    valid = np.zeros((MOMENTS, lanes), bool)
    recurrent_state = np.full((MOMENTS, lanes, 2), np.nan, np.float32)
    for moment, kinds in enumerate(moments):
        for lane, (environment, kind) in enumerate(zip(environments, kinds, strict=True)):
            step, then, steps.last[moment, lane] = environment.play(kind)
            if step is None:
                continue
            valid[moment, lane] = True
            steps.observation[moment, lane] = step.observation
            steps.action[moment, lane] = -step.number
            steps.reward[moment, lane] = step.reward
            steps.terminated[moment, lane] = step.terminated
            steps.next_observation[moment, lane] = then
            recurrent_state[moment, lane] = step.recurrent_state
    for environment, own in zip(environments, slots, strict=True):
        if not environment.fresh:  # what lies under the cursor
            own.append(environment.seen())
    is_open = [not environment.fresh for environment in environments]
    return Played(len(moments), Chunk(steps, valid, recurrent_state), slots, is_open)


@cache
def adder(buffer: FrameReplayBuffer):
    """Adds all rows to a new buffer, one step after the other; with priorities, samples and updates
    them in between."""
    few = replace(buffer, batch_size=4)
    hypers = hyper(1.0)

    def one(state, row):
        state = buffer.add(state, Chunk.of_one_step(*row))
        if buffer.priority_exponent is not None:
            key = jax.random.PRNGKey(jnp.sum(state.cursor))
            batch, indices = few.sample(state, key, hypers)
            errors = 1.0 + jax.random.uniform(key, batch.weight.shape)
            priorities = few.update_priorities(
                state, indices, errors, batch.weight, jnp.bool_(True)
            )
            state = few.with_priorities(state, priorities)
        return state, None

    def add_all(chunk):
        return jax.lax.scan(one, buffer.init(), chunk[:3])[0]

    return jax.jit(add_all)


def filled(buffer: FrameReplayBuffer, played: Played):
    """The state of a buffer after all of this; programs are shared between kinds of samples."""
    return adder(replace(buffer, batch_size=1, n_step=1))(played.chunk)


def sample(buffer: FrameReplayBuffer, state, seed=0):
    batch = take(buffer, state, jax.random.PRNGKey(seed), hyper(0.9))
    return jax.tree.map(np.asarray, batch)


def intact(slots: list[Slot], is_open: bool, buffer: FrameReplayBuffer) -> range:
    """The slots before the cursor that are complete, counted from the list's beginning."""
    cursor, most = len(slots) - is_open, buffer.num_slots - 1
    oldest = max(0, cursor - most)
    return range(oldest + (buffer.stack - 1 if cursor >= most else 0), cursor)


def intact_steps(buffer: FrameReplayBuffer, played: Played) -> dict[int, tuple[list[Slot], int]]:
    """Where each step that can be sampled lies: its number -> (slots, place)."""
    return {
        slots[place].number: (slots, place)
        for slots, is_open in zip(played.lanes, played.is_open, strict=True)
        for place in intact(slots, is_open, buffer)
        if slots[place].step
    }


def intact_sequences(
    buffer: FrameReplayBuffer, played: Played
) -> dict[int, tuple[list[Slot], int]]:
    """Where each sequence that can be sampled begins: the number of its first frame -> (slots,
    place). It needs all that it is learned from and what was seen next."""
    parts: Sequences = buffer.sequences
    whole = parts.burn_in + parts.length
    return {
        slots[place].number: (slots, place)
        for slots, is_open in zip(played.lanes, played.is_open, strict=True)
        for place in intact(slots, is_open, buffer)
        if place % parts.stride == 0 and place + whole < len(slots)
    }


def summed(slots: list[Slot], at: int, n_step: int, gamma: float) -> tuple[float, float, int]:
    """n-step reward and discount from a step on, and how many steps that were."""
    total, factor, steps = 0.0, 1.0, 0
    for slot in slots[at : at + n_step]:
        if not slot.step:
            break
        total, factor, steps = total + factor * slot.reward, factor * gamma, steps + 1
        if slot.last:
            return total, 0.0 if slot.terminated else factor, steps
    return total, factor, steps


# Some with long episodes, some with short ones, some with many failures.
KINDS = ["-", "---------t", "----T-t-XC", "--TtXC", "TtC-"]


@st.composite
def histories(draw, lanes: int) -> list[str]:
    moment = st.text(draw(st.sampled_from(KINDS)), min_size=lanes, max_size=lanes)
    return draw(st.lists(moment, min_size=1, max_size=MOMENTS))
