"""The replay ring as plain Python lists: what the real one must agree with.

Every step carries its own number: observation n, action −n, next observation n + ½, so that a
sampled row says where it came from. Garbage rows carry −1000; they are None where nothing
happened and CUT where the environment failed.
"""

import math
from dataclasses import dataclass, replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from understudy.buffers.replay import add, create, sample
from understudy.types import ArraySpec, Continuous, Spec, Transition

SPEC = Spec(ArraySpec((1,)), Continuous((-1.0,), (1.0,), (1,)))
BATCH = 512  # enough to draw each of some 20 stored steps with near certainty

append = jax.jit(add)


@cache
def sampler(n_step: int, batch_size: int = BATCH):
    return jax.jit(partial(sample, batch_size=batch_size, n_step=n_step))


def draw(ring, seed=0, *, gamma=0.5, reward_scale=1.0, n_step=1):
    """A batch of NumPy arrays, flat where the specs above have one number."""
    batch, _ = sampler(n_step)(
        ring,
        jax.random.PRNGKey(seed),
        gamma=jnp.float32(gamma),
        reward_scale=jnp.float32(reward_scale),
    )
    flat = batch._replace(
        observation=batch.observation[:, 0],
        action=batch.action[:, 0],
        next_observation=batch.next_observation[:, 0],
    )
    return jax.tree.map(np.asarray, flat)


@dataclass(frozen=True)
class Step:
    number: int
    reward: float
    terminated: bool
    last: bool


CUT = Step(-1000, 9e9, True, True)
NOTHING = Step(-1000, 9e9, True, False)


def row(steps) -> Transition:
    """One step of every lane; where there is none, garbage that claims to have terminated."""
    steps = [step or NOTHING for step in steps]
    number = np.array([step.number for step in steps], np.float32)
    return Transition(
        observation=jnp.asarray(number[:, None]),
        action=jnp.asarray(-number[:, None]),
        reward=jnp.asarray([step.reward for step in steps], jnp.float32),
        terminated=jnp.asarray([step.terminated for step in steps]),
        last=jnp.asarray([step.last for step in steps]),
        next_observation=jnp.asarray(number[:, None] + 0.5),
    )


class Listed:
    """The real ring and its model, fed alike."""

    def __init__(self, capacity: int, lanes: int):
        self.ring = create(SPEC, capacity, lanes)
        self.lanes: list[list[Step]] = [[] for _ in range(lanes)]
        self.per_lane = math.ceil(capacity / lanes)

    def add(self, steps) -> None:
        valid = jnp.asarray([step not in (None, CUT) for step in steps])
        self.ring = append(self.ring, row(steps), valid)
        for lane, step in zip(self.lanes, steps, strict=True):
            if step is CUT and lane:
                lane[-1] = replace(lane[-1], last=True)
            elif step not in (None, CUT):
                lane.append(step)
                del lane[: -self.per_lane]

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
            step = Step(number, float(number % 7) - 2.0, kind == "T", kind in "Tt")
            steps.append({"X": None, "C": CUT}.get(kind, step))
        history.append(steps)
    return history
