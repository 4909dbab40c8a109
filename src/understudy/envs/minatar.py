"""MinAtar's games through Gymnasium. Free of JAX: environment workers import it."""

from typing import Any, final

import gymnasium
import numpy as np

from understudy.envs.worker import make_quietly

MAX_STEPS = 5_000  # the package has no limit, and who plays well never loses


@final
class FreshStart(gymnasium.Wrapper):
    """Forgets the last action at a reset. MinAtar repeats it in the next episode, which could
    then not be replayed from its seed."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.env.unwrapped.game.last_action = 0  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options)


def make_minatar(spec: Any) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(FreshStart(make_quietly(spec)), MAX_STEPS)
