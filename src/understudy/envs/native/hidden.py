"""Some entries of an observation, the others hidden: what is left has to be remembered.

A pendulum seen without its velocity looks the same rising and falling; only what was seen before
tells which it is.
"""

from dataclasses import dataclass, replace
from typing import Any, final

import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.envs.base import NativeEnv, NativeStep
from understudy.types import ArraySpec, EnvironmentError, Key, Spec


@final
@dataclass(frozen=True)
class Hidden(NativeEnv):
    """`env` with the entries of `keep` alone, in that order."""

    env: NativeEnv
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

    @property
    def shareable(self) -> bool:
        return self.env.shareable

    @property
    def max_steps(self) -> int:
        return self.env.max_steps

    def reset(self, key: Key) -> tuple[Any, Float[Array, " kept"]]:
        state, observation = self.env.reset(key)
        return state, self._see(observation)

    def step(self, state: Any, action: Array, key: Key) -> NativeStep:
        step = self.env.step(state, action, key)
        return step._replace(observation=self._see(step.observation))

    def _see(self, observation: Float[Array, " whole"]) -> Float[Array, " kept"]:
        return observation[jnp.array(self.keep)]
