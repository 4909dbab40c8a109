"""The walk of `walking` as a native environment. Whoever steps on after its end gets NaN."""

from dataclasses import dataclass
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array

from tests.envs.walking import BOUNDS, END, LENGTH
from understudy.envs.base import NativeEnv, NativeStep
from understudy.envs.descriptors import Descriptor
from understudy.types import ArraySpec, Continuous, Spec

SPEC = Spec(ArraySpec((2,)), Continuous((-1.0, -1.0), (1.0, 1.0), shape=(2,)))


class Place(NamedTuple):
    position: Array
    time: Array


@final
@dataclass(frozen=True)
class NativeWalk(NativeEnv):
    spread: float = 0.0
    stumbles_at: float = -jnp.inf  # NaN from there on to the left

    spec = property(lambda self: SPEC)
    max_steps = property(lambda self: LENGTH)

    def reset(self, key):
        state = Place(self.spread * jax.random.uniform(key, (2,), minval=-1.0), jnp.int32(0))
        return state, state.position

    def step(self, state, action, key):
        over = (state.position[0] >= END) | (state.time == LENGTH)
        position = jnp.where(over, jnp.nan, state.position + action)
        position = jnp.where(position[0] < self.stumbles_at, jnp.nan, position)
        state = Place(position, state.time + 1)
        ends = position[0] >= END
        return NativeStep(state, position, position[1], ends, state.time == LENGTH)

    @property
    def descriptors(self):
        return {"position": place()}


def position_of(state, observation):
    return state.position


def place(over="last", **bounds):
    return Descriptor(position_of, **(BOUNDS | bounds), over=over)
