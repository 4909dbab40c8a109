"""The episodes that are still open: their returns and lengths so far, and their actions, by which a
resumed run repeats them."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from understudy.envs.base import HostEnvs, HostStep
from understudy.envs.episode_info import EpisodeInfo
from understudy.errors import CheckpointError
from understudy.state_dict import StateDict

LONGEST = 100_000  # actions of an episode; a longer one cannot be repeated

_log = logging.getLogger("understudy.training")


@final
class OpenActions:
    """The actions of every environment since its episode began.

    A simulator's state cannot in general be read and set. But reset with the same seed and stepped
    with the same actions, it reaches the same state."""

    def __init__(self, rows: int):
        self._begun = np.zeros(rows, np.int64)  # the step count at which a row's episode began
        self._count = 0
        self._actions: np.ndarray | None = None  # [capacity, rows, ...]: the latest ones
        self._used = 0

    def add(self, action: np.ndarray, last: np.ndarray) -> None:
        """Add one step of every row: its action [rows, ...], and whether an episode ended."""
        actions = self._actions
        if actions is None or self._used == len(actions):
            actions = self._make_space(action)
        actions[self._used] = action
        self._used += 1
        self._count += 1
        if 1 in last.tobytes():
            self._begun[last] = self._count

    def state_dict(self, envs: HostEnvs) -> StateDict:
        """The number and the actions of each open episode; its length is -1 if it cannot be
        repeated."""
        lengths = self._count - self._begun
        lengths[(lengths > self._used) | (not envs.replayable)] = -1
        parts = [np.zeros(0)]
        if self._actions is not None and lengths.max() > 0:
            latest = self._actions[: self._used]
            parts = [latest[self._used - n :, row] for row, n in enumerate(lengths) if n > 0]
        episodes = envs.episodes.copy()
        actions, applied = np.concatenate(parts), envs.applied.copy()
        return dict(episodes=episodes, lengths=lengths, actions=actions, applied=applied)

    def load_state_dict(
        self, envs: HostEnvs, arrays: StateDict, seen: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Repeat open episodes; returns observations, and which rows' episodes are lost.

        A row that does not reach the observation it was last `seen` at is not deterministic. Like
        those that cannot be repeated, it begins a new episode. `action` [rows, ...] has the shape
        and the dtype of actions."""
        lengths, none = arrays["lengths"], action[:0]
        lost = (lengths < 0) | (not envs.replayable)
        ends = np.cumsum(np.maximum(lengths, 0))
        past = [
            none if gone or not length else arrays["actions"][end - length : end]
            for gone, length, end in zip(lost, lengths, ends, strict=True)
        ]
        known = envs.changes.total
        applied = np.clip(arrays["applied"], 0, known)
        until = np.where(lost, known, applied)
        if envs.replayable:
            observation = envs.replay(arrays["episodes"] + lost, past, until)
        else:
            _log.warning("these environments cannot repeat open episodes: all rows begin new ones")
            observation = envs.begin_episodes(arrays["episodes"] + lost, past, until)
        strayed = ~lost & (observation != seen).reshape(len(lost), -1).any(axis=1)
        if strayed.any():
            _log.warning(
                "environment %s is not deterministic: replayed, it came to another place than "
                "before, so its open episode was ended",
                ", ".join(map(str, np.flatnonzero(strayed))),
            )
            lost = lost | strayed
            past = [none if gone else part for gone, part in zip(lost, past, strict=True)]
            until = np.where(lost, known, applied)
            observation = envs.replay(arrays["episodes"] + lost, past, until)
        self._begin(past, action)
        return observation, lost

    def _begin(self, past: list[np.ndarray], action: np.ndarray) -> None:
        longest = max(map(len, past))
        self._actions = np.zeros((longest + 1, *action.shape), action.dtype)
        for row, actions in enumerate(past):
            if len(actions):
                self._actions[longest - len(actions) : longest, row] = actions
        self._used = self._count = longest
        self._begun[:] = [longest - len(actions) for actions in past]

    def _make_space(self, action: np.ndarray) -> np.ndarray:
        """Drop actions that no open episode needs, and double the capacity if that is needed."""
        needed = min(int(self._count - self._begun.min()), LONGEST - 1)
        actions = np.empty((max(1_024, 2 * needed), *action.shape), action.dtype)
        if self._actions is not None and needed:
            actions[:needed] = self._actions[self._used - needed : self._used]
        self._actions, self._used = actions, needed
        return actions


class EndedEpisode(NamedTuple):
    """An episode of training that has ended."""

    seed_index: int
    total_reward: float
    length: int
    env: int | None  # which of the seed's environments; None if that is unknown
    step: int  # steps per seed when it ended
    clock: float  # `time.perf_counter()` when it ended
    info: EpisodeInfo | None = None


def pack_episodes(episodes: Sequence[EndedEpisode]) -> np.ndarray:
    """Return episodes as bytes of JSON, for a checkpoint, without the clock: another process has
    another one."""
    stored = [[*one[:5], one.info] for one in episodes]
    return np.frombuffer(json.dumps(stored).encode(), np.uint8)


def unpack_episodes(stored: np.ndarray, num_seeds: int) -> list[EndedEpisode]:
    """Return the episodes that `pack_episodes` has stored. The file may hold anything."""
    try:
        episodes = [_read_episode(*one) for one in json.loads(stored.tobytes())]
        if not all(0 <= episode.seed_index < num_seeds for episode in episodes):
            raise ValueError(f"there are {num_seeds} seeds")
        return episodes
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise CheckpointError(f"the ended episodes cannot be read: {error}") from error


def _read_episode(
    seed: Any, total: Any, length: Any, env: Any, step: Any, info: Any
) -> EndedEpisode:
    if info is not None:
        means, success = info
        means = {str(key): float(mean) for key, mean in dict(means).items()}
        info = EpisodeInfo(means, None if success is None else bool(success))
    env, clock = None if env is None else int(env), time.perf_counter()
    return EndedEpisode(int(seed), float(total), int(length), env, int(step), clock, info)


@final
class EpisodeTally:
    """Returns and lengths of episodes, counted on the host in double precision, and what their
    environments have reported."""

    def __init__(self, num_seeds: int, num_envs: int):
        self._num_envs = num_envs
        self._returns = np.zeros(num_seeds * num_envs)
        self._begun = np.zeros(num_seeds * num_envs, np.int64)  # the count at which one began
        self._count = 0
        self._ended: list[EndedEpisode] = []
        self._known = 0  # how many of these `new` has returned
        self.iterations = 0  # steps of each environment so far

    def add(self, step: HostStep, infos: Mapping[int, EpisodeInfo]) -> None:
        """Add one step of every row, and what the episodes have reported that it ended."""
        self._returns += step.reward
        self._count += 1
        self.iterations += 1
        if 0 in step.valid.tobytes():
            self._begun += ~step.valid
        if 1 in step.last.tobytes():  # a fifth of the time of `.any()`
            steps, now = self.iterations * self._num_envs, time.perf_counter()
            for row in np.flatnonzero(step.last & step.valid).tolist():
                seed_index, env = divmod(row, self._num_envs)
                counts = (float(self._returns[row]), int(self._count - self._begun[row]))
                self._ended.append(
                    EndedEpisode(seed_index, *counts, env, steps, now, infos.get(row))
                )
            self.reset(step.last)

    def reset(self, rows: np.ndarray) -> None:
        """Begin new episodes in these rows."""
        self._returns[rows] = 0.0
        self._begun[rows] = self._count

    def take(self) -> list[EndedEpisode]:
        """The episodes that ended since the last call, in order."""
        taken, self._ended, self._known = self._ended, [], 0
        return taken

    def new(self) -> list[EndedEpisode]:
        """The episodes that ended since the last call, or since `take`, which returns them too."""
        fresh, self._known = self._ended[self._known :], len(self._ended)
        return fresh

    def state_dict(self) -> StateDict:
        return {
            "returns": self._returns.copy(),
            "lengths": self._count - self._begun,
            "ended": pack_episodes(self._ended),
        }

    def load_state_dict(self, arrays: StateDict) -> None:
        self._returns[:] = arrays["returns"]
        self._begun[:] = self._count - arrays["lengths"]
        self._ended = unpack_episodes(arrays["ended"], len(self._returns) // self._num_envs)
        self._known = len(self._ended)
