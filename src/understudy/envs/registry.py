"""Make environments from Gymnasium's registry. Free of JAX: environment workers import it."""

import logging
import warnings
from typing import Any, final

import gymnasium
import numpy as np

MINATAR_MAX_STEPS = 5_000  # the package has no limit, and a good player never loses

_log = logging.getLogger("understudy.envs")


def make_quietly(spec: Any) -> gymnasium.Env:
    """Call `gymnasium.make` with its warnings sent to the log. The user may choose an old version
    of an environment; that must not end a run in which warnings are errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Our own checks replace Gymnasium's, which cost a wrapper on the hot path.
        env = gymnasium.make(spec, disable_env_checker=True)
    for warning in caught:
        _log.info("gymnasium: %s", warning.message)
    return env


def make_minatar(spec: Any) -> gymnasium.Env:
    """Make a game of MinAtar, with a time limit and episodes that can be replayed."""
    return gymnasium.wrappers.TimeLimit(ForgetLastAction(make_quietly(spec)), MINATAR_MAX_STEPS)


@final
class ForgetLastAction(gymnasium.Wrapper):
    """Forget the last action at a reset. MinAtar may repeat it in the next episode, which could
    then not be replayed from its seed."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.env.unwrapped.game.last_action = 0  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options)
