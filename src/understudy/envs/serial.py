"""Gymnasium environments stepped one after the other in this process."""

from collections.abc import Callable, Sequence
from typing import final

import gymnasium
import numpy as np

from understudy.envs.base import HostEnvs, HostStep
from understudy.envs.descriptors import Descriptor
from understudy.envs.fault_guard import DEFAULT_GUARD, FaultCounter, Guard
from understudy.envs.rows import Board, EnvRows, RowError
from understudy.envs.seeds import EpisodeSeeds
from understudy.envs.spaces import ActionMap, spec_of
from understudy.observation_packing import Packer
from understudy.types import EnvironmentError


@final
class SerialEnvs(HostEnvs):
    """Many environments, one process: the fastest way for a few cheap environments.

    Every array of a `HostStep` is fresh, but two may be the same object: where no episode
    ended, `observation` *is* `next_observation`; `valid` is one read-only array of ones unless
    an episode was cut.
    """

    replayable = True

    def __init__(
        self,
        factories: Sequence[Callable[[], gymnasium.Env]],
        seeds: EpisodeSeeds,
        owned: bool = True,
        guard: Guard = DEFAULT_GUARD,
        descriptor: Descriptor | None = None,
    ):
        """`owned=False` leaves the environments open at `close`: they are the user's."""
        if not factories:
            raise EnvironmentError("at least one environment is needed, got 0")
        try:
            self._rows = EnvRows(factories, seeds, 0, guard, owned, descriptor)
        except RowError as error:
            raise EnvironmentError(str(error)) from error
        environments = self._rows.environments
        self._closed = False
        self.num_envs = len(environments)
        self.spec = spec_of(environments[0].observation_space, environments[0].action_space)
        for row, env in enumerate(environments):
            require_same(row, spec_of(env.observation_space, env.action_space), self.spec)
        self._rows.expect(Packer.of(self.spec.observation))
        self._action_map = ActionMap(self.spec.action)
        self._shape = (self.num_envs, *self.spec.observation.shape)
        self._dtype = np.dtype(self.spec.observation.dtype)
        self._valid = np.ones(self.num_envs, np.bool_)
        self._valid.flags.writeable = False
        self._described = (self.num_envs, descriptor.size) if descriptor else None
        self._counter = FaultCounter(guard)
        self.faults = self._counter.counts
        self._seen = np.zeros(self._shape, self._dtype)  # what was acted on

    @property
    def episodes(self) -> np.ndarray:
        return self._rows.episodes.copy()

    def reset(self) -> np.ndarray:
        observation = np.empty(self._shape, self._dtype)
        try:
            self._rows.reset(observation)
        except RowError as error:
            raise EnvironmentError(str(error)) from error
        return self._begun(observation)

    def restart(self) -> np.ndarray:
        self._rows.episodes[:] = -1
        return self.reset()

    def step(self, action: np.ndarray, only: np.ndarray | None = None) -> HostStep:
        count = self.num_envs
        reward = np.empty(count, np.float32)
        terminated = np.empty(count, np.bool_)
        last = np.empty(count, np.bool_)
        descriptor = np.empty(self._described, np.float32) if self._described else None
        if only is None:
            following, valid = np.empty(self._shape, self._dtype), self._valid
        else:
            action = self._chosen(action, only)
            following, valid = self._seen.copy(), only.copy()
        real = self._action_map.to_real(action)
        observation = following
        board = Board(real, reward, terminated, last, following, following, descriptor)
        try:
            ended = self._rows.step(board, only)
            if ended:
                self._counter.episodes += len(ended)
                observation = following.copy()
                for index in ended:
                    self._rows.reset_one(index, observation)
        except RowError as error:
            raise EnvironmentError(str(error)) from error
        if self._rows.faults:
            cut = self._counter.record(self._rows.take_faults())
            valid = without(cut, valid, self._seen, following)
        self._seen = observation
        return HostStep(reward, terminated, last, following, observation, valid, descriptor)

    def replay(self, episodes: np.ndarray, actions: Sequence[np.ndarray]) -> np.ndarray:
        observation = np.empty(self._shape, self._dtype)
        real = [self._action_map.to_real(np.asarray(past)) for past in actions]
        try:
            self._rows.replay(np.asarray(episodes), real, observation)
        except RowError as error:
            raise EnvironmentError(str(error)) from error
        return self._begun(observation)

    def close(self) -> None:
        if not self._closed:
            self._rows.close()
        self._closed = True

    def _begun(self, observation: np.ndarray) -> np.ndarray:
        self._counter.episodes += self.num_envs
        self._counter.record(self._rows.take_faults())
        self._seen = observation
        return observation


def without(
    cut: list[int], valid: np.ndarray, seen: np.ndarray, following: np.ndarray
) -> np.ndarray:
    """Which rows are transitions when those of `cut` are not. Their next observation becomes the
    one that was acted on: the last good one."""
    valid = valid.copy()
    valid[cut] = False
    following[cut] = seen[cut]
    return valid


def require_same(row: int, got: object, expected: object) -> None:
    """All environments of a run must look alike."""
    if got != expected:
        raise EnvironmentError(
            f"environment {row} differs from environment 0: expected {expected}, got {got}"
        )
