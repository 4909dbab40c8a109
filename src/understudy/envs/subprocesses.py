"""Gymnasium environments in worker processes, exchanging steps through shared memory."""

import os
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, final

import cloudpickle
import gymnasium
import numpy as np

from understudy.envs import worker
from understudy.envs.base import HostEnvs, HostStep
from understudy.envs.descriptors import Descriptor
from understudy.envs.fault_guard import DEFAULT_GUARD, RESTARTED, TRIES, Fault, FaultCounter, Guard
from understudy.envs.rows import Board
from understudy.envs.seeds import EpisodeSeeds
from understudy.envs.serial import require_same, without
from understudy.envs.spaces import ActionMap, spec_of
from understudy.envs.worker_processes import Group, Lost, Waiting
from understudy.observation_packing import Packer
from understudy.types import Continuous, Discrete, EnvironmentError, Spec


@final
class ProcessEnvs(HostEnvs):
    """Many environments in several processes; the same results as `SerialEnvs`, bit for bit.

    A worker that dies or hangs is replaced and its open episodes are cut. Whatever is not
    survived closes the whole group and becomes one EnvironmentError that names the environment.
    (`HostStep` arrays alias each other as in `SerialEnvs`.)
    """

    replayable = True

    def __init__(
        self,
        factories: Sequence[Callable[[], gymnasium.Env]],
        seeds: EpisodeSeeds,
        num_workers: int | None = None,
        guard: Guard = DEFAULT_GUARD,
        descriptor: Descriptor | None = None,
    ):
        """`num_workers` defaults to one per core, and never exceeds the environments."""
        if not factories:
            raise EnvironmentError("at least one environment is needed, got 0")
        self.num_envs = len(factories)
        workers = max(1, min(num_workers or os.cpu_count() or 1, self.num_envs))
        # As even as possible: the slowest worker sets the pace.
        edges = [self.num_envs * index // workers for index in range(workers + 1)]
        self._seeds, self._guard = seeds, guard
        self._group = Group(edges)
        # Also when the owner forgets to. At the program's end it must run before multiprocessing
        # waits for its children, which only this finalizer of its own guarantees.
        self._board: Board | None = None
        self._finalizer = Finalize(self, self._group.close, exitpriority=10)
        try:
            self.spec = _agreed(self._group.start(factories, seeds, guard, descriptor))
            self._board = self._group.share(_layout(self.spec, self.num_envs, descriptor))
        except Lost as error:
            self.close()
            raise EnvironmentError(str(error)) from error
        except BaseException:
            self.close()
            raise
        self._action_map = ActionMap(self.spec.action)
        self._episodes = np.full(self.num_envs, -1, np.int64)
        self._clock, self._begun = 0, np.zeros(self.num_envs, np.int64)
        self._valid = np.ones(self.num_envs, np.bool_)
        self._valid.flags.writeable = False
        self._counter = FaultCounter(guard)
        self.faults = self._counter.counts
        self._seen = self._board.observation.copy()  # what was acted on
        self._parts = [(slice(0, self.num_envs), range(workers))]  # rows, and their workers
        self._waiting: list[Waiting | None] = [None]  # of each part, within a step

    @property
    def episodes(self) -> np.ndarray:
        return self._episodes.copy()

    @property
    def processes(self) -> list[BaseProcess]:
        """The running workers."""
        return list(self._group.processes)

    def reset(self) -> np.ndarray:
        return self._begin(self._episodes + 1, [worker.RESET] * len(self._group.spans))

    def restart(self) -> np.ndarray:
        return self._begin(np.zeros(self.num_envs, np.int64))

    def step(self, action: np.ndarray, only: np.ndarray | None = None) -> HostStep:
        spans = self._group.spans
        if only is None:
            commands, valid = [worker.STEP] * len(spans), self._valid
        else:
            action, valid = self._chosen(action, only), only.copy()
            commands = [worker.SOME + only[slice(*span)].tobytes() for span in spans]
        everywhere = slice(0, self.num_envs)
        self._write_actions(action, everywhere)
        self._clock += 1
        if only is not None:
            self._begun += ~only  # the time of episodes that are left alone stands still
        cut = self._command(commands, self._guard.step_timeout)
        return self._read_step(everywhere, cut, valid, only)

    def divide(self, multiple: int) -> list[slice]:
        """Two halves: the actions of one are decided while the other is stepped."""
        edges = [start for start, _ in self._group.spans[1:] if start % multiple == 0]
        if edges:
            edge = min(edges, key=lambda start: abs(2 * start - self.num_envs))
            first = [start for start, _ in self._group.spans].index(edge)
            workers = len(self._group.spans)
            self._parts = [
                (slice(0, edge), range(first)),
                (slice(edge, self.num_envs), range(first, workers)),
            ]
            self._waiting = [None, None]
        return [rows for rows, _ in self._parts]

    def send(self, action: np.ndarray, part: int = 0) -> None:
        rows, workers = self._parts[part]
        self._write_actions(action, rows)
        if part == 0:
            self._clock += 1
        self._waiting[part] = self._group.tell([worker.STEP] * len(workers), workers.start)

    def receive(self, part: int = 0) -> HostStep:
        waiting, self._waiting[part] = self._waiting[part], None
        assert waiting is not None, "receive follows send"
        cut = self._wait(waiting, self._guard.step_timeout)
        rows, _ = self._parts[part]
        return self._read_step(rows, cut, self._valid[rows])

    def _write_actions(self, action: np.ndarray, rows: slice) -> None:
        real, place = self._action_map.to_real(action), self._open_board().action[rows]
        if real.shape != place.shape:
            raise EnvironmentError(
                f"expected actions for {len(place)} environments, got {len(real)}"
            )
        place[...] = real

    def _read_step(
        self, rows: slice, cut: list[int], valid: np.ndarray, only: np.ndarray | None = None
    ) -> HostStep:
        """What the workers of these rows have written; `cut` are rows whose episodes were cut."""
        board, seen = self._open_board().of(rows), self._seen[rows]
        last = board.last.copy()
        following = board.next_observation.copy()
        if only is not None:
            following[~only] = seen[~only]
        observation = following
        if last.any():
            self._episodes[rows] += last
            self._begun[rows][last] = self._clock
            self._counter.episodes += int(last.sum())
            observation = following.copy()
            observation[last] = board.observation[last]
        if cut:
            valid = without([row - rows.start for row in cut], valid, seen, following)
        seen[...] = observation
        reward, terminated = board.reward.copy(), board.terminated.copy()
        descriptor = None if board.descriptor is None else board.descriptor.copy()
        return HostStep(reward, terminated, last, following, observation, valid, descriptor)

    def replay(self, episodes: np.ndarray, actions: Sequence[np.ndarray]) -> np.ndarray:
        real = [self._action_map.to_real(np.asarray(past)) for past in actions]
        observation = self._begin(np.asarray(episodes), past=real)
        self._begun -= [len(past) for past in real]
        return observation

    def close(self) -> None:
        self._board = None  # views of the shared memory must be gone before it can be closed
        self._finalizer()

    def _begin(
        self,
        episodes: np.ndarray,
        commands: list[bytes] | None = None,
        past: Sequence[np.ndarray] | None = None,
    ) -> np.ndarray:
        """Reset all to these episodes and do again what was done in them, if anything."""
        board = self._open_board()
        spans = self._group.spans
        comebacks = [_comeback(episodes, span, board, past) for span in spans]
        longest = max(stop - start for start, stop in spans) + sum(map(len, past or ()))
        self._command(commands or comebacks, longest * self._guard.step_timeout, comebacks)
        self._episodes[:] = episodes
        self._begun[:] = self._clock
        self._counter.episodes += self.num_envs
        self._seen[...] = board.observation
        return self._seen.copy()

    def _open_board(self) -> Board:
        if self._board is None:
            raise EnvironmentError("these environments are closed")
        return self._board

    def _command(
        self, commands: list[bytes], timeout: float, comebacks: list[bytes] | None = None
    ) -> list[int]:
        """Tell every worker and wait for all; gives the rows whose episodes were cut."""
        return self._wait(self._group.tell(commands), timeout, comebacks)

    def _wait(
        self, waiting: Waiting, timeout: float, comebacks: list[bytes] | None = None
    ) -> list[int]:
        """Wait for workers; gives the rows whose episodes were cut. A worker that is lost is
        replaced, and the new one told its comeback."""
        cut: list[int] = []
        try:
            for index, news in self._group.wait(waiting, timeout):
                if isinstance(news, Lost):
                    cut += self._replace(index, news, timeout, comebacks)
                else:
                    cut += self._counter.record(news)
        except BaseException:
            self.close()
            raise
        return cut

    def _replace(
        self, index: int, lost: Lost, timeout: float, comebacks: list[bytes] | None
    ) -> list[int]:
        """A new worker in the place of a lost one, its environments reset. Gives all their rows."""
        board, span = self._open_board(), self._group.spans[index]
        command = comebacks[index] if comebacks else _comeback(self._episodes + 1, span, board)
        timeout = max(timeout, self._guard.step_timeout * (span[1] - span[0]))
        cut: list[int] = []
        for _ in range(TRIES):
            cut += self._counter.record([self._loss(lost, span)])
            try:
                cut += self._counter.record(self._group.replace(index, command, timeout))
            except Lost as again:
                lost = again
                continue
            board.cut(slice(*span))
            return cut
        raise EnvironmentError(f"{lost}; so did those that took its place, {TRIES} in a row")

    def _loss(self, lost: Lost, span: tuple[int, int]) -> Fault:
        actions = self._open_board().action
        told = [
            f"environment {row}: step {self._clock - self._begun[row]} of episode "
            f"{self._episodes[row]}, seed {self._seeds(row, self._episodes[row])}, "
            f"last action {actions[row].tolist()}"
            for row in range(*span)
            if self._episodes[row] >= 0
        ]
        return Fault(RESTARTED, str(lost), "\n".join(told), tuple(range(*span)))


def _agreed(parts: list[list[Any]]) -> Spec:
    """What all environments look like."""
    specs = [spec_of(*spaces) for part in parts for spaces in part]
    for row, spec in enumerate(specs):
        require_same(row, spec, specs[0])
    return specs[0]


def _comeback(
    episodes: np.ndarray,
    span: tuple[int, int],
    board: Board,
    past: Sequence[np.ndarray] | None = None,
) -> bytes:
    """What takes one worker to these episodes, and to where they were."""
    rows = slice(*span)
    none = [board.action[:0].copy()] * (span[1] - span[0])
    return cloudpickle.dumps((episodes[rows], none if past is None else past[rows]))


def _layout(spec: Spec, rows: int, descriptor: Descriptor | None) -> worker.Layout:
    continuous = isinstance(spec.action, Continuous)
    shape = () if isinstance(spec.action, Discrete) else spec.action.shape
    action = (shape, "float32" if continuous else "int64")
    size = descriptor.size if descriptor else 0
    return worker.Layout(rows, Packer.of(spec.observation), *action, size)
