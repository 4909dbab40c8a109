"""The episodes that are still open: their returns and lengths so far, and their actions, by which a
resumed run repeats them."""

import logging
from typing import final

import numpy as np

from understudy.envs.base import HostEnvs, HostStep
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
        return {"episodes": episodes, "lengths": lengths, "actions": np.concatenate(parts)}

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
        if envs.replayable:
            observation = envs.replay(arrays["episodes"] + lost, past)
        else:
            observation = envs.reset()
        strayed = ~lost & (observation != seen).reshape(len(lost), -1).any(axis=1)
        if strayed.any():
            _log.warning(
                "environment %s is not deterministic: replayed, it came to another place than "
                "before, so its open episode was ended",
                ", ".join(map(str, np.flatnonzero(strayed))),
            )
            lost = lost | strayed
            past = [none if gone else part for gone, part in zip(lost, past, strict=True)]
            observation = envs.replay(arrays["episodes"] + lost, past)
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


@final
class EpisodeTally:
    """Returns and lengths of episodes, counted on the host in double precision."""

    def __init__(self, num_seeds: int, num_envs: int):
        self._num_envs = num_envs
        self._returns = np.zeros(num_seeds * num_envs)
        self._lengths = np.zeros(num_seeds * num_envs, np.int64)
        self._ended: list[list[tuple[float, int]]] = [[] for _ in range(num_seeds)]
        self._known = [0] * num_seeds  # how many of these `new` has returned

    def add(self, step: HostStep) -> None:
        """Add one step of every row."""
        self._returns += step.reward
        self._lengths += step.valid
        if 1 in step.last.tobytes():  # a fifth of the time of `.any()`
            for row in np.flatnonzero(step.last & step.valid):
                self._ended[row // self._num_envs].append(
                    (float(self._returns[row]), int(self._lengths[row]))
                )
            self.reset(step.last)

    def reset(self, rows: np.ndarray) -> None:
        """Begin new episodes in these rows."""
        self._returns[rows] = 0.0
        self._lengths[rows] = 0

    def take(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per seed: returns and lengths of the episodes that ended since the last call."""
        taken = [(np.array([r for r, _ in e]), np.array([n for _, n in e])) for e in self._ended]
        self._ended = [[] for _ in self._ended]
        self._known = [0] * len(self._known)
        return taken

    def new(self) -> list[tuple[int, float, int]]:
        """Seed index, return and length of the episodes that ended since the last call, or since
        `take`, which returns them too."""
        fresh = [
            (seed_index, *episode)
            for seed_index, known in enumerate(self._known)
            for episode in self._ended[seed_index][known:]
        ]
        self._known = [len(ended) for ended in self._ended]
        return fresh

    def state_dict(self) -> StateDict:
        ended = [(m, *episode) for m, episodes in enumerate(self._ended) for episode in episodes]
        return {
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "ended": np.array(ended, np.float64).reshape(-1, 3),  # seed, return, length
        }

    def load_state_dict(self, arrays: StateDict) -> None:
        self._returns[:] = arrays["returns"]
        self._lengths[:] = arrays["lengths"]
        for seed_index, total, length in arrays["ended"]:
            self._ended[int(seed_index)].append((float(total), int(length)))
        self._known = [len(ended) for ended in self._ended]
