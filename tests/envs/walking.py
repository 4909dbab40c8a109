"""A walk in the plane whose end is the walker's own doing, as a Gymnasium environment.

Free of JAX, so that worker processes can import it.
"""

import os
import signal
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from understudy.envs.descriptors import Descriptor

LENGTH = 6  # of a walk that does not end
END = 1.0  # how far to the right it ends
BOUNDS = {"low": (-2.0, -2.0), "high": (2.0, 2.0)}


class Walk(gymnasium.Env):
    """The action is the step; being high is paid. Episodes begin within `spread` of the middle.

    `plan` says what goes wrong: the reset seed of an episode → (step, what)."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, spread: float = 0.0, plan: Mapping[int, tuple[int, str]] | None = None):
        self.spread, self.plan = spread, plan or {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        start = self.spread * np.random.default_rng(seed).uniform(-1, 1, 2)
        self.position, self.time, self.seed = start.astype(np.float32), 0, seed
        return self.position, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.position, self.time = self.position + action, self.time + 1
        step, what = self.plan.get(self.seed, (0, ""))
        if step == self.time and what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.time and what == "raise":
            raise ZeroDivisionError("it stumbled")
        x, y = self.position
        return self.position, float(y), bool(x >= END), self.time == LENGTH, {}


def position_of(env: gymnasium.Env, observation: np.ndarray) -> np.ndarray:
    return env.unwrapped.position


def place(over: str = "last") -> Descriptor:
    return Descriptor(position_of, **BOUNDS, over=over)


def by_hand(action: tuple[float, float], limit: int = LENGTH) -> list[dict[str, Any]]:
    """Every step of the walk that goes on in one direction from the middle."""
    steps, (x, y) = [], action
    for time in range(1, limit + 1):
        ends = time * x >= END
        here = [time * x, time * y]
        steps.append({"there": here, "reward": here[1], "terminated": ends,
                      "last": ends or time == limit})  # fmt: skip
        if ends:
            break
    return steps
