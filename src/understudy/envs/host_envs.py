"""Gymnasium environments, stepped in this process or in worker processes."""

import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, final

import gymnasium
import numpy as np

from understudy.envs import worker
from understudy.envs.base import HostEnvs, HostStep
from understudy.envs.descriptors import Descriptor
from understudy.envs.env_changes import EnvChanges
from understudy.envs.episode_info import EpisodeInfo
from understudy.envs.fault_guard import (
    DEFAULT_GUARD,
    LONGEST_TIMEOUT,
    TRIES,
    Fault,
    FaultKind,
    Guard,
)
from understudy.envs.rows import EnvRows, describe_place
from understudy.envs.seeds import EpisodeSeeds
from understudy.envs.spaces import spec_of
from understudy.envs.step_arrays import StepArrays
from understudy.envs.worker_pool import WorkerLost, WorkerPool
from understudy.types import EnvironmentError


@final
class SerialEnvs(HostEnvs):
    """Step many environments in one process: the fastest way for a few cheap environments."""

    def __init__(
        self,
        factories: Sequence[Callable[[], gymnasium.Env]],
        seeds: EpisodeSeeds,
        owned: bool = True,
        guard: Guard = DEFAULT_GUARD,
        descriptor: Descriptor | None = None,
    ):
        """`owned=False` leaves the environments open at `close`: they are the user's."""
        self.rows = EnvRows(factories, seeds, 0, guard, owned, descriptor)
        super().__init__([spec_of(*spaces) for spaces in self.rows.spaces], guard, descriptor)
        self.rows.set_packer(self.packer)
        self._arrays = StepArrays.over(bytearray(self.step_layout.itemsize), self.step_layout)

    def step(self, action: np.ndarray, only: np.ndarray | None = None) -> HostStep:
        if only is not None:
            action = self.mask_actions(action, only)
        arrays = self._arrays
        self.rows.step(arrays, self.action_map.to_real(action), only)
        cut = self.record(self.rows.take_report())
        return self.read_step(arrays, self.all_rows, cut, only)

    def read_open_infos(self) -> dict[int, EpisodeInfo]:
        return self.rows.infos.read_open()

    def close(self) -> None:
        self.rows.close()

    def begin_episodes(
        self, episodes: np.ndarray, actions: Sequence[Any], until: np.ndarray
    ) -> np.ndarray:
        self.rows.replay(episodes, actions, self._arrays.observation, until)
        self.record(self.rows.take_report())
        return self.read_first_observations(self._arrays, episodes, until)

    def inspect(self, kind: str, name: str) -> list[Any]:
        return self.rows.inspect(kind, name)

    def use_changes(self, changes: EnvChanges) -> None:
        self.changes = self.rows.changes = changes


@final
class ProcessEnvs(HostEnvs):
    """Step many environments in several processes, with the same results as `SerialEnvs`, bit for
    bit. Steps are exchanged through shared memory.

    A worker that dies or hangs is replaced and its open episodes are cut. Any other failure closes
    all workers and raises one EnvironmentError that names the environment.
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], gymnasium.Env]],
        seeds: EpisodeSeeds,
        num_workers: int | None = None,
        guard: Guard = DEFAULT_GUARD,
        descriptor: Descriptor | None = None,
    ):
        """`num_workers` defaults to one per core, and never exceeds the environments."""
        rows = len(factories)
        workers = max(1, min(num_workers or os.cpu_count() or 1, rows))
        # As even as possible: the slowest worker determines the speed.
        edges = [rows * index // workers for index in range(workers + 1)]
        self.pool = WorkerPool(list(itertools.pairwise(edges)))
        self._seeds, self._guard = seeds, guard
        self._open_arrays: StepArrays | None = None
        # Closes the workers also if the owner does not. At the program's end it must run before
        # multiprocessing waits for its children, which only its own finalizer guarantees.
        self._finalizer = Finalize(self, self.pool.close, exitpriority=10)
        try:
            spaces = self.pool.start(
                [
                    partial(EnvRows, factories[start:stop], seeds, start, guard, True, descriptor)
                    for start, stop in self.pool.spans
                ]
            )
            super().__init__([spec_of(*pair) for pair in spaces], guard, descriptor)
            self._open_arrays = self.pool.share(self.packer, self.step_layout)
        except BaseException:
            self.close()
            raise
        self._clock, self._begun = 0, np.zeros(rows, np.int64)
        self._stepping: set[int] = set()  # the first rows of parts whose step has begun
        self._whole = (self.all_rows, range(workers))  # rows, and their workers
        self._parts = [self._whole]

    def step(self, action: np.ndarray, only: np.ndarray | None = None) -> HostStep:
        command = worker.STEP
        if only is not None:
            action, command = self.mask_actions(action, only), worker.STEP_CHOSEN
            self._arrays.chosen[...] = only
            self._begun += ~only  # the step count of the others stays the same
        self._begin_step(action, self._whole, command)
        return self._end_step(self._whole, only)

    def divide(self, multiple: int) -> list[slice]:
        """Two halves: the actions of one are decided while the other is stepped."""
        starts = [start for start, _ in self.pool.spans]
        edges = [start for start in starts[1:] if start % multiple == 0]
        if edges:
            edge = min(edges, key=lambda start: abs(2 * start - self.num_envs))
            first = starts.index(edge)
            self._parts = [
                (slice(0, edge), range(first)),
                (slice(edge, self.num_envs), range(first, len(starts))),
            ]
            # One half steps at a time; this thread and the learner's need a core each.
            stepping = max(first, len(starts) - first)
            self.pool.polls_first = stepping + 2 <= (os.cpu_count() or 1)
        return [rows for rows, _ in self._parts]

    def send(self, action: np.ndarray, part: int = 0) -> None:
        self._begin_step(action, self._parts[part], worker.STEP)

    def receive(self, part: int = 0) -> HostStep:
        return self._end_step(self._parts[part])

    def read_open_infos(self) -> dict[int, EpisodeInfo]:
        workers = range(len(self.pool.spans))
        self.pool.command(workers, worker.INFOS)
        self._wait(workers, self._guard.step_timeout)
        return self.take_infos()

    def close(self) -> None:
        self._open_arrays = None  # views of the shared memory must end before it can be closed
        self._finalizer()

    @property
    def _arrays(self) -> StepArrays:
        if self._open_arrays is None:
            raise EnvironmentError("these environments are closed")
        return self._open_arrays

    def _begin_step(self, action: np.ndarray, part: tuple[slice, range], command: bytes) -> None:
        rows, workers = part
        real, place = self.action_map.to_real(action), self._arrays.action[rows]
        if real.shape != place.shape:
            raise EnvironmentError(
                f"expected actions for {len(place)} environments, got {len(real)}"
            )
        place[...] = real
        self._refuse_in_mid_step(rows.start in self._stepping)
        self._stepping.add(rows.start)
        if rows.start == 0:
            self._clock += 1
        self.pool.command(workers, command)

    def _end_step(self, part: tuple[slice, range], only: np.ndarray | None = None) -> HostStep:
        rows, workers = part
        cut = self._wait(workers, self._guard.step_timeout)
        self._stepping.discard(rows.start)
        step = self.read_step(self._arrays.select(rows), rows, cut, only)
        if step.observation is not step.next_observation:  # some episode ended
            self._begun[rows][step.last] = self._clock
        return step

    def _refuse_in_mid_step(self, stepping: bool) -> None:
        """Close after a step that was interrupted before its answers were read: they would be taken
        for those of the next command."""
        if stepping:
            self.close()
            raise EnvironmentError(
                "a step of these environments was interrupted, so they are closed: load the last "
                "checkpoint, or make the agent again"
            )

    def inspect(self, kind: str, name: str) -> list[Any]:
        assert self._arrays is not None  # or it says that they are closed
        try:
            return self.pool.inspect(kind, name, self._guard.step_timeout)
        except WorkerLost:
            self.close()
            raise

    def use_changes(self, changes: EnvChanges) -> None:
        self.changes = changes
        self.pool.use_changes(changes)

    def begin_episodes(
        self, episodes: np.ndarray, actions: Sequence[Any], until: np.ndarray
    ) -> np.ndarray:
        spans = self.pool.spans
        replayed = [
            (episodes[start:stop], actions[start:stop], until[start:stop]) for start, stop in spans
        ]
        longest = max(stop - start for start, stop in spans) + sum(map(len, actions))
        arrays = self._arrays
        self._refuse_in_mid_step(bool(self._stepping))
        for index, content in enumerate(replayed):
            self.pool.send(index, worker.REPLAY, content)
        self._wait(range(len(spans)), self._timeout(longest), replayed)
        self._begun[:] = [self._clock - len(past) for past in actions]
        return self.read_first_observations(arrays, episodes, until)

    def _wait(
        self, workers: range, timeout: float, replayed: Sequence[Any] | None = None
    ) -> list[int]:
        """Wait for workers; returns the rows whose episodes were cut. A worker that is lost is
        replaced, and the new one begins what is in `replayed`, or the next episodes."""
        cut: list[int] = []
        try:
            for index, result in self.pool.wait(workers, timeout):
                if isinstance(result, WorkerLost):
                    cut += self._replace(index, result, timeout, replayed)
                else:
                    cut += self.record(result)
        except BaseException:
            self.close()
            raise
        return cut

    def _replace(
        self, index: int, lost: WorkerLost, timeout: float, replayed: Sequence[Any] | None
    ) -> list[int]:
        """Put a new worker in the place of a lost one; returns all its rows, which were cut."""
        start, stop = self.pool.spans[index]
        rows = stop - start
        changes = np.full(rows, self.changes.total)
        next_episodes = (self.episodes[start:stop] + 1, [()] * rows, changes)
        begun = replayed[index] if replayed else next_episodes
        timeout = max(timeout, self._timeout(rows))
        cut: list[int] = []
        for _ in range(TRIES):
            cut += self.fault_counter.record([self._fault(lost, range(start, stop))])
            try:
                report = self.pool.replace(index, begun, timeout)
            except WorkerLost as lost_again:
                lost = lost_again
                continue
            cut += self.record(report)
            self._arrays.cut(slice(start, stop))
            return cut
        raise EnvironmentError(f"{lost}; so did those that took its place, {TRIES} in a row")

    def _timeout(self, steps: int) -> float:
        """Return the seconds that a worker has for several steps."""
        return min(steps * self._guard.step_timeout, LONGEST_TIMEOUT)

    def _fault(self, lost: WorkerLost, rows: range) -> Fault:
        """Describe the loss of a worker and where its environments were."""
        places = []
        for row in rows:
            step, episode = self._clock - self._begun[row], self.episodes[row]
            if episode >= 0:
                seed, action = self._seeds(row, episode), self._arrays.action[row]
                place = describe_place(step, episode, seed, action)
                places.append(f"environment {row}: {place}")
        return Fault(FaultKind.RESTARTED, str(lost), "\n".join(places), tuple(rows))
