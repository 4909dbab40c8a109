"""Pendulum-v1: swing a rod up with a motor too weak to lift it, and hold it there.

The rod is uniform and turns about one end; `angle` is 0 upright and grows anticlockwise [rad],
`velocity` is its rate [rad/s], the action a torque [N m]:

    velocity' = clip(velocity + (3g/2l sin(angle) + 3/(ml²) torque) dt)
    angle'    = angle + velocity' dt

The angle moves by the *new* velocity (semi-implicit Euler, which does not invent energy). The
reward is minus a cost of the state *before* the step. Nothing terminates: only the time limit
ends an episode.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.envs.base import NativeEnv, NativeStep
from understudy.envs.native.report import report_step
from understudy.types import ArraySpec, Continuous, Key, Scalar, Spec


class PendulumState(NamedTuple):
    angle: Scalar  # in [-pi, pi], 0 is upright
    velocity: Scalar
    steps: Int32[Array, ""]


def wrap_angle(angle: Scalar) -> Scalar:
    """The same direction in [-pi, pi]. Angles already there come back bit for bit."""
    return angle - 2 * math.pi * jnp.round(angle / (2 * math.pi))


@final
@dataclass(frozen=True)
class Pendulum(NativeEnv):
    max_steps: int = 200
    gravity: float = 10.0  # [m/s²]: rounder than the Earth's
    mass: float = 1.0  # [kg]
    length: float = 1.0  # [m]
    dt: float = 0.05  # [s]
    max_speed: float = 8.0  # [rad/s]
    max_torque: float = 2.0  # [N m]: the weight pulls with up to 5

    @property
    def spec(self) -> Spec:
        return Spec(
            ArraySpec((3,)), Continuous((-self.max_torque,), (self.max_torque,), shape=(1,))
        )

    def reset(self, key: Key) -> tuple[PendulumState, Float[Array, "3"]]:
        highest = jnp.array([math.pi, 1.0])
        angle, velocity = jax.random.uniform(key, (2,), minval=-highest, maxval=highest)
        state = PendulumState(angle, velocity, jnp.int32(0))
        return state, self.observe(state)

    def step(self, state: PendulumState, action: Float[Array, "1"], key: Key) -> NativeStep:
        torque = jnp.clip(action[0], -self.max_torque, self.max_torque)
        # Wrapped here too: a state may come from elsewhere, and the cost must not count turns.
        angle_from_upright = wrap_angle(state.angle)
        cost = angle_from_upright**2 + 0.1 * state.velocity**2 + 0.001 * torque**2

        acceleration = (
            3 * self.gravity / (2 * self.length) * jnp.sin(state.angle)
            + 3 / (self.mass * self.length**2) * torque
        )
        velocity = state.velocity + acceleration * self.dt
        velocity = jnp.clip(velocity, -self.max_speed, self.max_speed)
        # Gymnasium lets the angle count turns; float32 would lose digits, and nothing sees it.
        angle = wrap_angle(state.angle + velocity * self.dt)

        state = PendulumState(angle, velocity, state.steps + 1)
        return report_step(self, state, -cost)

    def observe(self, state: PendulumState) -> Float[Array, "3"]:
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.velocity])
