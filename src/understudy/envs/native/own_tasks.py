"""Our own tasks, each of which tests one ability: exploration, and memory."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from understudy.envs.base import NativeEnv, NativeStep, report_step
from understudy.envs.descriptors import Descriptor
from understudy.types import ArraySpec, Continuous, Discrete, Key, Spec


class PointNavigationState(NamedTuple):
    position: Float[Array, "2"]
    steps: Int32[Array, ""]


@final
@dataclass(frozen=True)
class PointNavigation(NativeEnv):
    """PointNavigation-v0: walk around a wall to a goal in the unit square.

          1 +-----------------+
            |        G        |     G  goal
            |                 |
            |  =============  |     =  wall, with a gap at either end
            |                 |
            |        S        |     S  start, the same in every episode
          0 +-----------------+
            0                 1

    The action, in [-1, 1]², times `step_size` is the displacement. The reward is minus the distance
    to the goal after the step. Moving straight up ends under the wall, at a local optimum, where
    greedy learners stay; a repertoire over final positions finds both gaps. Nothing terminates. The
    start is fixed, so the final position depends on the policy alone.

    All places are eighths and the step is a twentieth: a walk at full speed never lands
    exactly on the wall, where rounding would decide whether it passes.
    """

    spec: ClassVar[Spec] = Spec(ArraySpec((2,)), Continuous((-1.0, -1.0), (1.0, 1.0), shape=(2,)))
    max_steps: int = 100
    step_size: float = 0.05
    start: tuple[float, float] = (0.5, 0.125)
    goal: tuple[float, float] = (0.5, 0.875)
    wall_height: float = 0.5
    wall_left: float = 0.125
    wall_right: float = 0.875

    def reset(self, key: Key) -> tuple[PointNavigationState, Float[Array, "2"]]:
        state = PointNavigationState(jnp.array(self.start), jnp.int32(0))
        return state, self.observe(state)

    def step(self, state: PointNavigationState, action: Float[Array, "2"], key: Key) -> NativeStep:
        position = self._move(state.position, jnp.clip(action, -1.0, 1.0) * self.step_size)
        squared_distance = jnp.sum((position - jnp.array(self.goal)) ** 2)
        # The floor keeps the square root differentiable at the goal.
        distance = jnp.sqrt(jnp.maximum(squared_distance, 1e-12))

        state = PointNavigationState(position, state.steps + 1)
        return report_step(self, state, -distance)

    @property
    def descriptors(self) -> dict[str, Descriptor]:
        """The final position, in [0, 1]²."""
        place = Descriptor(_position, (0.0, 0.0), (1.0, 1.0), over="last", names=("x", "y"))
        return {"position": place}

    def _move(self, position: Float[Array, "2"], way: Float[Array, "2"]) -> Float[Array, "2"]:
        """Move sideways, then up or down. A step into the wall loses only its vertical part, so the
        point slides along the wall."""
        x, y = jnp.clip(position + way, 0.0, 1.0)
        under_or_over_wall = (self.wall_left <= x) & (x <= self.wall_right)
        changes_side = (position[1] >= self.wall_height) != (y >= self.wall_height)
        y = jnp.where(under_or_over_wall & changes_side, position[1], y)
        return jnp.stack([x, y])

    def observe(self, state: PointNavigationState) -> Float[Array, "2"]:
        """Scale the position to [-1, 1]²."""
        return 2.0 * state.position - 1.0


def _position(state: PointNavigationState, observation: Float[Array, "2"]) -> Float[Array, "2"]:
    return state.position


class RecallState(NamedTuple):
    sign: Int32[Array, ""]  # 0 left, 1 right
    steps: Int32[Array, ""]


@final
@dataclass(frozen=True)
class Recall(NativeEnv):
    """Recall-v0: see a sign, walk down a corridor, turn in the direction of the sign.

        time          0        1 … 20       21
        sees        sign      corridor   junction      reward for turning there: 1 if it is the way
        (left or right)                                of the sign, -1 if it is the other

    This is the T-maze of Bakker (2002, "Reinforcement Learning with Long Short-Term Memory"), which
    tests two abilities: to walk the corridor, and to remember. Here every action moves the walker
    on, so nothing has to be explored and only memory is tested: every episode reaches the junction,
    a random guess is right half of the time, and a policy without memory scores 0 on average.

    Observations are (sign left, sign right, corridor, junction), one of them 1. Actions are 0,
    left, and 1, right; they matter at the junction alone.
    """

    spec: ClassVar[Spec] = Spec(ArraySpec((4,)), Discrete(2))
    corridor: int = 20  # steps between the sign and the junction

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
