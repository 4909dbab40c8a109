"""What has happened in the episodes that are still open: their sums, and the actions by which
they can be brought back."""

import logging
from typing import final

import numpy as np

from understudy.envs.base import HostEnvs, HostStep
from understudy.state_dict import StateDict

LONGEST = 100_000  # actions kept; an episode that is longer cannot be brought back


_log = logging.getLogger("understudy.training")


@final
class OpenActions:
    """The actions of every environment since its episode began.

    A simulator's state cannot in general be read and set; but reset with the same seed and given
    the same actions, it comes to the same place."""

    def __init__(self, rows: int):
        self._begun = np.zeros(rows, np.int64)  # the step count at which a row's episode began
        self._count = 0
        self._kept: np.ndarray | None = None  # [capacity, rows, ...]: the latest actions
        self._used = 0

    def note(self, action: np.ndarray, last: np.ndarray) -> None:
        """One step of every row: its action [rows, ...], and where an episode ended."""
        kept = self._kept
        if kept is None or self._used == len(kept):
            kept = self._make_room(action)
        kept[self._used] = action
        self._used += 1
        self._count += 1
        if 1 in last.tobytes():
            self._begun[last] = self._count

    def state_dict(self, envs: HostEnvs) -> StateDict:
        """Each open episode's number and actions; a length of -1 where it cannot come back."""
        past = [self._of_row(row) if envs.replayable else None for row in range(envs.num_envs)]
        kept = [actions for actions in past if actions is not None and len(actions)]
        return {
            "episodes": envs.episodes,
            "lengths": np.array([-1 if a is None else len(a) for a in past], np.int64),
            "actions": np.concatenate(kept) if kept else np.zeros(0),
        }

    def bring_back(
        self, envs: HostEnvs, arrays: StateDict, seen: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Replay what was open; gives observations and which rows' episodes are lost.

        A row that does not come to the observation it was last `seen` at is not deterministic;
        like those that cannot be replayed at all, it begins a new episode. `action` [rows, ...]
        says what actions look like."""
        lengths, lost = arrays["lengths"], arrays["lengths"] < 0
        ends = np.cumsum(np.maximum(lengths, 0))
        past = [
            arrays["actions"][end - max(length, 0) : end] if length > 0 else action[:0]
            for end, length in zip(ends, lengths, strict=True)
        ]
        if envs.replayable:
            observation = envs.replay(arrays["episodes"] + lost, past)
            strayed = ~lost & (observation != seen).reshape(len(lost), -1).any(axis=1)
            if strayed.any():
                _log.warning(
                    "environment %s is not deterministic: replayed, it came to another place than "
                    "before, so its open episode was ended",
                    ", ".join(map(str, np.flatnonzero(strayed))),
                )
                lost = lost | strayed
                past = [action[:0] if gone else a for gone, a in zip(lost, past, strict=True)]
                observation = envs.replay(arrays["episodes"] + lost, past)
        else:
            lost, past, observation = (
                np.ones(len(lost), bool),
                [action[:0]] * len(lost),
                envs.reset(),
            )
        self._begin(past, action)
        return observation, lost

    def _of_row(self, row: int) -> np.ndarray | None:
        """[steps, ...] of the open episode; None where it has grown too long."""
        length = int(self._count - self._begun[row])
        if length > self._used:
            return None
        return (
            np.zeros(0) if self._kept is None else self._kept[self._used - length : self._used, row]
        )

    def _begin(self, past: list[np.ndarray], action: np.ndarray) -> None:
        longest = max(map(len, past))
        self._kept = np.zeros((longest + 1, *action.shape), action.dtype)
        for row, actions in enumerate(past):
            if len(actions):
                self._kept[longest - len(actions) : longest, row] = actions
        self._used = self._count = longest
        self._begun[:] = [longest - len(actions) for actions in past]

    def _make_room(self, action: np.ndarray) -> np.ndarray:
        """Forget what no open episode needs; double the room if that does not help."""
        needed = min(int(self._count - self._begun.min()), LONGEST - 1)
        kept = np.empty((max(1_024, 2 * needed), *action.shape), action.dtype)
        if self._kept is not None and needed:
            kept[:needed] = self._kept[self._used - needed : self._used]
        self._kept, self._used = kept, needed
        return kept


@final
class EpisodeTally:
    """Returns and lengths of episodes, counted on the host in double precision."""

    def __init__(self, num_seeds: int, num_envs: int):
        self._num_envs = num_envs
        self._returns = np.zeros(num_seeds * num_envs)
        self._lengths = np.zeros(num_seeds * num_envs, np.int64)
        self._ended: list[list[tuple[float, int]]] = [[] for _ in range(num_seeds)]

    def count(self, step: HostStep) -> None:
        self._returns += step.reward
        self._lengths += step.valid
        if 1 in step.last.tobytes():  # a fifth of the time of `.any()`
            for row in np.flatnonzero(step.last & step.valid):
                self._ended[row // self._num_envs].append(
                    (float(self._returns[row]), int(self._lengths[row]))
                )
            self.forget(step.last)

    def forget(self, rows: np.ndarray) -> None:
        """The open episodes of these rows are over."""
        self._returns[rows] = 0.0
        self._lengths[rows] = 0

    def take(self) -> list[tuple[np.ndarray, np.ndarray]]:
        taken = [(np.array([r for r, _ in e]), np.array([n for _, n in e])) for e in self._ended]
        self._ended = [[] for _ in self._ended]
        return taken

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
