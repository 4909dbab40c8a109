"""A block of environments stepped in one process, and what becomes of those that fail.

Free of JAX: environment workers import it.
"""

import logging
import math
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np

from understudy.envs.descriptors import Descriptor
from understudy.envs.fault_guard import CLIPPED, DROPPED, LIMIT, REBUILT, TRIES, Fault, Guard
from understudy.envs.seeds import EpisodeSeeds
from understudy.errors import EnvironmentError
from understudy.observation_packing import Packer, castable

# What an environment's own code may raise and a run survives; a process is not ended by it.
FAILURES = (Exception, SystemExit)

_log = logging.getLogger("understudy.envs")


class RowError(Exception):
    """Environment `row` broke its contract. (The border turns it into an EnvironmentError.)"""

    def __init__(self, row: int, problem: str, trace: str = ""):
        super().__init__(f"environment {row}: {problem}")
        self.row, self.problem = row, problem
        self.trace = trace  # of the environment's own error, as text: that keeps no frames alive


class Board(NamedTuple):
    """The arrays through which one step is exchanged, [rows, ...] each."""

    action: np.ndarray  # real ones
    reward: np.ndarray
    terminated: np.ndarray
    last: np.ndarray
    next_observation: np.ndarray
    observation: np.ndarray  # written only where an episode ended, and by a reset
    descriptor: np.ndarray | None = None  # NaN where there is none

    def of(self, rows: slice) -> "Board":
        return Board(*(array[rows] for array in self if array is not None))

    def cut(self, rows: int | slice) -> None:
        """These rows are no transitions: their open episodes end one step earlier."""
        self.reward[rows], self.terminated[rows], self.last[rows] = 0.0, False, True
        self.next_observation[rows] = 0
        if self.descriptor is not None:
            self.descriptor[rows] = np.nan


@final
class EnvRows:
    """A block of environments stepped one after the other in this process.

    Results are written into arrays given by the caller (fresh ones, or shared memory), which
    makes the copies that protect against environments that return the same array each step.

    An environment that raises is built again; what was survived waits in `faults` for whoever
    drives this. Whatever else breaks the contract is a RowError.
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], gymnasium.Env]],
        seeds: EpisodeSeeds,
        first_row: int,
        guard: Guard,
        owned: bool = True,
        descriptor: Descriptor | None = None,
    ):
        """`owned=False`: each factory gives an environment of the user's, always the same one,
        and nobody closes it here. `step` writes the `descriptor` onto a board with room for it."""
        self.first_row = first_row
        self.episodes = np.full(len(factories), -1, np.int64)  # number of the open one
        self.faults: list[Fault] = []
        self._factories, self._seeds, self._owned = list(factories), seeds, owned
        self._drop = guard.non_finite == "drop"
        self._descriptor = descriptor
        self._shape: tuple[int, ...] = ()
        self._dtype = np.dtype(np.float32)
        self._accepted: np.dtype | None = None  # the dtype last seen and found castable
        self._inexact = True
        self._packer: Packer | None = None  # for observations that are not one array already
        self._doubtful = False  # some entry that it was given is not in order
        self._clock = 0  # steps of the block
        self._begun = [0] * len(factories)  # the clock when a row's open episode began
        self._actions: Any = ()  # the latest, by index
        # Latest observations, as they came (or the entries of a dict, checked).
        self._given: list[Any] = [None] * len(factories)
        self._dicts: list[Any] = [None] * len(factories)  # latest, where observations are dicts
        self._broken: dict[int, RowError] = {}  # rows to be built again, and why
        self.environments: list[gymnasium.Env] = []
        for index, factory in enumerate(factories):
            try:
                self.environments.append(factory())
            except FAILURES as error:
                self.close()
                problem = f"the constructor raised {_named(error)}"
                raise RowError(first_row + index, problem) from error
        # Bound once: an attribute look-up through wrappers is felt at a million steps.
        self._steps = [env.step for env in self.environments]

    def expect(self, seen: Packer) -> None:
        """Say what observations must look like."""
        self._shape, self._dtype = seen.shape, seen.dtype
        self._packer = seen if seen.has_parts else None
        self._inexact = self._dtype.kind == "f" and not seen.has_parts

    def take_faults(self) -> list[Fault]:
        """What was survived since the last time."""
        taken, self.faults = self.faults, []
        return taken

    def reset(self, observations: np.ndarray) -> None:
        """A fresh episode everywhere; writes [rows, ...]."""
        for index in range(len(self.environments)):
            self.reset_one(index, observations)

    def reset_one(self, index: int, observations: np.ndarray) -> None:
        """The next episode of one environment, seeded; writes its row of `observations`."""
        self.episodes[index] += 1
        self._begun[index] = self._clock
        for tries_left in reversed(range(TRIES)):
            failure = self._try_reset(index, observations)
            if failure is None:
                self._broken.pop(index, None)
                return
            first = self._broken.setdefault(index, failure)
            if not tries_left:
                problem = f"{failure.problem}: the last of {TRIES} tries to begin this episode"
                raise RowError(
                    failure.row, f"{problem}\n\nThe first failure:\n{first}\n{first.trace}"
                )
            self._survive(REBUILT, failure)

    def step(self, board: Board, only: np.ndarray | None = None) -> list[int]:
        """Step every environment once (or those marked in `only`); returns the indices of those to
        be reset: their episode ended, or they failed and it was cut."""
        actions, rewards, terminated, last, following, _, descriptor = board
        given = actions.copy()  # environments may keep or mutate what they are given
        ended = []
        self._clock, self._actions = self._clock + 1, actions
        steps = self._steps
        chosen = range(len(steps)) if only is None else self._leave(board, only)
        for index in chosen:
            try:
                observation, reward, terminal, truncated, _ = steps[index](given[index])
            except FAILURES as error:
                failure = self._raised(index, "step()", error)
                self._broken[index] = failure
                self._survive(REBUILT, failure, board)
                ended.append(index)
                continue
            if type(reward) is not float:
                reward = self._number(index, reward)
            if type(terminal) is not bool:
                terminal = self._flag(index, "terminated", terminal)
            if type(truncated) is not bool:
                truncated = self._flag(index, "truncated", truncated)
            # One comparison finds NaN, infinities and absurd numbers.
            if not -LIMIT <= reward <= LIMIT:
                if not math.isfinite(reward):
                    self._not_finite(index, f"the reward is {reward}", board)
                    ended.append(index)
                    continue
                self._clipped(index, f"the reward is {reward}", 1)
                reward = math.copysign(LIMIT, reward)
            self._write(index, observation, following)
            rewards[index] = reward
            terminated[index] = terminal
            if terminal or truncated:
                last[index] = True
                ended.append(index)
            else:
                last[index] = False
        # All rows in one product: if the sum of squares is in order, so is every number. Only
        # otherwise is the guilty row looked for.
        if self._doubtful or (self._inexact and not np.vdot(following, following) <= LIMIT * LIMIT):
            self._doubtful = False
            for index in chosen:
                problem = self._tame(index, following)
                if problem is not None:
                    self._not_finite(index, problem, board)
                    if index not in ended:
                        ended.append(index)
        if self._descriptor is not None and descriptor is not None:
            self._describe(self._descriptor, chosen, descriptor)
        return ended

    def replay(self, episodes: np.ndarray, actions: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Bring each environment back to where it was: reset with the seed of its open episode,
        then take that episode's real actions ([steps, ...] per environment) again."""
        for index, past in enumerate(actions):
            self.episodes[index] = int(episodes[index]) - 1
            self.reset_one(index, out)
            for action in past:
                self._begun[index] -= 1
                self._actions = {index: action}
                try:
                    observation, *_ = self._steps[index](action.copy())
                except FAILURES as error:
                    raise self._raised(index, "replay", error) from error
                self._write(index, observation, out)
            if problem := self._tame(index, out):
                raise self._error(index, problem)

    def close(self) -> None:
        if self._owned:
            for index, env in enumerate(self.environments):
                try:
                    env.close()
                except FAILURES as error:  # the others are to be closed all the same
                    _log.warning(
                        "environment %d: close() raised %s", self.first_row + index, _named(error)
                    )

    def _leave(self, board: Board, only: np.ndarray) -> list[int]:
        """Nothing happens in the other rows; gives the indices of those to step."""
        left = ~only
        board.reward[left], board.terminated[left], board.last[left] = 0.0, False, False
        for index in np.flatnonzero(left).tolist():
            self._begun[index] += 1  # so that its episode's time stands still
        return np.flatnonzero(only).tolist()

    def _describe(self, descriptor: Descriptor, rows: Sequence[int], out: np.ndarray) -> None:
        """What the environments look like now, before any is reset. NaN in the rows that were cut
        and wherever it is not finite."""
        numbers = np.full(out.shape, np.nan)
        for index in rows:
            observation = self._given[index]
            if observation is None:  # cut
                continue
            if self._packer is not None:
                observation = self._dicts[index]
            try:
                told = np.asarray(descriptor.of(self.environments[index], observation), np.float64)
            except Exception as error:
                raise self._raised(index, _title(descriptor), error) from error
            if told.shape != (descriptor.size,):
                problem = f"{_title(descriptor)} gave shape {told.shape}, its bounds have shape"
                raise self._error(index, f"{problem} {(descriptor.size,)}")
            numbers[index] = told
        with np.errstate(over="ignore"):  # what is too large for float32 becomes NaN as well
            out[...] = numbers
        out[~np.isfinite(out)] = np.nan

    def _try_reset(self, index: int, observations: np.ndarray) -> RowError | None:
        """Begin the open episode; gives what came in between."""
        call = "the constructor"
        try:
            if index in self._broken:
                self._rebuild(index)
            call = "reset()"
            observation, _ = self.environments[index].reset(seed=self._seed(index))
        except FAILURES as error:
            return self._raised(index, call, error)
        self._write(index, observation, observations)
        problem = self._tame(index, observations)
        if problem is None:
            return None
        failure = self._error(index, problem)
        if self._drop:
            return failure
        raise failure

    def _rebuild(self, index: int) -> None:
        if self._owned:
            with suppress(*FAILURES):  # what it says now is of no interest
                self.environments[index].close()
        self.environments[index] = self._factories[index]()
        self._steps[index] = self.environments[index].step

    def _write(self, index: int, observation: Any, out: np.ndarray) -> None:
        if self._packer is not None:
            self._write_entries(self._packer, index, observation, out)
            return
        if type(observation) is not np.ndarray:
            observation = np.asarray(observation)
        if observation.shape != self._shape:
            problem = f"expected an observation of shape {self._shape}, got {observation.shape}"
            raise self._error(index, problem)
        if observation.dtype is not self._accepted:
            self._accept(index, observation)
        self._given[index] = observation
        try:
            out[index] = observation
        except (RuntimeWarning, FloatingPointError):  # too large for float32; `_tame` will see
            with np.errstate(over="ignore"):
                out[index] = observation

    def _write_entries(self, packer: Packer, index: int, observation: Any, out: np.ndarray) -> None:
        """Whatever is not in order is not written before `_tame` has seen it."""
        try:
            entries = self._given[index] = packer.entries(observation)
            self._dicts[index] = observation
        except EnvironmentError as error:
            raise self._error(index, str(error)) from None
        if all(e.dtype.kind != "f" or np.vdot(e, e) <= LIMIT * LIMIT for e in entries):
            packer.write(entries, out[index])
        else:
            self._doubtful = True

    def _tame(self, index: int, out: np.ndarray) -> str | None:
        """Clip absurd numbers; gives a problem where there are some that are no numbers."""
        given, packer = self._given[index], self._packer
        if given is None or (packer is None and not self._inexact):
            return None
        # As they were given: what float32 turned into an infinity may have been a number.
        entries = [given.astype(np.float64)] if packer is None else given
        for place, values in enumerate(entries):
            if values.dtype.kind != "f" or not (absurd := ~(np.abs(values) <= LIMIT)).any():
                continue
            not_finite = ~np.isfinite(values)
            where = np.argwhere(not_finite if not_finite.any() else absurd)[0].tolist()
            called = "observation" if packer is None else packer.called[place]
            problem = f"the {called} is {values[tuple(where)]} at index {where}"
            if not_finite.any():
                return problem
            self._clipped(index, problem, int(absurd.sum()))
            entries[place] = np.asarray(np.clip(values, -LIMIT, LIMIT))
        if packer is None:
            out[index] = entries[0]
        else:
            packer.write(entries, out[index])
        return None

    def _number(self, index: int, reward: Any) -> float:
        """A reward as it should be; an array of one number is one."""
        if isinstance(reward, int | np.floating | np.integer):
            return float(reward)
        array = np.asarray(reward)
        if array.size != 1 or array.dtype.kind not in "fiub":
            raise self._error(index, f"the reward is {reward!r:.60}, which is no number")
        return float(array.reshape(()))

    def _flag(self, index: int, name: str, value: Any) -> bool:
        """The end of an episode as it should be: a truth value, or a number that is 0 or 1."""
        if isinstance(value, np.bool_):
            return bool(value)
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "bfiu" or array.reshape(()) not in (0, 1):
            raise self._error(index, f"{name} is {value!r:.60}, which is no truth value")
        return bool(array.reshape(()))

    def _accept(self, index: int, observation: np.ndarray) -> None:
        if not castable(observation.dtype, self._dtype):
            problem = f"expected an observation of dtype {self._dtype}, got {observation.dtype}"
            raise self._error(index, problem)
        self._accepted = observation.dtype

    def _not_finite(self, index: int, problem: str, board: Board) -> None:
        failure = self._error(index, problem)
        if not self._drop:
            raise failure
        self._survive(DROPPED, failure, board)

    def _clipped(self, index: int, problem: str, count: int) -> None:
        told = self._error(index, f"{problem}, clipped to {LIMIT:g}")
        self.faults.append(Fault(CLIPPED, str(told), count=count))

    def _survive(self, kind: str, failure: RowError, board: Board | None = None) -> None:
        """Note it; with a board, the row's open episode is cut there."""
        if board is not None:
            board.cut(failure.row - self.first_row)
            self._given[failure.row - self.first_row] = None
        rows = (failure.row,) if board is not None else ()
        self.faults.append(Fault(kind, str(failure), failure.trace, rows))

    def _raised(self, index: int, call: str, error: BaseException) -> RowError:
        told = self._error(index, f"{call} raised {_named(error)}")
        return RowError(told.row, told.problem, "".join(traceback.format_exception(error)))

    def _error(self, index: int, problem: str) -> RowError:
        """With all that is needed to see it happen again."""
        time, episode = self._clock - self._begun[index], self.episodes[index]
        place = f"step {time} of episode {episode}, seed {self._seed(index)}"
        last = f", last action {self._actions[index].tolist()}" if time else ""
        return RowError(self.first_row + index, f"{problem} ({place}{last})")

    def _seed(self, index: int) -> int:
        return self._seeds(self.first_row + index, self.episodes[index])


def _title(descriptor: Descriptor) -> str:
    return f"the descriptor {getattr(descriptor.of, '__name__', type(descriptor.of).__name__)}"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
