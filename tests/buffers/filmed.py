"""Environments that are played, and everything they gave in plain Python lists: what a film must
agree with.

Every frame carries its own number, and so says where it came from. The kinds of moments: "-" is a
step, "T" terminates, "t" truncates, "C" is an environment that failed, "X" is nothing at all.
Rows of the last two carry garbage.
"""

from collections import deque
from dataclasses import dataclass, replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from understudy.buffers import frame_replay as films
from understudy.buffers.replay import revise
from understudy.types import ArraySpec, Continuous, Sequences, Spec, Transition

MOMENTS = 48  # all histories are as long, so that one program plays them
ACTION = Continuous((-1.0,), (1.0,), (1,))


def some(chosen, every):
    """All of `every`, of which only those in `chosen` are not slow."""
    return [
        pytest.param(*case, marks=() if place in chosen else pytest.mark.slow)
        for place, case in enumerate(every)
    ]


def spec_of(stack: int) -> Spec:
    shape = (stack, 2) if stack > 1 else (2,)
    return Spec(ArraySpec(shape, frames=stack), ACTION)


@dataclass(frozen=True)
class Seen:
    """One slot: a step, or the frame after the last one."""

    number: int
    observation: np.ndarray
    step: bool = False
    first: bool = False
    reward: float = 0.0
    terminated: bool = False
    last: bool = False
    memory: tuple[float, float] = (0.0, 0.0)


class Environment:
    """Stacks frames as a wrapper does, and writes down what it gives."""

    def __init__(self, stack: int, numbers, tape: list[Seen]):
        self.stack, self.numbers, self.tape = stack, numbers, tape
        self.reset()

    def reset(self) -> None:
        number = next(self.numbers)
        self.frames = deque([number] * self.stack, maxlen=self.stack)
        self.fresh = True

    def observation(self) -> np.ndarray:
        stacked = np.array([[number, -number] for number in self.frames], np.float32)
        return stacked if self.stack > 1 else stacked[0]

    def seen(self, **facts) -> Seen:
        return Seen(self.frames[-1], self.observation(), **facts)

    def play(self, kind: str):
        """The row of this moment: a step or None, what was seen next, and whether it is last."""
        if kind == "X":
            return None, None, False
        if kind == "C":
            if not self.fresh:
                self.tape[-1] = replace(self.tape[-1], last=True)
                self.tape.append(self.seen())
            self.reset()
            return None, None, True
        number = self.frames[-1]
        memory = (0.0, 0.0) if self.fresh else (number + 0.25, number + 0.5)
        reward, ends = float(number % 7) - 2.0, kind in "Tt"
        step = self.seen(
            step=True, first=self.fresh, reward=reward, terminated=kind == "T", last=ends,
            memory=memory,
        )  # fmt: skip
        self.tape.append(step)
        self.frames.append(next(self.numbers))
        self.fresh, then = False, self.observation()
        if ends:
            self.tape.append(self.seen())
            self.reset()
        return step, then, ends


def played(moments: list[str], stack: int):
    """Rows [MOMENTS, lanes, ...], and of every lane a tape of what it saw."""
    lanes = len(moments[0])
    numbers = iter(range(1, 10**6))
    tapes: list[list[Seen]] = [[] for _ in range(lanes)]
    environments = [Environment(stack, numbers, tape) for tape in tapes]
    rows = Transition(
        observation=np.full((MOMENTS, lanes, *spec_of(stack).observation.shape), -1000, np.float32),
        action=np.full((MOMENTS, lanes, 1), -1000, np.float32),
        reward=np.full((MOMENTS, lanes), 9e9, np.float32),
        terminated=np.ones((MOMENTS, lanes), bool),
        last=np.zeros((MOMENTS, lanes), bool),
        next_observation=np.full(
            (MOMENTS, lanes, *spec_of(stack).observation.shape), -1000, np.float32
        ),
    )
    valid = np.zeros((MOMENTS, lanes), bool)
    memory = np.full((MOMENTS, lanes, 2), np.nan, np.float32)
    for moment, kinds in enumerate(moments):
        for lane, (environment, kind) in enumerate(zip(environments, kinds, strict=True)):
            step, then, rows.last[moment, lane] = environment.play(kind)
            if step is None:
                continue
            valid[moment, lane] = True
            rows.observation[moment, lane] = step.observation
            rows.action[moment, lane] = -step.number
            rows.reward[moment, lane] = step.reward
            rows.terminated[moment, lane] = step.terminated
            rows.next_observation[moment, lane] = then
            memory[moment, lane] = step.memory
    for environment, tape in zip(environments, tapes, strict=True):
        if not environment.fresh:  # what lies under the cursor
            tape.append(environment.seen())
    opened = [not environment.fresh for environment in environments]
    return (rows, valid, memory), tapes, opened


@cache
def player(capacity: int, lanes: int, stack: int, sequences: Sequences | None, revising=False):
    """Adds all rows to a new film; where `revising`, draws and gives new priorities in between."""
    spec = spec_of(stack)

    def play(rows):
        def one(film, row):
            step, valid, memory = row
            film = films.add(film, step, valid, memory if sequences else None)
            if revising:
                key = jax.random.PRNGKey(jnp.sum(film.cursor))
                one = jnp.float32(1.0)
                _, place = films.sample(film, key, 4, gamma=one, reward_scale=one)
                error = 1.0 + jax.random.uniform(key, (4,))
                film = film._replace(
                    priorities=revise(film.priorities, place, error, 1.0, jnp.bool_(True))
                )
            return film, None

        film = films.create(spec, capacity, lanes, revising, sequences)
        return jax.lax.scan(one, film, rows)[0]

    return jax.jit(play)


@cache
def sampler(batch_size: int, n_step: int):
    return jax.jit(partial(films.sample, batch_size=batch_size, n_step=n_step))


def draw(film, batch_size, *, seed=0, n_step=1, gamma=0.9):
    key, gamma = jax.random.PRNGKey(seed), jnp.float32(gamma)
    batch, place = sampler(batch_size, n_step)(
        film, key, gamma=gamma, reward_scale=jnp.float32(1.0)
    )
    return jax.tree.map(np.asarray, (batch, place))


def intact(tape: list[Seen], is_open: bool, slots: int, stack: int) -> range:
    """The slots before the cursor that are complete, counted from the tape's beginning."""
    cursor = len(tape) - is_open
    oldest = max(0, cursor - (slots - 1))
    return range(oldest + (stack - 1 if cursor >= slots - 1 else 0), cursor)


def summed(tape: list[Seen], at: int, n_step: int, gamma: float) -> tuple[float, float, int]:
    """n-step reward and discount from a step on, and how many steps that were."""
    total, factor, count = 0.0, 1.0, 0
    for step in tape[at : at + n_step]:
        if not step.step:
            break
        total, factor, count = total + factor * step.reward, factor * gamma, count + 1
        if step.last:
            return total, 0.0 if step.terminated else factor, count
    return total, factor, count


@st.composite
def histories(draw, lanes: int) -> list[str]:
    """Some with long episodes, some with short ones, some with many failures."""
    kinds = draw(st.sampled_from(["-", "---------t", "----T-t-XC", "--TtXC", "TtC-"]))
    moment = st.text(kinds, min_size=lanes, max_size=lanes)
    return draw(st.lists(moment, min_size=1, max_size=MOMENTS))
