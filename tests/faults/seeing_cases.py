"""Small environments of every kind of observation and action: their own random numbers, episodes
of 3 to 40 steps."""

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE = 12


class _Picture(gymnasium.Env):
    """A bright row moves over noise; the reward depends on the row and on what was done."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.left = 0, int(self.np_random.integers(3, 40))
        return self._seen(), {}

    def step(self, action):
        done = float(np.sum(action))
        self.left -= 1
        self.row = (self.row + 1 + round(done)) % SIDE
        ended = self.left == 0
        terminated = ended and bool(self.np_random.integers(2))
        reward = 0.1 * self.row - abs(done)
        return self._seen(), reward, terminated, ended and not terminated, {}

    def _image(self):
        image = self.np_random.integers(0, 50, (SIDE, SIDE)).astype(np.uint8)
        image[self.row] = 255
        return image

    def _seen(self):
        return self._image()


class Picture(_Picture):
    observation_space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
    action_space = spaces.Discrete(3)


class Both(_Picture):
    """A picture beside a vector; continuous actions."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (SIDE, SIDE), np.uint8),
            "speed": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        }
    )
    action_space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 3.0], np.float32))

    def _seen(self):
        return {
            "camera": self._image(),
            "speed": self.np_random.normal(size=2).astype(np.float32),
        }


class Switches(_Picture):
    """Several choices at once."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.MultiDiscrete([2, 3], start=[0, -1])

    def _seen(self):
        return np.array([self.row / SIDE, self.np_random.normal()], np.float32)
