"""Step a block of environments in one process, and recover those that fail.

Free of JAX: environment workers import it.
"""

import logging
import math
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, final

import gymnasium
import numpy as np

from understudy.envs.descriptors import Descriptor
from understudy.envs.env_changes import EnvChanges, inspect
from understudy.envs.episode_info import InfoTally
from understudy.envs.fault_guard import LIMIT, TRIES, Fault, FaultKind, Guard, Report, find_abnormal
from understudy.envs.seeds import EpisodeSeeds
from understudy.envs.step_arrays import StepArrays
from understudy.errors import EnvironmentError
from understudy.observation_packing import Packer

# What an environment's own code may raise without ending the run.
FAILURES = (Exception, SystemExit)
# The usual types of a reward and of a flag, beside `float` and `bool`.
_USUAL_TYPES = {float: (int, np.floating, np.integer), bool: np.bool_}

_log = logging.getLogger("understudy.envs")


class RowError(EnvironmentError):
    """Environment `row` failed or broke its contract."""

    def __init__(self, row: int, problem: str, trace: str = ""):
        super().__init__(f"environment {row}: {problem}")
        self.row, self.problem = row, problem
        self.trace = trace  # of the environment's own error, as text: that keeps no frames alive

    def __reduce__(self) -> tuple[Any, ...]:
        """Arrive in another process as a plain EnvironmentError with the same message."""
        return EnvironmentError, self.args


@final
class EnvRows:
    """Environments that are stepped one after the other in this process.

    Results are written into the caller's arrays. This also protects against environments that
    return the same array each step.

    An environment that raises is built again, and the report says what was survived. Any other
    breach of the contract raises a RowError.
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
        """With `owned=False` each factory returns an existing environment of the user, which is
        not closed here."""
        self.first_row = first_row
        self._faults: list[Fault] = []
        self._factories, self._seeds, self._owned = list(factories), seeds, owned
        self._drop = guard.non_finite == "drop"
        self._descriptor = descriptor
        count = len(factories)
        self._episodes = [-1] * count  # the number of each open episode
        self._clock = 0  # steps of the block
        self._begun = [0] * count  # the clock when each open episode began
        self._actions: Any = ()  # the latest, by index
        self._given: list[Any] = [None] * count  # the latest observations, as they came
        self._accepted: np.dtype | None = None  # the dtype that was last accepted
        self._has_abnormal_entry = False
        self._broken: dict[int, RowError] = {}  # rows to be built again, and why
        self.infos = InfoTally(count, first_row)
        self.changes, self._applied = EnvChanges(), [0] * count  # how many, by index
        self.environments: list[gymnasium.Env] = []
        for index, factory in enumerate(factories):
            try:
                self.environments.append(factory())
            except FAILURES as error:
                self.close()
                problem = f"the constructor raised {describe_error(error)}"
                raise RowError(first_row + index, problem) from error
        # Bound once: looking attributes up through wrappers at every step costs time.
        self._steps = [env.step for env in self.environments]

    @property
    def spaces(self) -> list[tuple[gymnasium.Space, gymnasium.Space]]:
        """The observation and action space of each environment."""
        return [(env.observation_space, env.action_space) for env in self.environments]

    def set_packer(self, packer: Packer) -> None:
        """Set how observations are checked and written, before the first episode."""
        self._packer, self._shape, self._has_parts = packer, packer.shape, packer.has_parts
        self._inexact = packer.dtype.kind == "f" and not packer.has_parts

    def take_report(self) -> Report | None:
        """Return what has happened since the last call; None if that is nothing."""
        if not self._faults and not self.infos.ended:
            return None
        faults, self._faults = self._faults, []
        return Report(faults, self.infos.take())

    def step(self, arrays: StepArrays, actions: np.ndarray, only: np.ndarray | None = None) -> None:
        """Step every environment once, or those marked in `only`, and write the results. Reset
        those whose episode ended, or was cut because they failed."""
        _, _, rewards, terminated, last, following, first_observation, descriptor = arrays
        given = actions.copy()  # environments may keep or mutate what they are given
        ended = []
        self._clock, self._actions = self._clock + 1, actions
        steps, add_info = self._steps, self.infos.add
        chosen = range(len(steps)) if only is None else self._leave_others(arrays, only)
        for index in chosen:
            try:
                observation, reward, terminal, truncated, info = steps[index](given[index])
            except FAILURES as error:
                failure = self._raised(index, "step()", error)
                self._broken[index] = failure
                self._cut(index, arrays, FaultKind.REBUILT, failure)
                ended.append(index)
                continue
            if type(reward) is not float:
                reward = self._scalar(index, "the reward", reward, float)
            if type(terminal) is not bool:
                terminal = self._scalar(index, "terminated", terminal, bool)
            if type(truncated) is not bool:
                truncated = self._scalar(index, "truncated", truncated, bool)
            # One comparison finds NaN, infinities and absurd numbers.
            if not -LIMIT <= reward <= LIMIT:
                if not math.isfinite(reward):
                    self._drop_episode(index, f"the reward is {reward}", arrays)
                    ended.append(index)
                    continue
                self._count_clipped(index, f"the reward is {reward}", 1)
                reward = math.copysign(LIMIT, reward)
            self._write(index, observation, following)
            add_info(index, info)
            rewards[index] = reward
            terminated[index] = terminal
            if terminal or truncated:
                last[index] = True
                ended.append(index)
            else:
                last[index] = False
        # All rows in one product: if the sum of squares is in order, so is every number. Only
        # otherwise are rows examined one by one.
        if self._has_abnormal_entry or (
            self._inexact and not np.vdot(following, following) <= LIMIT * LIMIT
        ):
            ended += self._clip_rows(chosen, arrays, ended)
        if descriptor is not None:
            self._describe(chosen, descriptor)
        for index in ended:
            self.infos.end(index, cut=self._given[index] is None)
            next_episode = self._episodes[index] + 1
            self._begin_episode(index, next_episode, first_observation, self.changes.total)

    def inspect(self, kind: str, name: str) -> list[Any]:
        """Check an attribute of all environments; return its values if `kind` asks for them."""
        return inspect(self.environments, self.first_row, kind, name)

    def replay(
        self, episodes: np.ndarray, actions: Sequence[Any], out: np.ndarray, until: np.ndarray
    ) -> None:
        """Reset each environment with the seed of its episode number, after the changes up to
        number `until`, then take that episode's real actions ([steps, ...] per environment) again.
        Write observations to `out`."""
        for index, past in enumerate(actions):
            self._begin_episode(index, int(episodes[index]), out, int(until[index]))
            for action in past:
                self._begun[index] -= 1
                self._actions = {index: action}
                try:
                    observation, _, _, _, info = self._steps[index](action.copy())
                except FAILURES as error:
                    raise self._raised(index, "replay", error) from error
                self.infos.add(index, info)
                self._write(index, observation, out)
            if len(past) and (problem := self._clip(index, out)):
                raise self._error(index, problem)

    def close(self) -> None:
        """Close the environments that are ours. Safe to call twice."""
        self._actions = ()  # may be a view of memory that is about to be closed
        environments, self.environments = self.environments, []
        if self._owned:
            for index, env in enumerate(environments):
                try:
                    env.close()
                except FAILURES as error:  # the others must be closed, too
                    problem = f"close() raised {describe_error(error)}"
                    _log.warning("environment %d: %s", self.first_row + index, problem)

    def _leave_others(self, arrays: StepArrays, only: np.ndarray) -> list[int]:
        """Report that nothing happened in unmarked rows; returns the indices of marked ones."""
        left = ~only
        arrays.reward[left], arrays.terminated[left], arrays.last[left] = 0.0, False, False
        for index in np.flatnonzero(left).tolist():
            self._begun[index] += 1  # the episode's step count stays the same
        return np.flatnonzero(only).tolist()

    def _describe(self, rows: Sequence[int], out: np.ndarray) -> None:
        """Write the descriptors of the environments as they are now, before any is reset. NaN in
        rows that were cut and wherever a number is not finite."""
        descriptor = self._descriptor
        assert descriptor is not None
        function = descriptor.of
        title = f"the descriptor {getattr(function, '__name__', type(function).__name__)}"
        numbers = np.full(out.shape, np.nan)
        for index in rows:
            observation = self._given[index]
            if observation is None:  # cut
                continue
            try:
                values = np.asarray(function(self.environments[index], observation), np.float64)
            except Exception as error:
                raise self._raised(index, title, error) from error
            if values.shape != (descriptor.size,):
                problem = f"gave shape {values.shape}, its bounds have shape {(descriptor.size,)}"
                raise self._error(index, f"{title} {problem}")
            numbers[index] = values
        with np.errstate(over="ignore"):  # what is too large for float32 becomes NaN as well
            out[...] = numbers
        out[~np.isfinite(out)] = np.nan

    def _begin_episode(self, index: int, episode: int, out: np.ndarray, until: int) -> None:
        """Begin an episode of one environment, seeded, after the changes up to number `until`;
        write its row of `out`."""
        self._episodes[index] = episode
        self._begun[index] = self._clock
        self.infos.begin(index)
        for tries_left in reversed(range(TRIES)):
            failure = self._try_reset(index, out, until)
            if failure is None:
                self._broken.pop(index, None)
                return
            first = self._broken.setdefault(index, failure)
            if not tries_left:
                problem = f"{failure.problem}: the last of {TRIES} tries to begin this episode"
                raise RowError(
                    failure.row, f"{problem}\n\nThe first failure:\n{first}\n{first.trace}"
                )
            self._faults.append(Fault(FaultKind.REBUILT, str(failure), failure.trace))

    def _try_reset(self, index: int, out: np.ndarray, until: int) -> RowError | None:
        """Reset one environment, built again if it is broken; returns what went wrong."""
        call = "the constructor"
        try:
            if index in self._broken:
                self._rebuild(index)
            for change in self.changes.between(self._applied[index], until):
                call = str(change)
                change.apply(self.environments[index])
            self._applied[index], call = until, "reset()"
            observation, _ = self.environments[index].reset(seed=self._seed(index))
        except FAILURES as error:
            return self._raised(index, call, error)
        self._write(index, observation, out)
        problem = self._clip(index, out)
        if problem is None:
            return None
        if self._drop:
            return self._error(index, problem)
        raise self._error(index, problem)

    def _rebuild(self, index: int) -> None:
        if self._owned:
            with suppress(*FAILURES):  # it is broken already
                self.environments[index].close()
        self.environments[index] = self._factories[index]()
        self._steps[index], self._applied[index] = self.environments[index].step, 0

    def _write(self, index: int, observation: Any, out: np.ndarray) -> None:
        """Check an observation and copy it to its row of `out`. An entry of a dict that is not in
        order is written by `_clip`."""
        is_usual = type(observation) is np.ndarray and observation.dtype is self._accepted
        if not is_usual or observation.shape != self._shape:
            try:
                entries = self._packer.entries(observation)
            except EnvironmentError as error:
                raise self._error(index, str(error)) from None
            if self._has_parts:
                self._given[index] = observation
                if all(e.dtype.kind != "f" or np.vdot(e, e) <= LIMIT * LIMIT for e in entries):
                    self._packer.write(entries, out[index])
                else:
                    self._has_abnormal_entry = True
                return
            observation = np.asarray(observation)
            self._accepted = observation.dtype
        self._given[index] = observation
        try:
            out[index] = observation
        except (RuntimeWarning, FloatingPointError):  # too large for float32; `_clip` will see
            with np.errstate(over="ignore"):
                out[index] = observation

    def _clip_rows(self, rows: Sequence[int], arrays: StepArrays, ended: list[int]) -> list[int]:
        """Clip absurd numbers, and drop the episodes of rows that are not finite; returns those
        among them that had not `ended`."""
        self._has_abnormal_entry = False
        dropped = []
        for index in rows:
            problem = self._clip(index, arrays.next_observation)
            if problem is not None:
                self._drop_episode(index, problem, arrays)
                dropped.append(index)
        return [index for index in dropped if index not in ended]

    def _clip(self, index: int, out: np.ndarray) -> str | None:
        """Clip absurd numbers of a row; returns the problem where some are not finite."""
        given = self._given[index]
        if given is None or not (self._has_parts or self._inexact):
            return None
        # As they were given: what float32 turned into an infinity may have been a number.
        entries = self._packer.entries(given)
        for place, slot in enumerate(self._packer.slots):
            abnormal = find_abnormal(entries[place])
            if abnormal is None:
                continue
            problem = f"the {slot.label} is {abnormal.value} at index {list(abnormal.index)}"
            if not abnormal.finite:
                return problem
            self._count_clipped(index, problem, abnormal.count)
            entries[place] = np.asarray(np.clip(entries[place], -LIMIT, LIMIT))
        self._packer.write(entries, out[index : index + 1])
        return None

    def _scalar(self, index: int, name: str, value: Any, kind: type) -> Any:
        """Convert a reward or a flag to a `float` or `bool`. An array of one number counts as a
        number; 0 and 1 count as flags."""
        if isinstance(value, _USUAL_TYPES[kind]):
            return kind(value)
        array = np.asarray(value)
        is_number = array.size == 1 and array.dtype.kind in "fiub"
        if not is_number or (kind is bool and array.reshape(()) not in (0, 1)):
            wanted = "truth value" if kind is bool else "number"
            raise self._error(index, f"{name} is {value!r:.60}, which is no {wanted}")
        return kind(array.reshape(()))

    def _drop_episode(self, index: int, problem: str, arrays: StepArrays) -> None:
        """Cut the open episode because a number is not finite, or raise."""
        if not self._drop:
            raise self._error(index, problem)
        self._cut(index, arrays, FaultKind.DROPPED, self._error(index, problem))

    def _cut(self, index: int, arrays: StepArrays, kind: FaultKind, failure: RowError) -> None:
        arrays.cut(index)
        self._given[index] = None
        self._faults.append(Fault(kind, str(failure), failure.trace, (failure.row,)))

    def _count_clipped(self, index: int, problem: str, count: int) -> None:
        message = str(self._error(index, f"{problem}, clipped to {LIMIT:g}"))
        self._faults.append(Fault(FaultKind.CLIPPED, message, count=count))

    def _raised(self, index: int, call: str, error: BaseException) -> RowError:
        trace = "".join(traceback.format_exception(error))
        return self._error(index, f"{call} raised {describe_error(error)}", trace)

    def _error(self, index: int, problem: str, trace: str = "") -> RowError:
        """Make an error with all that is needed to reproduce the problem."""
        step = self._clock - self._begun[index]
        action = self._actions[index] if step else None
        place = describe_place(step, self._episodes[index], self._seed(index), action)
        return RowError(self.first_row + index, f"{problem} ({place})", trace)

    def _seed(self, index: int) -> int:
        return self._seeds(self.first_row + index, self._episodes[index])


def describe_place(step: int, episode: int, seed: int, action: np.ndarray | None) -> str:
    """Describe where in an episode something happened, and after which action."""
    last = "" if action is None else f", last action {action.tolist()}"
    return f"step {step} of episode {episode}, seed {seed}{last}"


def describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
