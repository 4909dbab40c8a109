"""An environment with several senses at once, and what it must look like from outside.

Free of JAX, so that worker processes can import it.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NUMBERS = {
    "joints": spaces.Box(-np.inf, np.inf, (2,), np.float64),
    "mode": spaces.Discrete(3, start=1),
}
BODY = spaces.Dict(body=spaces.Dict(NUMBERS), clock=spaces.Box(0, 99, (), np.int64))
EYES = spaces.Dict(eye=spaces.Box(0, 255, (2, 3), np.uint8), **BODY.spaces)
CHOICE = spaces.Discrete(3, start=1)
LENGTH = 3


class Sensing(gymnasium.Env):
    """Episodes of 3 steps, begun by a draw from the seed. Rude: reuses its array. Does one wrong
    thing at its `when`th step, if it is told what."""

    action_space = spaces.MultiDiscrete([3, 2], start=[5, -1])

    def __init__(
        self, space: spaces.Space = EYES, wrong: str = "", when: int = 2, rude: bool = True
    ):
        self.observation_space, self.rude = space, rude
        self.wrong, self.when, self.count, self.time, self.sum = wrong, when, 0, 0, 0
        self._joints = np.zeros(2)

    def _observe(self) -> Any:
        mode = 1 + (self.sum + self.time) % 3
        if self.observation_space == CHOICE:
            return np.int64(mode)
        if not self.rude:
            self._joints = np.zeros(2)
        self._joints[:] = self.sum, self.time + 0.5
        seen = {"body": {"joints": self._joints, "mode": mode}, "clock": self.time}
        if "eye" in self.observation_space.spaces:
            seen["eye"] = np.full((2, 3), self.sum % 256, np.uint8)
        return seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.time, self.sum = 0, int(self.np_random.integers(100))
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self.time, self.count = self.time + 1, self.count + 1
        self.sum += int(action[0] * 10 + action[1])
        seen = self._observe()
        if self.count == self.when and self.wrong:
            self._spoil(seen)
        return seen, float(self.sum), False, self.time == LENGTH, {}

    def _spoil(self, seen: Any) -> None:
        if self.wrong == "missing":
            del seen["body"]["mode"]
        elif self.wrong == "dtype":
            seen["eye"] = seen["eye"] / 255
        elif self.wrong == "choice":
            seen["body"]["mode"] = 4
        elif self.wrong == "raise":
            raise ZeroDivisionError("the simulator fell over")
        else:
            seen["body"]["joints"][1] = float(self.wrong)


def by_hand(seen: Any) -> bytes:
    """One observation as the library keeps it: floats, or bytes."""
    one_hot = np.eye(3, dtype="<f4")
    if not isinstance(seen, dict):
        return one_hot[seen - 1].tobytes()
    eye = seen["eye"].tobytes() if "eye" in seen else b""
    body = (
        np.float32(seen["body"]["joints"]).tobytes() + one_hot[seen["body"]["mode"] - 1].tobytes()
    )
    return eye + body + np.float32(seen["clock"]).tobytes()
