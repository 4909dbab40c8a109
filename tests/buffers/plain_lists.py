"""A replay buffer as plain Python lists: what the real one must agree with.

Every step carries its own number: observation n, action −n, next observation n + ½, so that a
sampled row says where it came from. Rows that are no steps carry garbage, −1000; they are None
where nothing happened and CUT where the environment failed.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from understudy.buffers import ReplayBuffer
from understudy.types import ArraySpec, Chunk, Continuous, Spec, Step

SPEC = Spec(ArraySpec((1,)), Continuous((-1.0,), (1.0,), (1,)))
BATCH = 512  # enough to sample each of some 20 stored steps with near certainty

append = jax.jit(ReplayBuffer.add, static_argnums=0)
take = jax.jit(ReplayBuffer.sample, static_argnums=0)
count = jax.jit(ReplayBuffer.num_stored, static_argnums=0)


@cache
def empty(buffer):
    return jax.jit(buffer.init)()


def hyper(gamma=0.5, reward_scale=1.0, importance_exponent=1.0):
    values = dict(gamma=gamma, reward_scale=reward_scale, importance_exponent=importance_exponent)
    return {name: jnp.float32(value) for name, value in values.items()}


@dataclass(frozen=True)
class NumberedStep:
    number: int
    reward: float = 0.0
    terminated: bool = False
    last: bool = False


CUT = NumberedStep(-1000, 9e9, True, True)
NOTHING = NumberedStep(-1000, 9e9, True, False)


def one_step(steps) -> Chunk:
    """One step of every lane; where there is none, garbage that claims to have terminated."""
    valid = np.array([step not in (None, CUT) for step in steps])
    steps = [step or NOTHING for step in steps]
    number = np.array([[step.number] for step in steps], np.float32)
    step = Step(
        observation=number,
        action=-number,
        reward=np.array([step.reward for step in steps], np.float32),
        terminated=np.array([step.terminated for step in steps]),
        last=np.array([step.last for step in steps]),
        next_observation=number + np.float32(0.5),
    )
    return Chunk.of_one_step(step, valid)


class ListedReplay:
    """The real buffer and its model, to which the same is added."""

    def __init__(self, capacity: int, lanes: int):
        self.buffer = ReplayBuffer(SPEC, capacity, lanes, BATCH)
        self.state = empty(self.buffer)
        self.lanes: list[list[NumberedStep]] = [[] for _ in range(lanes)]
        self.per_lane = math.ceil(capacity / lanes)

    def add(self, steps) -> None:
        self.state = append(self.buffer, self.state, one_step(steps))
        for lane, step in zip(self.lanes, steps, strict=True):
            if step is CUT and lane:
                lane[-1] = replace(lane[-1], last=True)
            elif step not in (None, CUT):
                lane.append(step)
                del lane[: -self.per_lane]

    def sample(self, seed=0, *, n_step=1, **hypers):
        """A batch of NumPy arrays, flat where the spec above has one number."""
        buffer = replace(self.buffer, n_step=n_step)
        batch, _ = take(buffer, self.state, jax.random.PRNGKey(seed), hyper(**hypers))
        batch = jax.tree.map(np.asarray, batch)
        return batch._replace(
            observation=batch.observation[:, 0],
            action=batch.action[:, 0],
            next_observation=batch.next_observation[:, 0],
        )

    def stored(self) -> dict[int, tuple[int, int]]:
        """Where each step that can be sampled stands: number -> (lane, place)."""
        return {
            step.number: (lane, place)
            for lane, steps in enumerate(self.lanes)
            for place, step in enumerate(steps)
        }

    def summed(self, number: int, n: int, gamma: float) -> tuple[float, float, float]:
        """n-step reward, discount and next observation from the step of that number."""
        lane, place = self.stored()[number]
        total, factor = 0.0, 1.0
        for step in self.lanes[lane][place : place + n]:
            total += factor * step.reward
            factor *= gamma
            final = step
            if step.last:
                break
        return total, 0.0 if final.terminated else factor, final.number + 0.5


@st.composite
def histories(draw, lanes: int, longest: int = 14):
    """Steps of every lane, some missing, some cut, with random episode ends of either kind."""
    kinds = st.lists(st.sampled_from("---TtXC"), min_size=lanes, max_size=lanes)
    history, number = [], 0
    for moment in draw(st.lists(kinds, min_size=1, max_size=longest)):
        steps = []
        for kind in moment:
            number += 1
            step = NumberedStep(number, float(number % 7) - 2.0, kind == "T", kind in "Tt")
            steps.append({"X": None, "C": CUT}.get(kind, step))
        history.append(steps)
    return history
