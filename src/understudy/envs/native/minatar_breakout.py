"""MinAtar-Breakout-v1: keep a ball in play with a paddle and break bricks, on 10 × 10 squares.

Young and Tian's miniature of the Atari game (2019), step by step as their package plays it. The
ball moves one square diagonally and leaves its last place behind as a trail. Side walls turn it
sideways, the ceiling and bricks up or down. A brick that is hit is gone and pays 1; right after
one hit the ball passes through whatever bricks it meets. On the bottom line the paddle sends the
ball straight back up if the ball was above it, and back the way it came if they meet only there;
otherwise the episode terminates. When the ball comes to the bottom line and no bricks are left,
three new rows appear.

Actions are 0 stay, 1 left and 2 right: the three of the six in MinAtar that do something here
(its v1). With probability 0.1 the action before is taken instead. There is no difficulty ramp in
this game. Two things differ, both so that episodes stand alone: there is a time limit, and an
episode's first step has "stay" as the action before it, not that of the last episode's end.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from understudy.envs.base import NativeEnv, NativeStep, report_step
from understudy.types import ArraySpec, Discrete, Key, Scalar, Spec

SIZE = 10
_WAYS = (0, -1, 1)  # of the paddle, by action

Whole = Int32[Array, ""]
Planes = Bool[Array, "10 10 4"]  # paddle, ball, trail, bricks


class BreakoutState(NamedTuple):
    x: Whole
    y: Whole  # 0 at the top
    way_x: Whole  # -1 or 1
    way_y: Whole
    trail_x: Whole
    trail_y: Whole
    paddle: Whole
    bricks: Bool[Array, "10 10"]
    struck: Bool[Array, ""]  # a brick was broken and the ball has not been clear of bricks since
    last_action: Whole
    steps: Whole


@final
@dataclass(frozen=True)
class MinAtarBreakout(NativeEnv):
    spec: ClassVar[Spec] = Spec(ArraySpec((SIZE, SIZE, 4), "bool"), Discrete(len(_WAYS)))
    max_steps: int = 5_000  # MinAtar itself has no limit
    sticky: float = 0.1  # probability of repeating the action before

    def reset(self, key: Key) -> tuple[BreakoutState, Planes]:
        """The ball comes down from the left or from the right wall."""
        right = jax.random.bernoulli(key)
        x, y = jnp.where(right, SIZE - 1, 0), jnp.int32(3)
        state = BreakoutState(
            x=x,
            y=y,
            way_x=jnp.where(right, -1, 1),
            way_y=jnp.int32(1),
            trail_x=x,
            trail_y=y,
            paddle=jnp.int32(4),
            bricks=_wall(),
            struck=jnp.zeros((), bool),
            last_action=jnp.int32(0),
            steps=jnp.int32(0),
        )
        return state, self.observe(state)

    def step(self, state: BreakoutState, action: Whole, key: Key) -> NativeStep:
        repeats = jax.random.uniform(key) < self.sticky
        action = jnp.where(repeats, state.last_action, action)
        paddle = jnp.clip(state.paddle + jnp.array(_WAYS)[action], 0, SIZE - 1)
        moved, reward, terminated = _move(state._replace(paddle=paddle))
        state = moved._replace(last_action=action, steps=state.steps + 1)
        return report_step(self, state, reward, terminated)

    def observe(self, state: BreakoutState) -> Planes:
        return jnp.stack(
            [
                _square(SIZE - 1, state.paddle),
                _square(state.y, state.x),
                _square(state.trail_y, state.trail_x),
                state.bricks,
            ],
            axis=-1,
        )


def _move(state: BreakoutState) -> tuple[BreakoutState, Scalar, Bool[Array, ""]]:
    """The ball's next place, what it broke, and whether it is lost."""
    aside, y = state.x + state.way_x, state.y + state.way_y
    x = jnp.clip(aside, 0, SIZE - 1)
    way_x = jnp.where(x == aside, state.way_x, -state.way_x)

    ceiling = y < 0
    y = jnp.maximum(y, 0)
    in_brick = ~ceiling & state.bricks[y, x]
    breaks = in_brick & ~state.struck
    at_bottom = ~in_brick & (y == SIZE - 1)
    above = at_bottom & (state.x == state.paddle)
    meets = at_bottom & ~above & (x == state.paddle)

    bricks = state.bricks & ~(breaks & _square(y, x))
    bricks = jnp.where(at_bottom & ~bricks.any(), _wall(), bricks)
    turns = ceiling | breaks | above | meets
    moved = state._replace(
        x=x,
        y=jnp.where(breaks | above | meets, state.y, y),
        way_x=jnp.where(meets, -way_x, way_x),
        way_y=jnp.where(turns, -state.way_y, state.way_y),
        trail_x=state.x,
        trail_y=state.y,
        bricks=bricks,
        struck=in_brick,
    )
    return moved, breaks.astype(jnp.float32), at_bottom & ~above & ~meets


def _wall() -> Bool[Array, "10 10"]:
    """Three rows under the ceiling, with a gap above."""
    row = jnp.arange(SIZE)[:, None]
    return jnp.broadcast_to((row >= 1) & (row <= 3), (SIZE, SIZE))


def _square(row: int | Whole, column: Whole) -> Bool[Array, "10 10"]:
    """A plane with one square marked."""
    squares = jnp.arange(SIZE)
    return (squares[:, None] == row) & (squares == column)
