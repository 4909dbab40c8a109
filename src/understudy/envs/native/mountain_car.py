"""MountainCarContinuous-v0: rock a weak car out of a valley.

The road's height is sin(3 position); units are arbitrary and time counts in steps. With the
action, the throttle, in [-1, 1]:

    velocity' = clip(velocity + power throttle - slope cos(3 position))
    position' = clip(position + velocity')

At the left end a wall sets the velocity to 0; at the right end only the position is clipped.
Reaching the goal is rewarded with 100 and terminates. Every step costs 0.1 throttle², so never
moving is a local optimum: the difficulty is exploration.
"""

from dataclasses import dataclass
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.envs.base import NativeEnv, NativeStep
from understudy.envs.native.report import report_step
from understudy.types import ArraySpec, Continuous, Key, Scalar, Spec


class MountainCarState(NamedTuple):
    position: Scalar
    velocity: Scalar
    steps: Int32[Array, ""]


@final
@dataclass(frozen=True)
class MountainCarContinuous(NativeEnv):
    max_steps: int = 999
    power: float = 0.0015
    slope: float = 0.0025
    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07
    goal_position: float = 0.45

    @property
    def spec(self) -> Spec:
        return Spec(ArraySpec((2,)), Continuous((-1.0,), (1.0,), shape=(1,)))

    def reset(self, key: Key) -> tuple[MountainCarState, Float[Array, "2"]]:
        position = jax.random.uniform(key, minval=-0.6, maxval=-0.4)
        state = MountainCarState(position, jnp.zeros((), jnp.float32), steps=jnp.int32(0))
        return state, self.observe(state)

    def step(self, state: MountainCarState, action: Float[Array, "1"], key: Key) -> NativeStep:
        throttle = jnp.clip(action[0], -1.0, 1.0)
        velocity = state.velocity + self.power * throttle - self.slope * jnp.cos(3 * state.position)
        velocity = jnp.clip(velocity, -self.max_speed, self.max_speed)
        position = jnp.clip(state.position + velocity, self.min_position, self.max_position)
        at_wall = position <= self.min_position
        velocity = jnp.where(at_wall, jnp.maximum(velocity, 0.0), velocity)

        # Both conditions matter: a car held at the right end may still be rolling back.
        terminated = (position >= self.goal_position) & (velocity >= 0.0)
        # As in Gymnasium, the cost is that of the given action, not of the clipped throttle.
        reward = jnp.where(terminated, 100.0, 0.0) - 0.1 * action[0] ** 2

        state = MountainCarState(position, velocity, state.steps + 1)
        return report_step(self, state, reward, terminated)

    def observe(self, state: MountainCarState) -> Float[Array, "2"]:
        return jnp.stack([state.position, state.velocity])
