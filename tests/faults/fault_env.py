"""An environment that fails as it is told to, and the two ways of stepping several of them.

Free of JAX, so that worker processes can import it.
"""

import ctypes
import os
import signal
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np

LENGTH = 5  # of an episode to which nothing happens
LOW, HIGH = np.array([-3.0, 0.5], np.float32), np.array([1.0, 7.0], np.float32)

DEATHS = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "hang": lambda: time.sleep(3_600),
}
UNTIL = "until "  # and a path: a step that ends when there is such a file
OBSERVATIONS = {"nan": np.nan, "inf": -np.inf, "absurd": 1e30, "too large": -1e300}
REWARDS = {"reward nan": np.nan, "reward inf": np.inf, "absurd reward": -1e30}


class FaultEnv(gymnasium.Env):
    """Reports (row, seed mod 997, time, 0), rewards the first number of the action.

    `plan` says what goes wrong: the reset seed of an episode → (step, what). `diary` notes what
    was done to it; all environments of one factory share it, within one process."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = gymnasium.spaces.Box(LOW, HIGH)

    def __init__(self, row: int, plan: Mapping[int, tuple[int, str]], diary: list[str]):
        self.row, self.plan, self.diary = row, plan, diary
        self.seed, self.time = 0, 0
        diary.append("made")
        if "constructor" in diary:
            raise RuntimeError("no such robot")

    def _fault(self) -> str:
        step, what = self.plan.get(self.seed, (-1, ""))
        return what if step == self.time else ""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        assert seed is not None
        self.seed, self.time = seed, 0
        self.diary.append(f"reset {seed}")
        fault = self._fault()
        if fault == "raise" or (fault == "raise once" and self.diary.count(f"reset {seed}") == 1):
            raise ConnectionError("the robot does not answer")
        if fault in DEATHS:
            DEATHS[fault]()
        return self._observe(OBSERVATIONS.get(fault, 0.0)), {}

    def _observe(self, extra: float) -> np.ndarray:
        return np.array([self.row, self.seed % 997, self.time, extra], np.float64)

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        self.time += 1
        fault = self._fault()
        if fault == "raise":
            action[:] = np.nan
            raise ZeroDivisionError("the simulator fell over")
        if fault in DEATHS:
            DEATHS[fault]()
        while fault.startswith(UNTIL) and not os.path.exists(fault.removeprefix(UNTIL)):
            time.sleep(0.01)
        observation = self._observe(OBSERVATIONS.get(fault, 0.0))
        if fault == "shape":
            observation = observation[:3]
        if fault == "dtype":
            observation = observation.astype(complex)
        reward = REWARDS.get(fault, float(action[0]))
        return observation, reward, False, self.time == LENGTH, {}

    def close(self) -> None:
        self.diary.append("closed")
        raise OSError("it cannot even be closed")


def factories(plans: Mapping[int, Mapping[int, tuple[int, str]]], diaries: list[list[str]]) -> list:
    """One for each diary; `plans` of rows, nothing happens in the others."""
    return [partial(FaultEnv, row, plans.get(row, {}), diary) for row, diary in enumerate(diaries)]
