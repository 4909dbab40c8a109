"""An environment that does nothing but take its time, so that few cores carry many collectors."""

import time
from typing import Any

import gymnasium as gym
import numpy as np


class Sleepy(gym.Env):
    """Eight floats, two actions (or one real one), reward 1; a step sleeps, 200 make an episode."""

    def __init__(self, seconds: float = 0.002, continuous: bool = False, length: int = 200):
        self.seconds = seconds
        self.length = length
        self.steps = 0
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
        one_real = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = one_real if continuous else gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any):
        time.sleep(self.seconds)
        self.steps += 1
        return self._look(), 1.0, False, self.steps >= self.length, {}

    def _look(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 8).astype(np.float32)


def bare_step_seconds(seconds: float, steps: int = 400) -> float:
    """How long a step takes here and now, with nobody choosing actions: sleeps end late."""
    env = Sleepy(seconds)
    env.reset(seed=0)
    began = time.perf_counter()
    for _ in range(steps):
        env.step(0)
    return (time.perf_counter() - began) / steps
