"""Gymnasium environments stepped one after the other in this process."""

from collections.abc import Callable, Sequence
from typing import final

import gymnasium
import numpy as np

from understudy.envs.base import HostEnvs, HostStep
from understudy.envs.seeds import EpisodeSeeds
from understudy.envs.spaces import Border, spec_of
from understudy.envs.worker import EnvRows, RowError
from understudy.types import EnvironmentError


@final
class SerialEnvs(HostEnvs):
    """Many environments, one process: the fastest way for a few cheap environments.

    Every array of a `HostStep` is fresh, but two may be the same object: where no episode
    ended, `observation` *is* `next_observation`; `valid` is one read-only array of ones.
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], gymnasium.Env]],
        seeds: EpisodeSeeds,
        owned: bool = True,
    ):
        """`owned=False` leaves the environments open at `close`: they are the user's."""
        environments = build(factories)
        self._rows = EnvRows(environments, seeds, first_row=0)
        self._owned = owned
        self._closed = False
        self.num_envs = len(environments)
        self.spec = spec_of(environments[0].observation_space, environments[0].action_space)
        for row, env in enumerate(environments):
            require_same(row, spec_of(env.observation_space, env.action_space), self.spec)
        self._rows.expect(self.spec.observation.shape, self.spec.observation.dtype)
        self._border = Border(self.spec.action)
        self._shape = (self.num_envs, *self.spec.observation.shape)
        self._dtype = np.dtype(self.spec.observation.dtype)
        self._valid = np.ones(self.num_envs, np.bool_)
        self._valid.flags.writeable = False

    @property
    def episodes(self) -> np.ndarray:
        """[M] the number of each environment's open episode; -1 before the first reset."""
        return self._rows.episodes.copy()

    def reset(self) -> np.ndarray:
        observation = np.empty(self._shape, self._dtype)
        try:
            self._rows.reset(observation)
        except RowError as error:
            raise EnvironmentError(str(error)) from error
        return observation

    def restart(self) -> np.ndarray:
        self._rows.episodes[:] = -1
        return self.reset()

    def step(self, action: np.ndarray) -> HostStep:
        count = self.num_envs
        reward = np.empty(count, np.float32)
        terminated = np.empty(count, np.bool_)
        last = np.empty(count, np.bool_)
        following = np.empty(self._shape, self._dtype)
        real = self._border.to_real(action)
        try:
            ended = self._rows.step(real, reward, terminated, last, following)
            observation = following
            if ended:
                observation = following.copy()
                for index in ended:
                    self._rows.reset_one(index, observation)
        except RowError as error:
            raise EnvironmentError(str(error)) from error
        return HostStep(reward, terminated, last, following, observation, self._valid)

    def replay(self, episodes: np.ndarray, actions: Sequence[np.ndarray]) -> np.ndarray:
        """Return to the middle of open episodes: `episodes` [M] are their numbers, `actions[i]`
        [steps, ...] what was done (normalised) since their resets. Gives observations [M, ...]."""
        observation = np.empty(self._shape, self._dtype)
        real = [self._border.to_real(np.asarray(past)) for past in actions]
        try:
            self._rows.replay(np.asarray(episodes), real, observation)
        except RowError as error:
            raise EnvironmentError(str(error)) from error
        return observation

    def close(self) -> None:
        if self._owned and not self._closed:
            self._rows.close()
        self._closed = True


def build(factories: Sequence[Callable[[], gymnasium.Env]]) -> list[gymnasium.Env]:
    """Make all environments, or none: when one fails, those already made are closed."""
    if not factories:
        raise EnvironmentError("at least one environment is needed, got 0")
    made: list[gymnasium.Env] = []
    for row, factory in enumerate(factories):
        try:
            made.append(factory())
        except Exception as error:
            for env in made:
                env.close()
            problem = f"the constructor raised {type(error).__name__}: {error}"
            raise EnvironmentError(f"environment {row}: {problem}") from error
    return made


def require_same(row: int, got: object, expected: object) -> None:
    """All environments of a run must look alike."""
    if got != expected:
        raise EnvironmentError(
            f"environment {row} differs from environment 0: expected {expected}, got {got}"
        )
