"""CartPole-v1: push a cart left or right so that the pole hinged on it does not fall.

`position` and `velocity` are the cart's [m, m/s], `angle` and `angular_velocity` the pole's
[rad, rad/s], 0 upright and positive to the right. Action 0 pushes left, 1 pushes right, always
with full force. Without friction, Newton's laws for the pair give

    push = (force + m l ω² sin θ) / (M + m)
    ω̇    = (g sin θ - push cos θ) / (l (4/3 - m cos² θ / (M + m)))
    v̇    = push - m l ω̇ cos θ / (M + m)

integrated by explicit Euler: positions move by the *old* velocities. Every step earns 1, the
fatal one included. The episode terminates when the cart leaves the track or the pole leans more
than 12 degrees.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.envs.base import NativeEnv, NativeStep
from understudy.envs.native.report import report_step
from understudy.types import ArraySpec, Discrete, Key, Scalar, Spec


class CartPoleState(NamedTuple):
    position: Scalar
    velocity: Scalar
    angle: Scalar
    angular_velocity: Scalar
    steps: Int32[Array, ""]


@final
@dataclass(frozen=True)
class CartPole(NativeEnv):
    max_steps: int = 500
    gravity: float = 9.8  # [m/s²]
    cart_mass: float = 1.0  # [kg]
    pole_mass: float = 0.1  # [kg]
    half_pole_length: float = 0.5  # [m]: hinge to center of mass, the `l` above
    force: float = 10.0  # [N]
    dt: float = 0.02  # [s]
    max_position: float = 2.4  # [m]
    max_angle: float = math.radians(12)

    @property
    def spec(self) -> Spec:
        return Spec(ArraySpec((4,)), Discrete(2))

    def reset(self, key: Key) -> tuple[CartPoleState, Float[Array, "4"]]:
        start = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        state = CartPoleState(*start, steps=jnp.int32(0))
        return state, self.observe(state)

    def step(self, state: CartPoleState, action: Int32[Array, ""], key: Key) -> NativeStep:
        acceleration, angular_acceleration = self._accelerations(state, action)
        state = CartPoleState(
            position=state.position + self.dt * state.velocity,
            velocity=state.velocity + self.dt * acceleration,
            angle=state.angle + self.dt * state.angular_velocity,
            angular_velocity=state.angular_velocity + self.dt * angular_acceleration,
            steps=state.steps + 1,
        )
        off_track = jnp.abs(state.position) > self.max_position
        fallen = jnp.abs(state.angle) > self.max_angle
        return report_step(self, state, jnp.ones((), jnp.float32), off_track | fallen)

    def _accelerations(
        self, state: CartPoleState, action: Int32[Array, ""]
    ) -> tuple[Scalar, Scalar]:
        """Of the cart [m/s²] and of the pole [rad/s²]."""
        force = jnp.where(action == 1, self.force, -self.force)
        sine, cosine = jnp.sin(state.angle), jnp.cos(state.angle)
        total_mass = self.cart_mass + self.pole_mass
        pole_moment = self.pole_mass * self.half_pole_length

        push = (force + pole_moment * state.angular_velocity**2 * sine) / total_mass
        angular_acceleration = (self.gravity * sine - cosine * push) / (
            self.half_pole_length * (4 / 3 - self.pole_mass * cosine**2 / total_mass)
        )
        acceleration = push - pole_moment * angular_acceleration * cosine / total_mass
        return acceleration, angular_acceleration

    def observe(self, state: CartPoleState) -> Float[Array, "4"]:
        return jnp.stack([state.position, state.velocity, state.angle, state.angular_velocity])
