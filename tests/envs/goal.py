"""A small environment with a goal, which reports numbers and success. Free of JAX."""

import gymnasium
import numpy as np


class Goal(gymnasium.Env):
    """Walks to a goal, in at most `limit` steps; reports the distance, and success at the end."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, limit: int | None = 7, reports: bool = True):
        self.limit, self.reports = limit, reports

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal, self.time = 0.0, float(self.np_random.uniform(-2, 2)), 0
        return np.array([self.place, self.goal]), {"distance": 1e9}

    def step(self, action):
        self.place, self.time = self.place + float(action[0]) / 2, self.time + 1
        distance = abs(self.place - self.goal)
        near, late = distance < 0.25, self.time == self.limit
        info = {"distance": distance, "time": self.time, "is_success": np.bool_(near)}
        observation = np.array([self.place, self.goal])
        return observation, -distance, near, late, info if self.reports else {}
