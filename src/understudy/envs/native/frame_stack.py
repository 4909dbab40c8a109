"""The last few frames of a native environment as one observation."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from understudy.envs.base import NativeEnv, NativeStep
from understudy.types import Key, Spec


class StackedState(NamedTuple):
    inner: Any
    frames: Shaped[Array, "count *frame"]  # the newest last


@final
@dataclass(frozen=True)
class StackedNative(NativeEnv):
    """Shows the last `count` frames; an episode begins with copies of its first."""

    env: NativeEnv
    count: int

    @property
    def spec(self) -> Spec:
        frame = self.env.spec.observation
        stack = replace(frame, shape=(self.count, *frame.shape), frames=self.count)
        return replace(self.env.spec, observation=stack)

    @property
    def shareable(self) -> bool:
        return self.env.shareable

    @property
    def max_steps(self) -> int:
        return self.env.max_steps

    def reset(self, key: Key) -> tuple[StackedState, Shaped[Array, "count *frame"]]:
        inner, frame = self.env.reset(key)
        frames = jnp.repeat(frame[None], self.count, axis=0)
        return StackedState(inner, frames), frames

    def step(self, state: StackedState, action: Array, key: Key) -> NativeStep:
        step = self.env.step(state.inner, action, key)
        frames = jnp.concatenate([state.frames[1:], step.observation[None]])
        return step._replace(state=StackedState(step.state, frames), observation=frames)
