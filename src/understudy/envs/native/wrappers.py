"""Native environments that show another observation: stacked frames, or some entries only."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from understudy.envs.base import NativeEnv, NativeStep
from understudy.types import ArraySpec, EnvironmentError, Key, Spec


@dataclass(frozen=True)
class NativeWrapper(NativeEnv):
    """The environment `env`, with another observation."""

    env: NativeEnv

    @property
    def shareable(self) -> bool:
        return self.env.shareable

    @property
    def max_steps(self) -> int:
        return self.env.max_steps


class StackedState(NamedTuple):
    inner: Any
    frames: Shaped[Array, "count *frame"]  # the newest last


@final
@dataclass(frozen=True)
class StackedNative(NativeWrapper):
    """Show the last `count` frames; an episode begins with copies of its first."""

    count: int

    @property
    def spec(self) -> Spec:
        frame = self.env.spec.observation
        stack = replace(frame, shape=(self.count, *frame.shape), frames=self.count)
        return replace(self.env.spec, observation=stack)

    def reset(self, key: Key) -> tuple[StackedState, Shaped[Array, "count *frame"]]:
        inner, frame = self.env.reset(key)
        frames = jnp.repeat(frame[None], self.count, axis=0)
        return StackedState(inner, frames), frames

    def step(self, state: StackedState, action: Array, key: Key) -> NativeStep:
        step = self.env.step(state.inner, action, key)
        frames = jnp.concatenate([state.frames[1:], step.observation[None]])
        return step._replace(state=StackedState(step.state, frames), observation=frames)


@final
@dataclass(frozen=True)
class Hidden(NativeWrapper):
    """Show the entries `keep` of a vector alone, in that order; the others must be remembered.

    A pendulum seen without its velocity looks the same rising and falling; only earlier
    observations tell which it is.
    """

    keep: tuple[int, ...]

    def __post_init__(self) -> None:
        shape = self.env.spec.observation.shape
        if len(shape) != 1 or not self.keep or not set(self.keep) <= set(range(*shape)):
            raise EnvironmentError(
                f"Hidden keeps entries of a vector: keep={self.keep} does not fit observations "
                f"of shape {shape}"
            )

    @property
    def spec(self) -> Spec:
        whole = self.env.spec
        return replace(whole, observation=ArraySpec((len(self.keep),), whole.observation.dtype))

    def reset(self, key: Key) -> tuple[Any, Float[Array, " kept"]]:
        state, observation = self.env.reset(key)
        return state, observation[jnp.array(self.keep)]

    def step(self, state: Any, action: Array, key: Key) -> NativeStep:
        step = self.env.step(state, action, key)
        return step._replace(observation=step.observation[jnp.array(self.keep)])
