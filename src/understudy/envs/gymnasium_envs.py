"""Make single Gymnasium environments, some of them wrapped. Free of JAX: environment workers import
it."""

import logging
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

from understudy.envs.rows import FAILURES, describe_error

NO_ARGS: Mapping[str, Any] = MappingProxyType({})
MINATAR_MAX_STEPS = 5_000  # the package has no limit, and a good player never loses

_log = logging.getLogger("understudy.envs")


def make_quietly(spec: Any, args: Mapping[str, Any] = NO_ARGS) -> gymnasium.Env:
    """Call `gymnasium.make` with its warnings sent to the log. The user may choose an old version
    of an environment; that must not end a run in which warnings are errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Our own checks replace Gymnasium's, which cost a wrapper on the hot path.
        env = gymnasium.make(spec, disable_env_checker=True, **args)
    for warning in caught:
        _log.info("gymnasium: %s", warning.message)
    return env


def make_minatar(spec: Any, args: Mapping[str, Any] = NO_ARGS) -> gymnasium.Env:
    """Make a game of MinAtar, with a time limit and episodes that can be replayed."""
    game = ForgetLastAction(make_quietly(spec, args))
    return gymnasium.wrappers.TimeLimit(game, MINATAR_MAX_STEPS)


def time_limit_of(env: Any) -> int | None:
    """Return the limit of a wrapper, or the one that the environment was registered with."""
    limits = [getattr(getattr(env, "spec", None), "max_episode_steps", None)]
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min((limit for limit in limits if limit is not None), default=None)


def close_logged(env: gymnasium.Env) -> None:
    """Close an environment that was made only to read its spaces; a failure is logged."""
    try:
        env.close()
    except FAILURES as error:
        _log.warning("close() of the environment raised %s", describe_error(error))


@final
class ForgetLastAction(gymnasium.Wrapper):
    """Forget the last action at a reset. MinAtar may repeat it in the next episode, which could
    then not be replayed from its seed."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.env.unwrapped.game.last_action = 0  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options)


def make_stacked(factory: Callable[[], gymnasium.Env], count: int) -> gymnasium.Env:
    return Stacked(factory(), count)


@final
class Stacked(gymnasium.Wrapper):
    """Show the last `count` frames [count, *frame], the newest last; an episode begins with copies
    of its first."""

    def __init__(self, env: gymnasium.Env, count: int):
        super().__init__(env)
        if not isinstance(env.observation_space, spaces.Box):
            raise ValueError(f"only frames can be stacked, not {env.observation_space}")
        frame = env.observation_space
        low, high = (np.repeat(bound[None], count, axis=0) for bound in (frame.low, frame.high))
        self.observation_space = spaces.Box(low, high, dtype=frame.dtype.type)
        # A Box alone could not say that its first axis counts frames; `spec_of` reads this.
        self.observation_space.frames = count  # type: ignore[attr-defined]
        self._count = count
        self._recent: deque[np.ndarray] = deque(maxlen=count)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        frame, info = self.env.reset(seed=seed, options=options)
        self._recent.extend([np.array(frame)] * self._count)
        return np.stack(self._recent), info

    def step(self, action: Any) -> tuple[np.ndarray, Any, Any, Any, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._recent.append(np.array(frame))  # the environment may write into it again
        if self._recent[-1].shape != self._recent[0].shape:
            # Returned unchanged: the check of observations reports the wrong shape.
            return self._recent[-1], reward, terminated, truncated, info
        return np.stack(self._recent), reward, terminated, truncated, info
