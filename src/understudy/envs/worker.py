"""What one process does with its environments, and the life of an environment worker.

This file must stay free of JAX (and of everything that imports it, such as `understudy.types`):
a worker starts in a fraction of a second and holds only its simulators.
"""

import logging
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple, final

import cloudpickle
import gymnasium
import numpy as np

from understudy.envs.seeds import EpisodeSeeds

_LARGEST = float(np.finfo(np.float32).max)
_log = logging.getLogger("understudy.envs")


class RowError(Exception):
    """Environment `row` broke its contract. (The border turns it into an EnvironmentError.)"""

    def __init__(self, row: int, problem: str):
        super().__init__(f"environment {row}: {problem}")
        self.row = row


def make_quietly(spec: Any) -> gymnasium.Env:
    """`gymnasium.make`, whose warnings go to the log: an old version of an environment is the
    user's choice and must not end a run in which warnings are errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Our own checks replace Gymnasium's, which cost a wrapper on the hot path.
        env = gymnasium.make(spec, disable_env_checker=True)
    for warning in caught:
        _log.info("gymnasium: %s", warning.message)
    return env


@final
class EnvRows:
    """A block of environments stepped one after the other in this process.

    Results are written into arrays given by the caller (fresh ones, or shared memory), which
    makes the copies that protect against environments that return the same array each step.
    """

    def __init__(self, environments: Sequence[gymnasium.Env], seeds: EpisodeSeeds, first_row: int):
        self.environments = list(environments)
        self.first_row = first_row
        self.episodes = np.full(len(self.environments), -1, np.int64)  # number of the open one
        self._seeds = seeds
        self._shape: tuple[int, ...] = ()
        self._dtype = np.dtype(np.float32)
        self._accepted: np.dtype | None = None  # the dtype last seen and found castable
        self._inexact = True
        # Bound once: an attribute look-up through wrappers is felt at a million steps.
        self._steps = [env.step for env in self.environments]

    def expect(self, shape: tuple[int, ...], dtype: str) -> None:
        """Say what observations must look like."""
        self._shape, self._dtype = tuple(shape), np.dtype(dtype)
        self._inexact = self._dtype.kind == "f"

    def reset(self, observations: np.ndarray) -> None:
        """A fresh episode everywhere; writes [rows, ...]."""
        for index in range(len(self.environments)):
            self.reset_one(index, observations)

    def reset_one(self, index: int, observations: np.ndarray) -> None:
        """The next episode of one environment, seeded; writes its row of `observations`."""
        row = self.first_row + index
        self.episodes[index] += 1
        seed = self._seeds(row, self.episodes[index])
        try:
            observation, _ = self.environments[index].reset(seed=seed)
        except Exception as error:
            raise RowError(row, f"reset(seed={seed}) raised {_named(error)}") from error
        context = f"after reset(seed={seed})"
        self._write(index, observation, observations, context)
        self._require_finite(index, observations, context)

    def step(
        self,
        actions: np.ndarray,  # [rows, ...] real actions; rows may be mutated by environments
        rewards: np.ndarray,
        terminated: np.ndarray,
        last: np.ndarray,
        next_observations: np.ndarray,
    ) -> list[int]:
        """Step every environment once; returns the indices of those whose episode ended."""
        ended = []
        for index, step in enumerate(self._steps):
            action = actions[index]
            try:
                observation, reward, terminal, truncated, _ = step(action)
                reward = float(reward)
            except Exception as error:
                raise self._error(index, f"step() raised {_named(error)}", action) from error
            # One comparison finds NaN, infinities and what float32 would turn into one.
            if not -_LARGEST <= reward <= _LARGEST:
                raise self._error(index, f"the reward is {reward}", action)
            self._write(index, observation, next_observations, action)
            rewards[index] = reward
            terminated[index] = terminal
            if terminal or truncated:
                last[index] = True
                ended.append(index)
            else:
                last[index] = False
        # All rows at once, and by a search through bytes, which is several times faster on a
        # few numbers than `.all()`. Only then is the guilty row looked for.
        if self._inexact and 0 in np.isfinite(next_observations).tobytes():
            for index, action in enumerate(actions):
                self._require_finite(index, next_observations, action)
        return ended

    def replay(self, episodes: np.ndarray, actions: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Bring each environment back to where it was: reset with the seed of its open episode,
        then take that episode's real actions ([steps, ...] per environment) again."""
        for index, past in enumerate(actions):
            self.episodes[index] = int(episodes[index]) - 1
            self.reset_one(index, out)
            for action in past:
                try:
                    observation, *_ = self._steps[index](action.copy())
                except Exception as error:
                    raise self._error(index, f"replay raised {_named(error)}", action) from error
                self._write(index, observation, out, action)

    def close(self) -> None:
        for env in self.environments:
            env.close()

    def _write(self, index: int, observation: Any, out: np.ndarray, context: Any) -> None:
        if type(observation) is not np.ndarray:
            observation = np.asarray(observation)
        if observation.shape != self._shape:
            problem = f"expected an observation of shape {self._shape}, got {observation.shape}"
            raise self._error(index, problem, context)
        if observation.dtype is not self._accepted:
            self._accept(index, observation, context)
        out[index] = observation

    def _require_finite(self, index: int, out: np.ndarray, context: Any) -> None:
        values = out[index]
        if self._inexact and not np.isfinite(values).all():
            where = np.argwhere(~np.isfinite(values))[0].tolist()
            problem = f"the observation is {values[tuple(where)]} at index {where}"
            raise self._error(index, problem, context)

    def _accept(self, index: int, observation: np.ndarray, context: Any) -> None:
        """float64 may become float32; 0.5 may not become a byte."""
        if not np.can_cast(observation.dtype, self._dtype, casting="same_kind"):
            problem = f"expected an observation of dtype {self._dtype}, got {observation.dtype}"
            raise self._error(index, problem, context)
        self._accepted = observation.dtype

    def _error(self, index: int, problem: str, context: Any) -> RowError:
        if not isinstance(context, str):
            context = f"last action {np.asarray(context).tolist()}"
        episode = int(self.episodes[index])
        return RowError(self.first_row + index, f"{problem} ({context}, episode {episode})")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class Layout(NamedTuple):
    """Where things lie in the shared memory of all workers, for `rows` environments."""

    rows: int
    observation_shape: tuple[int, ...]
    observation_dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str


class Board(NamedTuple):
    """The arrays through which parent and workers exchange one step: views of one block."""

    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    last: np.ndarray
    next_observation: np.ndarray
    observation: np.ndarray  # written only where an episode ended, and by a reset

    def slice(self, rows: slice) -> "Board":
        return Board(*(array[rows] for array in self))


def _parts(layout: Layout) -> list[tuple[tuple[int, ...], np.dtype]]:
    observation = ((layout.rows, *layout.observation_shape), np.dtype(layout.observation_dtype))
    action = ((layout.rows, *layout.action_shape), np.dtype(layout.action_dtype))
    flag = ((layout.rows,), np.dtype(np.bool_))
    return [action, ((layout.rows,), np.dtype(np.float32)), flag, flag, observation, observation]


def _padded(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Bytes, rounded up to a cache line."""
    return -(-int(np.prod(shape)) * dtype.itemsize // 64) * 64


def board_size(layout: Layout) -> int:
    return max(1, sum(_padded(*part) for part in _parts(layout)))


def board_on(buffer: Any, layout: Layout) -> Board:
    """Lay the arrays out over a block of memory."""
    arrays, offset = [], 0
    for shape, dtype in _parts(layout):
        arrays.append(np.ndarray(shape, dtype, buffer, offset))
        offset += _padded(shape, dtype)
    return Board(*arrays)


STEP, RESET, CLOSE, DONE = b"s", b"r", b"c", b"d"


def main(pipe: Connection, payload: bytes, seeds: EpisodeSeeds, first_row: int) -> None:
    """The whole life of a worker: build, agree on memory, then obey until told to close.

    It ends by itself when the parent is gone, because then the pipe is closed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to interpret
    rows, memory = None, None
    try:
        factories: list[Callable[[], gymnasium.Env]] = cloudpickle.loads(payload)
        environments = []
        for index, factory in enumerate(factories):
            try:
                environments.append(factory())
            except Exception as error:
                problem = f"the constructor raised {_named(error)}"
                raise RowError(first_row + index, problem) from error
        rows = EnvRows(environments, seeds, first_row)
        pipe.send([(env.observation_space, env.action_space) for env in environments])
        agreed = pipe.recv_bytes()
        if agreed != CLOSE:
            name, layout = cloudpickle.loads(agreed)
            memory = SharedMemory(name)
            _obey(pipe, rows, memory.buf, layout)
    except (EOFError, BrokenPipeError):
        pass
    except Exception as error:
        with suppress(OSError):  # nobody listens any more
            pipe.send((getattr(error, "row", first_row), str(error), traceback.format_exc()))
    finally:
        if rows is not None:
            rows.close()
        if memory is not None:
            memory.close()


def _obey(pipe: Connection, rows: EnvRows, buffer: Any, layout: Layout) -> None:
    """Commands until CLOSE. The views of `buffer` die with this frame, so it can be closed."""
    mine = slice(rows.first_row, rows.first_row + len(rows.environments))
    board = board_on(buffer, layout).slice(mine)
    rows.expect(layout.observation_shape, layout.observation_dtype)
    pipe.send_bytes(DONE)
    while (command := pipe.recv_bytes()) != CLOSE:
        if command == STEP:
            # A copy: environments may keep or mutate what they are given.
            actions = board.action.copy()
            ended = rows.step(
                actions, board.reward, board.terminated, board.last, board.next_observation
            )
            for index in ended:
                rows.reset_one(index, board.observation)
        elif command == RESET:
            rows.reset(board.observation)
        else:
            episodes, actions = cloudpickle.loads(command)
            rows.replay(episodes, actions, board.observation)
        pipe.send_bytes(DONE)
