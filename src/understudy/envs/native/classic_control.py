"""Gymnasium's classic control tasks. They equal Gymnasium's step by step, time limit included."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.envs.base import NativeEnv, NativeStep, report_step
from understudy.types import ArraySpec, Continuous, Discrete, Key, Scalar, Spec


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
    """Pendulum-v1: swing a rod up with a motor too weak to lift it, and hold it there.

    The rod is uniform and turns about one end; `angle` is 0 upright and grows anticlockwise [rad],
    `velocity` is its rate [rad/s], the action a torque [N m]:

        velocity' = clip(velocity + (3g/2l sin(angle) + 3/(ml²) torque) dt)
        angle'    = angle + velocity' dt

    The angle moves by the *new* velocity (semi-implicit Euler, which does not invent energy). The
    reward is minus a cost of the state *before* the step. Nothing terminates: only the time limit
    ends an episode.
    """

    max_steps: int = 200
    gravity: float = 10.0  # [m/s²]: rounder than the Earth's
    mass: float = 1.0  # [kg]
    length: float = 1.0  # [m]
    dt: float = 0.05  # [s]
    max_speed: float = 8.0  # [rad/s]
    max_torque: float = 2.0  # [N m]: the weight pulls with up to 5

    @property
    def spec(self) -> Spec:
        torque = Continuous((-self.max_torque,), (self.max_torque,), shape=(1,))
        return Spec(ArraySpec((3,)), torque)

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


class CartPoleState(NamedTuple):
    position: Scalar
    velocity: Scalar
    angle: Scalar
    angular_velocity: Scalar
    steps: Int32[Array, ""]


@final
@dataclass(frozen=True)
class CartPole(NativeEnv):
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

    spec: ClassVar[Spec] = Spec(ArraySpec((4,)), Discrete(2))
    max_steps: int = 500
    gravity: float = 9.8  # [m/s²]
    cart_mass: float = 1.0  # [kg]
    pole_mass: float = 0.1  # [kg]
    half_pole_length: float = 0.5  # [m]: hinge to center of mass, the `l` above
    force: float = 10.0  # [N]
    dt: float = 0.02  # [s]
    max_position: float = 2.4  # [m]
    max_angle: float = math.radians(12)

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


class MountainCarState(NamedTuple):
    position: Scalar
    velocity: Scalar
    steps: Int32[Array, ""]


@final
@dataclass(frozen=True)
class MountainCarContinuous(NativeEnv):
    """MountainCarContinuous-v0: rock a weak car out of a valley.

    The road's height is sin(3 position); units are arbitrary and time counts in steps. With the
    action, the throttle, in [-1, 1]:

        velocity' = clip(velocity + power throttle - slope cos(3 position))
        position' = clip(position + velocity')

    At the left end a wall sets the velocity to 0; at the right end only the position is clipped.
    Reaching the goal is rewarded with 100 and terminates. Every step costs 0.1 throttle², so never
    moving is a local optimum: the difficulty is exploration.
    """

    spec: ClassVar[Spec] = Spec(ArraySpec((2,)), Continuous((-1.0,), (1.0,), shape=(1,)))
    max_steps: int = 999
    power: float = 0.0015
    slope: float = 0.0025
    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07
    goal_position: float = 0.45

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


class AcrobotState(NamedTuple):
    shoulder_angle: Scalar
    elbow_angle: Scalar
    shoulder_velocity: Scalar
    elbow_velocity: Scalar
    steps: Int32[Array, ""]


@final
@dataclass(frozen=True)
class Acrobot(NativeEnv):
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

    The two links are alike, hence one value for both.
    """

    spec: ClassVar[Spec] = Spec(ArraySpec((6,)), Discrete(3))
    max_steps: int = 500
    gravity: float = 9.8  # [m/s²]
    link_length: float = 1.0  # [m]
    link_mass: float = 1.0  # [kg]
    center_of_mass: float = 0.5  # [m] along the link
    inertia: float = 1.0  # [kg m²] about the center of mass
    dt: float = 0.2  # [s]
    max_shoulder_speed: float = 4 * math.pi
    max_elbow_speed: float = 9 * math.pi

    def reset(self, key: Key) -> tuple[AcrobotState, Float[Array, "6"]]:
        start = jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
        state = AcrobotState(*start, steps=jnp.int32(0))
        return state, self.observe(state)

    def step(self, state: AcrobotState, action: Int32[Array, ""], key: Key) -> NativeStep:
        torque = (action - 1).astype(jnp.float32)
        q1, q2, v1, v2 = self._integrate(jnp.stack(state[:4]), torque)
        state = AcrobotState(
            wrap_angle(q1),
            wrap_angle(q2),
            jnp.clip(v1, -self.max_shoulder_speed, self.max_shoulder_speed),
            jnp.clip(v2, -self.max_elbow_speed, self.max_elbow_speed),
            state.steps + 1,
        )
        tip_angle = state.shoulder_angle + state.elbow_angle
        # The height of the tip above the shoulder, in links.
        terminated = -jnp.cos(state.shoulder_angle) - jnp.cos(tip_angle) > 1.0
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
