"""An environment whose episodes are written down, and what they must look like from outside.

Free of JAX, so that worker processes can import it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

# Length and end of each episode; repeated for ever.
SCRIPT = (
    (1, "terminated"),
    (3, "truncated"),
    (2, "both"),
    (1, "truncated"),
    (4, "terminated"),
    (1, "both"),
)
LOW, HIGH = np.array([-3.0, 0.5], np.float32), np.array([1.0, 7.0], np.float32)


class Row(NamedTuple):
    observation: tuple[float, ...]
    action: tuple[float, ...]
    reward: float
    terminated: bool
    last: bool
    next_observation: tuple[float, ...]


def observation_at(row: int, episode: int, time: int, seed: int | None) -> tuple[float, ...]:
    return (float(row), float(episode), float(time), float(seed % 997 if seed is not None else 0))


def reward_of(action: np.ndarray) -> float:
    """Depends on both numbers of the action, so that a wrong action shows."""
    return float(np.float32(action[0]) + 16 * np.float32(action[1]))


class Scripted(gymnasium.Env):
    """Reports (row, episode, time, seed). Rude: reuses its array, spoils actions."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (4,), np.float64)
    action_space = gymnasium.spaces.Box(LOW, HIGH)

    def __init__(self, row: int = 0, rude: bool = False):
        self.row, self.rude = row, rude
        self.episode, self.time, self.seed = -1, 0, None
        self._array = np.zeros(4)
        self.closed = False

    def _observe(self) -> np.ndarray:
        values = observation_at(self.row, self.episode, self.time, self.seed)
        if self.rude:
            self._array[:] = values
            return self._array
        return np.array(values)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.episode, self.time, self.seed = self.episode + 1, 0, seed
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        length, end = SCRIPT[self.episode % len(SCRIPT)]
        assert self.time < length, "stepped beyond the end"
        self.time += 1
        reward = reward_of(action)
        if self.rude:
            action[:] = np.nan
        over = self.time == length
        return (
            self._observe(),
            reward,
            over and end in ("terminated", "both"),
            over and end in ("truncated", "both"),
            {},
        )

    def close(self) -> None:
        self.closed = True


class Faulty(Scripted):
    """Does one wrong thing at its third step (or where its name says)."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)

    def __init__(self, fault: str, row: int = 0):
        super().__init__(row)
        self.fault, self.count = fault, 0
        if fault == "constructor":
            raise RuntimeError("no such robot")

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        observation, reward, terminated, truncated, info = super().step(action)
        self.count += 1
        if self.count == 3:
            if self.fault == "raise":
                raise ZeroDivisionError("the simulator fell over")
            if self.fault == "observation":
                observation[2] = np.nan
            if self.fault == "shape":
                observation = observation[:3]
            if self.fault == "dtype":
                observation = observation.astype(complex)
            if self.fault == "ragged":
                observation = [[1.0], [2.0, 3.0]]
            if self.fault == "reward":
                reward = float("inf")
        return observation, reward, terminated, truncated, info


class Pixels(gymnasium.Env):
    """Bytes for eyes, three buttons that count from 5."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 3, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        return np.full((2, 3, 1), (seed or 0) % 256, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        assert self.action_space.contains(action), action
        return np.full((2, 3, 1), action, np.uint8), 1.0, False, False, {}


def actions_for(steps: int, rows: int) -> np.ndarray:
    """[steps, rows, 2] normalized actions, some beyond the bounds on purpose."""
    random = np.random.default_rng(5)
    return random.uniform(-1.2, 1.2, (steps, rows, 2)).astype(np.float32)


def collect(envs: Any, steps: int) -> list[list[Row]]:
    """What an engine would store, per environment."""
    stored: list[list[Row]] = [[] for _ in range(envs.num_envs)]
    observation = envs.reset()
    for action in actions_for(steps, envs.num_envs):
        result = envs.step(action)
        for index in np.flatnonzero(result.valid):
            stored[index].append(
                Row(
                    tuple(observation[index].tolist()),
                    tuple(action[index].tolist()),
                    float(result.reward[index]),
                    bool(result.terminated[index]),
                    bool(result.last[index]),
                    tuple(result.next_observation[index].tolist()),
                )
            )
        observation = result.observation
    return stored


def expected(
    row: int, steps: int, rows: int, seed_of: Callable[[int, int], int | None], pause: bool = False
) -> list[Row]:
    """The same list, worked out from the script. `pause`: one step is lost after each end."""
    out, episode, time, paused = [], 0, 0, False
    for action in actions_for(steps, rows)[:, row]:
        if paused:
            paused = False
            continue
        length, end = SCRIPT[episode % len(SCRIPT)]
        seed = seed_of(row, episode)
        before, after = (observation_at(row, episode, at, seed) for at in (time, time + 1))
        clipped = np.clip(action.astype(np.float64), -1, 1)
        real = ((HIGH - LOW) / 2 * clipped + (HIGH + LOW) / 2).astype(np.float32)
        over = time + 1 == length
        terminated = over and end != "truncated"
        out.append(Row(before, tuple(action.tolist()), reward_of(real), terminated, over, after))
        time += 1
        if over:
            episode, time, paused = episode + 1, 0, pause
    return out


def same(got: list[Row], wanted: list[Row]) -> None:
    """Exact, except for the last bit of the reward (another order of arithmetic)."""
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert abs(one.reward - other.reward) < 1e-4
        assert one._replace(reward=0) == other._replace(reward=0)


class Reporting(Scripted):
    """Reports numbers in `info`. What it reports at a reset must never count."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        observation, _ = super().reset(seed=seed)
        return observation, {"time": 1e6, "is_success": np.True_}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        *rest, _ = super().step(action)
        info = {
            "time": self.time,
            "height": np.float32(self.row + self.time / 2),
            "is_success": np.bool_(self.time % 2),
            "name": "no number",
            "episode": {"r": 1.0},
            "TimeLimit.truncated": True,
        }
        if self.time == 2:
            info["second"] = float(self.episode)
        return *rest, info  # type: ignore


def reported(row: int, episode: int) -> tuple[dict[str, float], bool]:
    """The means and the success of an episode of `Reporting`."""
    length, _ = SCRIPT[episode % len(SCRIPT)]
    mean = (length + 1) / 2
    means = {"time": mean, "height": row + mean / 2}
    if length >= 2:
        means["second"] = float(episode)
    return means, length % 2 == 1
