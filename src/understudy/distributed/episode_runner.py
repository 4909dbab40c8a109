"""The episode runner of a cluster: processes on Ray run the episodes, each those of some rows.

The result of an episode depends on its policy, its row and its number only. So if a process is
lost, another one runs its rows again from the start, and the steps that had arrived are left out.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, final

import jax
import numpy as np

from understudy.distributed.config import Cluster
from understudy.distributed.connect import connect, cores
from understudy.distributed.supervisor import Slot, Supervisor, read_recipe
from understudy.envs.fault_guard import Guard
from understudy.envs.make import EnvSource
from understudy.training.episode_runner import (
    EpisodeChunks,
    EpisodePlan,
    EpisodeResults,
    EpisodeRunner,
    HostEpisodeRunner,
    OnChunk,
)
from understudy.types import Chunk, ClusterError, ConfigError, EnvironmentError, UnderstudyError

STEPS_AT_ONCE = 100  # of a portion
# Attempts at one part of a generation: an episode that kills every process is not run forever.
MAX_ATTEMPTS = 3
LOST = "collector_lost"


def check_cluster(cluster: Cluster, rows: int, native: bool, workers: int) -> None:
    """Refuse a cluster that cannot play generations of so many rows."""
    problems = []
    if native:
        problems.append("collectors are for Gymnasium environments: native ones are played on the "
                        "device")  # fmt: skip
    if workers:
        problems.append("collectors are processes already: leave env_workers at 0")
    if cluster.collectors > rows:
        problems.append(f"{cluster.collectors} collectors for a generation of {rows} policies")
    for name, least in (("gradient_workers", 0), ("devices", 1)):
        if getattr(cluster, name) != least:
            problems.append(f"{name} are for agents: quality-diversity has collectors only")
    if problems:
        raise ConfigError("Cluster: " + "; ".join(problems))


class _Portion(NamedTuple):
    """The steps that a process has taken since the last portion."""

    chunk: Chunk | None  # [time, rows, ...]; None if steps are not asked for
    results: EpisodeResults | None  # at the end
    faults: dict[str, int]  # at the end: of this generation


@final
class EpisodeProcess:
    """Runs in a process: the episode runner of some of the rows."""

    def __init__(self, recipe: list[Any], index: int, attempt: int):
        plans, self._source, self._guard, self._seconds = read_recipe(recipe)
        self._index, self._plan = index, plans[index]
        self._runner: HostEpisodeRunner | None = None
        self._chunks: EpisodeChunks | None = None

    def open(self) -> None:
        """Make the environments. (Ray does not pass on errors of a constructor.)"""
        with self._naming_rows():
            self._runner = HostEpisodeRunner(self._plan, self._source, guard=self._guard)

    def begin(self, policies: Any, episode: int, fresh: bool, with_steps: bool) -> _Portion:
        assert self._runner is not None
        self._before, self._with_steps = dict(self._runner.faults), with_steps
        self._chunks = self._runner.chunks(jax.device_put(policies), episode, fresh)
        return self.go_on()

    def go_on(self) -> _Portion:
        """Take the steps of the next portion, in less time than a process may be silent."""
        assert self._runner is not None and self._chunks is not None
        chunks: list[Chunk] = []
        until = time.monotonic() + self._seconds
        while len(chunks) < STEPS_AT_ONCE and time.monotonic() < until:
            try:
                with self._naming_rows():
                    chunks.append(next(self._chunks))
            except StopIteration as end:
                faults = Counter(self._runner.faults)
                faults.subtract(self._before)
                return _Portion(self._join(chunks), end.value, dict(faults))
        return _Portion(self._join(chunks), None, {})

    def _join(self, chunks: list[Chunk]) -> Chunk | None:
        if not chunks or not self._with_steps:
            return None
        return jax.tree.map(lambda *steps: np.concatenate(steps), *chunks)

    @contextlib.contextmanager
    def _naming_rows(self) -> Iterator[None]:
        """Say in an environment's error which number it has among all."""
        try:
            yield
        except EnvironmentError as error:
            first = self._plan.seeds.first_row
            if not first:
                raise
            raise EnvironmentError(
                f"collector {self._index}, whose environment 0 is environment {first} of all: "
                f"{error}"
            ) from None


@final
class _Part:
    """Some of the rows of a generation, and the steps of them that have arrived."""

    def __init__(self, plan: EpisodePlan):
        self.plan = plan
        first = plan.seeds.first_row
        self.rows = slice(first, first + plan.num_policies)

    def begin(self, task: tuple[Any, ...]) -> None:
        """Start a generation; `task` is what its process is asked for."""
        self.task, self.attempts = task, 1
        self.steps: deque[Chunk] = deque()  # of one time each
        self.received = self.most_received = 0  # steps of this attempt, and of the longest one
        self.results: EpisodeResults | None = None
        self.faults: dict[str, int] = {}

    def take(self, portion: _Portion) -> None:
        if portion.chunk is not None:
            count = len(portion.chunk.valid)
            for index in range(max(0, self.most_received - self.received), count):
                step = jax.tree.map(lambda x, i=index: x[i : i + 1], portion.chunk)
                self.steps.append(step)
            self.received += count
            self.most_received = max(self.most_received, self.received)
        self.results, self.faults = portion.results, portion.faults

    def next_step(self) -> Chunk:
        """Return the next step; after the last one, a step in which nothing happens."""
        if self.steps:
            chunk = self.steps.popleft()
            still = chunk.steps._replace(last=np.zeros_like(chunk.steps.last))
            self._idle = chunk._replace(steps=still, valid=np.zeros_like(chunk.valid))
            return chunk
        return self._idle


@final
class RemoteEpisodeRunner(EpisodeRunner):
    """Divides the rows among the collectors of a cluster. It joins Ray when it runs the first
    episode."""

    def __init__(self, cluster: Cluster, plan: EpisodePlan, source: EnvSource, guard: Guard):
        self._cluster, self._source, self._guard = cluster, source, guard
        parts = np.array_split(np.arange(plan.num_policies), cluster.collectors)
        self._parts = [_Part(plan.share(int(rows[0]), len(rows))) for rows in parts]
        self._faults: Counter[str] = Counter()

    @cached_property
    def _supervisor(self) -> Supervisor:
        cluster = self._cluster
        ray = connect(cluster.address, cluster.collectors * cluster.cpus_each)
        plans = [part.plan for part in self._parts]
        recipe = (plans, self._source, self._guard, cluster.patience / 4)
        attempts = [0] * cluster.collectors
        return Supervisor(
            ray, cluster, "collector", EpisodeProcess, recipe, attempts, self._run_again
        )

    def run(
        self, policies: Any, episode: int = 0, fresh: bool = False, on_chunk: OnChunk | None = None
    ) -> EpisodeResults:
        policies = jax.device_get(policies)
        for part in self._parts:
            own = jax.tree.map(lambda leaf, rows=part.rows: leaf[rows], policies)
            part.begin((own, episode, fresh, on_chunk is not None))
        try:
            for slot in self._supervisor.slots:
                # Portions of a generation that was broken off are not read. `open` has no note.
                slot.calls = {call: note for call, note in slot.calls.items() if note is None}
                self._begin(slot)
            while any(part.results is None for part in self._parts):
                self._take_portions()
                if on_chunk is not None:
                    self._pass_on(on_chunk)
        except ClusterError as error:
            self.close()
            # Not a ClusterError: the steps of half a generation must not be saved.
            raise UnderstudyError(str(error)) from error
        if not fresh:
            for part in self._parts:
                self._faults.update(part.faults)
        results = [tuple(part.results or ()) for part in self._parts]
        return EpisodeResults(*(np.concatenate(each) for each in zip(*results, strict=True)))

    def _begin(self, slot: Slot) -> None:
        """Ask a process for the first portion of a generation, and a new one to open first."""
        if not slot.started and not slot.calls:
            self._supervisor.call(slot, "open")
        part = self._parts[slot.index]
        self._supervisor.call(slot, "begin", *part.task, note=part)

    def _take_portions(self) -> None:
        """Take what has arrived, and ask for more."""
        supervisor = self._supervisor
        for slot, part, portion, lost in supervisor.answers():
            if lost:
                self._run_again(slot, [])
            elif part is not None:
                part.take(portion)
                if part.results is None:
                    supervisor.call(slot, "go_on", note=part)
        patience, count = self._cluster.patience, self._cluster.collectors
        for slot in supervisor.slots:
            if not slot.started and slot.silent_for > patience:
                raise ClusterError(
                    f"collector {slot.index} could not be started within {patience:g} s: {count} "
                    f"collectors need {count * self._cluster.cpus_each:g} cores, the cluster has "
                    f"{cores(supervisor.ray):g}"
                )

    def _run_again(self, slot: Slot, notes: list[Any]) -> None:
        """Run the rows of a process again that was replaced, or whose answer was lost."""
        part = self._parts[slot.index]
        if part.attempts == MAX_ATTEMPTS:
            raise ClusterError(
                f"collector {slot.index} was lost {MAX_ATTEMPTS} times while it ran one "
                f"generation's rows {part.rows.start} to {part.rows.stop - 1}; the last time it "
                f"{slot.last_failure}"
            )
        part.attempts += 1
        part.received = 0
        self._faults[LOST] += 1
        slot.calls = {}  # what else the process was asked for belongs to the attempt before
        self._begin(slot)

    def _pass_on(self, on_chunk: OnChunk) -> None:
        """Pass on the steps that all parts have reached, as if one process had taken them."""
        parts = self._parts
        while any(part.steps for part in parts) and all(
            part.steps or part.results is not None for part in parts
        ):
            steps = [part.next_step() for part in parts]
            on_chunk(jax.tree.map(lambda *rows: np.concatenate(rows, axis=1), *steps))

    @property
    def faults(self) -> dict[str, int]:
        return dict(self._faults)

    def close(self) -> None:
        if "_supervisor" in self.__dict__:
            self._supervisor.close()
            del self._supervisor
