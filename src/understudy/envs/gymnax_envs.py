"""Gymnax's environments as native ones. Gymnax itself is imported when one is made."""

import importlib
import inspect
import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from understudy.envs.arguments import EnvArgs, cannot_be_made, check_fields
from understudy.envs.base import NativeEnv, NativeStep
from understudy.envs.names import missing_package, unknown_name
from understudy.envs.rows import describe_error
from understudy.types import (
    ArraySpec,
    ConfigError,
    Continuous,
    Discrete,
    EnvironmentError,
    Key,
    Spec,
)


@final
@dataclass(frozen=True)
class Gymnax(NativeEnv):
    """An environment of Gymnax without its resets: `step_env` terminates an episode, and the time
    limit `max_steps_in_episode` truncates it."""

    name: str
    """Gymnax's own name: "CartPole-v1", "Breakout-MinAtar" …"""
    args: tuple[tuple[str, Any], ...] = ()
    """Parameters of the environment, and arguments of its constructor."""

    def __post_init__(self) -> None:
        _ = self.spec  # makes the environment: mistakes are reported here
        if self.max_steps < 1:
            raise ConfigError(f"max_steps_in_episode must be at least 1, got {self.max_steps}")

    @property
    def max_steps(self) -> int:
        return int(self._made[1].max_steps_in_episode)

    @property
    def shareable(self) -> bool:
        return type(self._made[0]).__module__.startswith("gymnax.")

    @cached_property
    def spec(self) -> Spec:
        env, params = self._made
        seen = jax.eval_shape(self.reset, jax.random.PRNGKey(0))[1]
        action = env.action_space(params)
        if hasattr(action, "n"):
            return Spec(ArraySpec(seen.shape, str(seen.dtype)), Discrete(int(action.n)))
        if not hasattr(action, "low"):
            raise EnvironmentError(f'"gymnax:{self.name}" takes actions {action}: not supported')
        shape = tuple(action.shape) or (1,)
        low, high = (
            tuple(np.broadcast_to(np.asarray(bound, np.float64), shape).ravel().tolist())
            for bound in (action.low, action.high)
        )
        return Spec(ArraySpec(seen.shape, str(seen.dtype)), Continuous(low, high, shape=shape))

    def reset(self, key: Key) -> tuple[Any, Shaped[Array, "..."]]:
        env, params = self._made
        observation, state = env.reset_env(key, params)
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), state)
        return state, self._see(observation)

    def step(self, state: Any, action: Array, key: Key) -> NativeStep:
        env, params = self._made
        if not hasattr(env.action_space(params), "n"):
            action = action.reshape(env.action_space(params).shape)
        observation, after, reward, terminated, _ = env.step_env(key, state, action, params)
        # The carry of a loop must not change its types.
        after = jax.tree.map(
            lambda new, old: jnp.asarray(new, old.dtype).reshape(old.shape), after, state
        )
        return NativeStep(
            after,
            self._see(observation),
            jnp.asarray(reward, jnp.float32).reshape(()),
            jnp.asarray(terminated, jnp.bool_).reshape(()),
            jnp.asarray(env.is_truncated(after, params), jnp.bool_).reshape(()),
        )

    def _see(self, observation: Any) -> Shaped[Array, "..."]:
        """A number of a Discrete space becomes a one-hot vector, the planes of MinAtar an image of
        bools, any other array a vector of floats."""
        env, params = self._made
        if not hasattr(observation, "shape"):
            raise EnvironmentError(
                f'"gymnax:{self.name}" does not show one array, and only one can be observed'
            )
        choices = getattr(env.observation_space(params), "n", None)
        if choices is not None and math.prod(observation.shape) == 1:
            return jax.nn.one_hot(observation.reshape(()), int(choices))
        if self.name.endswith("-MinAtar"):
            return observation != 0
        return observation.astype(jnp.float32).reshape(-1)

    @cached_property
    def _made(self) -> tuple[Any, Any]:
        """Gymnax's own object, and its parameters."""
        name, args = f"gymnax:{self.name}", dict(self.args)
        try:
            gymnax = importlib.import_module("gymnax")
        except ImportError as error:
            raise missing_package(name, "understudy[gymnax]") from error
        if self.name not in gymnax.registered_envs:
            known = sorted(gymnax.registered_envs)
            raise unknown_name("no Gymnax environment", self.name, known, "gymnax:")
        env, params = gymnax.make(self.name)
        if not hasattr(env, "is_truncated"):
            raise EnvironmentError(
                f'"{name}" needs Gymnax 1.0 or newer, which tells truncation from termination: '
                'pip install "understudy[gymnax]"'
            )
        names = {field.name for field in fields(params)}
        own = {key: value for key, value in args.items() if key in names}
        check_fields(name, type(params), own)
        rest = {key: value for key, value in args.items() if key not in names}
        if rest:
            try:
                env, params = gymnax.make(self.name, **rest)
            except Exception as error:
                shown = ", ".join(
                    f"{field.name}={getattr(params, field.name)!r}" for field in fields(params)
                )
                taken = f"({shown}) and {inspect.signature(type(env))}"
                raise cannot_be_made(name, args, describe_error(error), taken) from error
        return env, params.replace(**own)


gymnax = Gymnax


def make_gymnax(name: str, args: EnvArgs) -> Gymnax:
    return Gymnax(name, tuple(sorted(args.items())))
