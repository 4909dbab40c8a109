"""Pendulums that get into trouble, each trouble once."""

import os
import signal
import time
from pathlib import Path

import gymnasium

SLEEP = 600.0


class Swing(gymnasium.Wrapper):
    """Episodes are 105 to 145 steps long. `trouble` is the seed of an episode, the step in it and
    what happens there; `directory` remembers what has happened, and in which process."""

    def __init__(self, directory: Path | None = None, trouble=None):
        super().__init__(gymnasium.make("Pendulum-v1", max_episode_steps=200))
        self._directory, self._trouble = directory, trouble

    def reset(self, *, seed=None, options=None):
        observation, info = self.env.reset(seed=seed, options=options)
        self._seed, self._steps = seed, 0
        self._length = 105 + int(40 * abs(observation[0]))
        return observation, info

    def step(self, action):
        self._steps += 1
        if self._trouble is not None and (self._seed, self._steps) == self._trouble[:2]:
            self._get_into(self._trouble[2])
        observation, reward, _, _, info = self.env.step(action)
        return observation, reward, self._steps >= self._length, False, info

    def _get_into(self, what):
        if what == "raise":
            raise RuntimeError("it broke")
        try:
            with open(self._directory / what, "x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(SLEEP)


def angle(env, observation):
    return observation[:2]
