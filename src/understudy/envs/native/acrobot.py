"""Acrobot-v1: swing a two-link arm, driven only at the elbow, until its tip is high enough.

`shoulder_angle` is 0 when the first link hangs down, `elbow_angle` is the second link's angle
relative to the first [rad]; velocities are their rates [rad/s]. Actions 0, 1, 2 are elbow
torques of -1, 0, 1 [N m]. The arm obeys

    M(q) q̈ + h(q, q̇) = (0, torque)

with the mass matrix M and the Coriolis, centrifugal and gravity terms h, in the form of Sutton
and Barto's book, over one Runge-Kutta step (RK4) of 0.2 s. A step costs 1 and the episode
terminates, free of charge, when the tip is one link's length above the shoulder.

The motion is chaotic: two runs that differ by one rounding part after some fifty steps. Each
step equals Gymnasium's to float32 precision; whole trajectories cannot.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.envs.base import NativeEnv, NativeStep
from understudy.envs.native.pendulum import wrap_angle
from understudy.envs.native.report import report_step
from understudy.types import ArraySpec, Discrete, Key, Scalar, Spec


class AcrobotState(NamedTuple):
    shoulder_angle: Scalar
    elbow_angle: Scalar
    shoulder_velocity: Scalar
    elbow_velocity: Scalar
    steps: Int32[Array, ""]


@final
@dataclass(frozen=True)
class Acrobot(NativeEnv):
    """The two links are alike, hence one value for both."""

    max_steps: int = 500
    gravity: float = 9.8  # [m/s²]
    link_length: float = 1.0  # [m]
    link_mass: float = 1.0  # [kg]
    center_of_mass: float = 0.5  # [m] along the link
    inertia: float = 1.0  # [kg m²] about the center of mass
    dt: float = 0.2  # [s]
    max_shoulder_speed: float = 4 * math.pi
    max_elbow_speed: float = 9 * math.pi

    @property
    def spec(self) -> Spec:
        return Spec(ArraySpec((6,)), Discrete(3))

    def reset(self, key: Key) -> tuple[AcrobotState, Float[Array, "6"]]:
        start = jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
        state = AcrobotState(*start, steps=jnp.int32(0))
        return state, self.observe(state)

    def step(self, state: AcrobotState, action: Int32[Array, ""], key: Key) -> NativeStep:
        torque = (action - 1).astype(jnp.float32)
        shoulder_angle, elbow_angle, shoulder_velocity, elbow_velocity = self._integrate(
            jnp.stack(state[:4]), torque
        )
        state = AcrobotState(
            wrap_angle(shoulder_angle),
            wrap_angle(elbow_angle),
            jnp.clip(shoulder_velocity, -self.max_shoulder_speed, self.max_shoulder_speed),
            jnp.clip(elbow_velocity, -self.max_elbow_speed, self.max_elbow_speed),
            state.steps + 1,
        )
        tip_height = -jnp.cos(state.shoulder_angle) - jnp.cos(
            state.shoulder_angle + state.elbow_angle
        )  # above the shoulder, in links
        terminated = tip_height > 1.0
        return report_step(self, state, jnp.where(terminated, 0.0, -1.0), terminated)

    def _integrate(self, motion: Float[Array, "4"], torque: Scalar) -> Float[Array, "4"]:
        """Angles and velocities `dt` later; the torque is held meanwhile."""
        start = self._derivative(motion, torque)
        early_middle = self._derivative(motion + self.dt / 2 * start, torque)
        late_middle = self._derivative(motion + self.dt / 2 * early_middle, torque)
        end = self._derivative(motion + self.dt * late_middle, torque)
        return motion + self.dt / 6 * (start + 2 * early_middle + 2 * late_middle + end)

    def _derivative(self, motion: Float[Array, "4"], torque: Scalar) -> Float[Array, "4"]:
        """Velocities and accelerations, from the equation of motion solved for q̈."""
        shoulder, elbow, shoulder_velocity, elbow_velocity = motion
        mass, length, center = self.link_mass, self.link_length, self.center_of_mass
        sine = jnp.sin(elbow)
        coupling = mass * length * center

        # M = [[m11, m12], [m12, m22]]
        m22 = mass * center**2 + self.inertia
        m12 = m22 + coupling * jnp.cos(elbow)
        m11 = 2 * m22 + mass * length**2 + 2 * coupling * jnp.cos(elbow)

        elbow_weight = mass * self.gravity * center * jnp.sin(shoulder + elbow)
        shoulder_weight = mass * self.gravity * (center + length) * jnp.sin(shoulder)
        h1 = (
            -coupling * sine * elbow_velocity * (elbow_velocity + 2 * shoulder_velocity)
            + shoulder_weight
            + elbow_weight
        )
        h2 = coupling * sine * shoulder_velocity**2 + elbow_weight

        # M is positive definite, so neither m11 nor its complement can vanish.
        ratio = m12 / m11
        elbow_acceleration = (torque + ratio * h1 - h2) / (m22 - ratio * m12)
        shoulder_acceleration = -(m12 * elbow_acceleration + h1) / m11
        return jnp.stack(
            [shoulder_velocity, elbow_velocity, shoulder_acceleration, elbow_acceleration]
        )

    def observe(self, state: AcrobotState) -> Float[Array, "6"]:
        q1, q2, v1, v2, _ = state
        return jnp.stack([jnp.cos(q1), jnp.sin(q1), jnp.cos(q2), jnp.sin(q2), v1, v2])
