"""The episode runner of a cluster: processes on Ray run the episodes, each those of some rows.

The result of an episode depends on its policy, its row and its number only. So another process can
run the share of one that was lost; the steps that had arrived before are then left out.
"""

import contextlib
import logging
import time
from collections import Counter, deque
from typing import Any, NamedTuple, final

import jax
import numpy as np

from understudy.distributed.config import Cluster
from understudy.distributed.connect import connect, cores
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
from understudy.types import Chunk, ConfigError, EnvironmentError, UnderstudyError

STEPS_AT_ONCE = 100  # that travel together
# Of a share in one generation: an episode that kills every process is not played for ever.
MOST_ATTEMPTS = 3
LOST = "collector_lost"

_log = logging.getLogger("understudy.distributed")


def check(cluster: Cluster, rows: int, native: bool, workers: int) -> None:
    """Refuse what a generation of so many rows cannot be played on."""
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
    """What a player has done since it was last asked."""

    chunk: Chunk | None  # [time, rows, ...]; None where nobody listens
    results: EpisodeResults | None  # at the end
    faults: dict[str, int]  # at the end: of this generation


class _Player:
    """The actor: the episode runner of one process, with some of the rows."""

    def __init__(self, seconds: float):
        """It gives a sign of life at least every so many seconds."""
        jax.config.update("jax_platforms", "cpu")
        self._seconds = seconds
        self._runner: HostEpisodeRunner | None = None
        self._chunks: EpisodeChunks | None = None

    def open(self, plan: EpisodePlan, source: EnvSource, guard: Guard) -> None:
        """Apart from the constructor, whose errors Ray does not hand on."""
        self._runner = HostEpisodeRunner(plan, source, guard=guard)

    def begin(self, policies: Any, episode: int, fresh: bool, telling: bool) -> _Portion:
        assert self._runner is not None
        self._before, self._telling = dict(self._runner.faults), telling
        self._chunks = self._runner.chunks(jax.device_put(policies), episode, fresh)
        return self.go_on()

    def go_on(self) -> _Portion:
        assert self._runner is not None and self._chunks is not None
        told: list[Chunk] = []
        until = time.monotonic() + self._seconds
        while len(told) < STEPS_AT_ONCE and time.monotonic() < until:
            try:
                told.append(next(self._chunks))
            except StopIteration as end:
                faults = Counter(self._runner.faults)
                faults.subtract(self._before)
                return _Portion(self._stacked(told), end.value, dict(faults))
        return _Portion(self._stacked(told), None, {})

    def _stacked(self, told: list[Chunk]) -> Chunk | None:
        if not told or not self._telling:
            return None
        return jax.tree.map(lambda *steps: np.concatenate(steps), *told)


@final
class _Part:
    """A share of the rows, whoever plays it."""

    def __init__(self, number: int, plan: EpisodePlan):
        self.number, self.plan = number, plan
        self.actor: Any = None
        self.present = False  # whether the actor's environments stand
        first = plan.seeds.first_row
        self.rows = slice(first, first + plan.num_policies)

    def begin(self, task: tuple[Any, ...]) -> None:
        """A generation: `task` is what its player is asked for."""
        self.task, self.attempts = task, MOST_ATTEMPTS
        self.told: deque[Chunk] = deque()
        self.received = self.kept = 0  # steps: by this player, and by any
        self.results: EpisodeResults | None = None
        self.faults: dict[str, int] = {}

    def ask(self, call: Any) -> None:
        self.call, self.asked = call, time.monotonic()

    def take(self, portion: _Portion) -> None:
        if portion.chunk is not None:
            count = len(portion.chunk.valid)
            for time in range(max(0, self.kept - self.received), count):
                self.told.append(
                    jax.tree.map(lambda x, time=time: x[time : time + 1], portion.chunk)
                )
            self.received += count
            self.kept = max(self.kept, self.received)
        self.results, self.faults = portion.results, portion.faults

    def next_step(self) -> Chunk:
        """The next one; where the share is at its end, one in which nothing happens."""
        if self.told:
            told = self.told.popleft()
            still = told.steps._replace(last=np.zeros_like(told.steps.last))
            self._idle = told._replace(steps=still, valid=np.zeros_like(told.valid))
            return told
        return self._idle


@final
class RemoteEpisodeRunner(EpisodeRunner):
    """Rows shared among the collectors of a cluster. Ray is joined when the first episode is
    played."""

    def __init__(self, cluster: Cluster, plan: EpisodePlan, source: EnvSource, guard: Guard):
        self._cluster, self._source, self._guard = cluster, source, guard
        shares = np.array_split(np.arange(plan.num_policies), cluster.collectors)
        self._parts = [
            _Part(number, plan.share(int(rows[0]), len(rows))) for number, rows in enumerate(shares)
        ]
        self._faults: Counter[str] = Counter()
        self._ray: Any = None

    def run(
        self, policies: Any, episode: int = 0, fresh: bool = False, on_chunk: OnChunk | None = None
    ) -> EpisodeResults:
        if self._ray is None:
            cluster = self._cluster
            self._ray = connect(cluster.address, cluster.collectors * cluster.cpus_each)
        policies = jax.device_get(policies)
        for part in self._parts:
            mine = jax.tree.map(lambda leaf, rows=part.rows: leaf[rows], policies)
            part.begin((mine, episode, fresh, on_chunk is not None))
            self._ask(part)
        while any(part.results is None for part in self._parts):
            self._listen()
            if on_chunk is not None:
                self._hand_over(on_chunk)
        if not fresh:
            for part in self._parts:
                self._faults.update(part.faults)
        played = [tuple(part.results or ()) for part in self._parts]
        return EpisodeResults(*(np.concatenate(each) for each in zip(*played, strict=True)))

    def _ask(self, part: _Part) -> None:
        """For the generation; who has no player yet gets one first."""
        if part.actor is not None:
            part.ask(part.actor.begin.remote(*part.task))
            return
        options = {"num_cpus": self._cluster.cpus_each, "max_restarts": 0, "max_task_retries": 0}
        player = self._ray.remote(_Player).options(**options)
        part.actor, part.present = player.remote(self._cluster.patience / 4), False
        try:
            part.ask(part.actor.open.remote(part.plan, self._source, self._guard))
        except self._ray.exceptions.RayError:
            raise
        except Exception as error:  # anything may be raised where an object is made to travel
            raise ConfigError(
                "the environment or the descriptor cannot travel to another process: give a "
                f"callable that makes one ({type(error).__name__}: {error})"
            ) from error

    def _listen(self) -> None:
        """Take what has arrived, ask for more, and replace who is gone."""
        waiting = {part.call: part for part in self._parts if part.results is None}
        patience, wait = self._cluster.patience, self._ray.wait
        wait(list(waiting), timeout=patience / 4)
        arrived, missing = wait(list(waiting), num_returns=len(waiting), timeout=0)
        for call in arrived:
            self._take(waiting[call])
        for call in missing:
            part = waiting[call]
            if time.monotonic() - part.asked > patience:
                self._silent(part)

    def _take(self, part: _Part) -> None:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(part.call)
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.RayError):  # what was sent cannot be read there
                reason = str(error.cause).partition("\n")[0]
                raise UnderstudyError(f"collector {part.number} cannot begin: {reason}") from None
            raise _told_of(part, error.cause) from None
        except errors.RayError as error:
            self._replace(part, str(error).strip().partition("\n")[0])
            return
        if answer is None:  # its environments stand
            part.present = True
            self._ask(part)
            return
        part.take(answer)
        if part.results is None:
            part.ask(part.actor.go_on.remote())

    def _silent(self, part: _Part) -> None:
        patience = self._cluster.patience
        if not part.present:
            wanted = self._cluster.collectors * self._cluster.cpus_each
            raise UnderstudyError(
                f"collector {part.number} could not be started within {patience:g} s: "
                f"{self._cluster.collectors} collectors need {wanted:g} cores, the cluster has "
                f"{cores(self._ray):g}"
            )
        self._replace(part, f"it has said nothing for {patience:g} s")

    def _replace(self, part: _Part, reason: str) -> None:
        """Another player begins the share anew; the late answers of this one are not heard."""
        part.attempts -= 1
        rows = f"rows {part.rows.start} to {part.rows.stop - 1}"
        if not part.attempts:
            raise UnderstudyError(
                f"collector {part.number} was lost {MOST_ATTEMPTS} times while it played one "
                f"generation's {rows}; the last time: {reason}"
            )
        _log.warning("collector %d is replaced, and plays %s again: %s", part.number, rows, reason)
        self._faults[LOST] += 1
        self._dismiss(part)
        part.received = 0
        self._ask(part)

    def _dismiss(self, part: _Part) -> None:
        if part.actor is not None:
            with contextlib.suppress(Exception):  # it may be gone, or Ray itself
                self._ray.kill(part.actor)
            part.actor = None

    def _hand_over(self, on_chunk: OnChunk) -> None:
        """Tell the steps that all shares have come to, as if one process had taken them."""
        parts = self._parts
        while any(part.told for part in parts) and all(
            part.told or part.results is not None for part in parts
        ):
            steps = [part.next_step() for part in parts]
            on_chunk(jax.tree.map(lambda *rows: np.concatenate(rows, axis=1), *steps))

    @property
    def faults(self) -> dict[str, int]:
        return dict(self._faults)

    def close(self) -> None:
        for part in self._parts:
            self._dismiss(part)


def _told_of(part: _Part, error: Exception) -> Exception:
    """The error as it was; an environment's number is that of its row in the whole."""
    if isinstance(error, EnvironmentError) and part.rows.start:
        return EnvironmentError(
            f"collector {part.number}, whose environment 0 is environment {part.rows.start} of "
            f"all: {error}"
        )
    return error
