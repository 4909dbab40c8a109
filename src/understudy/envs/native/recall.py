"""Recall-v0: see a sign, walk down a corridor, turn in the direction of the sign.

    time          0        1 … 20       21
    sees        sign      corridor   junction        reward for turning there: 1 if it is the way
    (left or right)                                  of the sign, -1 if it is the other

This is the T-maze of Bakker (2002, "Reinforcement Learning with Long Short-Term Memory"), which
tests two abilities: to walk the corridor, and to remember. Here every action moves the walker on,
so nothing has to be explored and only memory is tested: every episode reaches the junction, a
random guess is right half of the time, and a policy without memory scores 0 on average.

Observations are (sign left, sign right, corridor, junction), one of them 1. Actions are 0, left,
and 1, right; they matter at the junction alone.
"""

from dataclasses import dataclass
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.envs.base import NativeEnv, NativeStep
from understudy.types import ArraySpec, Discrete, Key, Spec


class RecallState(NamedTuple):
    sign: Int32[Array, ""]  # 0 left, 1 right
    steps: Int32[Array, ""]


@final
@dataclass(frozen=True)
class Recall(NativeEnv):
    corridor: int = 20  # steps between the sign and the junction

    @property
    def spec(self) -> Spec:
        return Spec(ArraySpec((4,)), Discrete(2))

    @property
    def max_steps(self) -> int:
        return self.corridor + 2

    def reset(self, key: Key) -> tuple[RecallState, Float[Array, "4"]]:
        sign = jax.random.bernoulli(key).astype(jnp.int32)
        state = RecallState(sign, jnp.int32(0))
        return state, self.observe(state)

    def step(self, state: RecallState, action: Int32[Array, ""], key: Key) -> NativeStep:
        at_junction = state.steps == self.corridor + 1
        turned = jnp.where(action == state.sign, 1.0, -1.0)
        state = RecallState(state.sign, state.steps + 1)
        observation, no = self.observe(state), jnp.zeros((), bool)
        reward = jnp.where(at_junction, turned, 0.0)
        return NativeStep(state, observation, reward, terminated=at_junction, truncated=no)

    def observe(self, state: RecallState) -> Float[Array, "4"]:
        at_start, at_junction = state.steps == 0, state.steps > self.corridor
        place = jnp.where(at_start, state.sign, jnp.where(at_junction, 3, 2))
        return jax.nn.one_hot(place, 4)
