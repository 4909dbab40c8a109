"""Replay that lies with the gradient workers: each keeps what some of the collectors bring.

A step travels once, to the worker that keeps it, and no batch travels at all. The learner tells
every worker its State; each draws from what it keeps, and answers with gradients and with how much
that is. They count by it, so that every step is as likely to be learned from as in one ring.

What a lost worker kept is lost with it. Whoever takes its place begins with the last chunk.
"""

import logging
import math
import os
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, final

import jax
import numpy as np
from jaxtyping import Array

from understudy.algorithms.off_policy import ReplayNeeds
from understudy.buffers import Buffer
from understudy.distributed.config import Cluster
from understudy.distributed.connect import connect, load_ray
from understudy.distributed.gradient_workers import check
from understudy.distributed.supervisor import SECONDS_TO_START
from understudy.distributed.worker_pool import (
    GLANCE,
    TRIES,
    gone,
    insist,
    lost,
    refuse_if_it_cannot_start,
    send_recipe,
)
from understudy.errors import CheckpointError, ClusterError
from understudy.state_dict import StateDict, add_prefix, select_prefix
from understudy.training.compilation import set_up_compilation
from understudy.training.gradient_sharding import Draws
from understudy.training.replay_placement import init_program, room
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import TrainingSetup
from understudy.training.step_packing import RowType, step_rows, to_chunk
from understudy.training.transport import Rows
from understudy.training.update import LearnerState
from understudy.types import ConfigError

_log = logging.getLogger("understudy.distributed")


def rows_of_each(setup: TrainingSetup, cluster: Cluster) -> int:
    """That a worker draws for one gradient."""
    needs = setup.algorithm.needs
    assert isinstance(needs, ReplayNeeds)
    together = cluster.gradient_mode == "sync"
    return needs.batch_size // cluster.gradient_workers if together else needs.batch_size


def part_kept(setup: TrainingSetup, cluster: Cluster, place: int) -> Buffer:
    """The buffer of one worker: of all lanes those of every so-manieth collector, with their part
    of the whole size."""
    needs = setup.algorithm.needs
    assert isinstance(needs, ReplayNeeds)
    collectors = len(range(place, cluster.collectors, cluster.gradient_workers))
    return replace(
        setup.buffer,  # type: ignore[type-var]
        capacity=math.ceil(needs.buffer_size * collectors / cluster.collectors),
        lanes=setup.num_envs // cluster.collectors * collectors,
        batch_size=rows_of_each(setup, cluster),
    )


@final
class Shard:
    """What runs in a worker's process: a part of replay, and gradients of what is drawn from it."""

    def __init__(self, recipe: list[Any], place: int):
        ray = load_ray()
        # Before the first array: that of a loss add-on may be among what is fetched.
        if not ray.get_gpu_ids():
            jax.config.update("jax_platforms", "cpu")
        set_up_compilation()
        setup, cluster = ray.get(recipe[0])
        self._buffer, num_seeds = part_kept(setup, cluster, place), setup.num_seeds
        needed, has = num_seeds * self._buffer.nbytes, room("device")
        if needed > has:
            raise ConfigError(
                f"its part of replay needs {needed / 2**30:,.1f} GiB, there are "
                f"{has / 2**30:,.1f}: lower buffer_size, or take more gradient_workers"
            )
        self._empty = init_program(self._buffer, num_seeds, None)
        self._experience, self._place = self._empty(), np.int32(place)
        self._number = 0  # of the last chunk that was added
        rows = step_rows(setup.algorithm, setup.spec)
        add = over_seeds(partial(_add, self._buffer, rows), num_seeds)
        self._add = jax.jit(add, donate_argnums=0)
        draws = Draws(setup, self._buffer)
        self._answer = jax.jit(draws.answer, static_argnums=3)

    def pid(self) -> int:
        return os.getpid()

    def add(self, rows: Rows, number: int) -> bool:
        """Once, however often it is sent."""
        if number != self._number:
            self._experience = jax.block_until_ready(self._add(self._experience, rows))
            self._number = number
        return True

    def gradients(self, sent: dict[str, np.ndarray], mask: Any) -> Any:
        return jax.device_get(self._answer(sent, self._experience, self._place, mask))

    def state_dict(self) -> StateDict:
        return self._buffer.state_dict(self._experience)

    def load_state_dict(self, arrays: StateDict) -> bool:
        own = {name: np.array(array) for name, array in arrays.items()}  # not Ray's memory
        self._experience = self._buffer.load_state_dict(self._empty(), own)
        return True


def _add(buffer: Buffer, rows: RowType, experience: Any, given: Rows) -> Any:
    fields = rows.unpack(given.data)
    return buffer.add(experience, to_chunk(fields, rows.fields, given.first_lane))


@dataclass
class _Worker:
    """A place among the workers, and who holds it now."""

    place: int
    actor: Any = None
    latest: Rows | None = None  # that was sent to it
    number: int = 0  # of that chunk
    adding: Any = None  # Ray's reference to its being added; None if it is
    failures: int = 0  # in a row
    answered: bool = False
    empty: bool = False  # when it was last asked


class InFlight(NamedTuple):
    """A gradient that a worker computes by itself."""

    worker: _Worker
    mask: Any
    version: int  # updates applied when it was asked for
    since: float


@final
class ShardedWorkers:
    """Of whose experience the learner holds none."""

    def __init__(self, setup: TrainingSetup, cluster: Cluster):
        """`setup` has the lanes of all collectors."""
        check(setup, cluster)
        self._algorithm, self._patience = setup.algorithm, cluster.patience
        self._asynchronous = cluster.gradient_mode == "async"
        self._most_stale = cluster.max_staleness or 4 * cluster.gradient_workers
        self._lanes = setup.num_envs // cluster.collectors  # of each
        draws = Draws(setup, part_kept(setup, cluster, 0))
        self._tell = jax.jit(draws.send)
        self._receive = jax.jit(draws.receive, static_argnums=2)
        self._ray = connect(cluster.address, cluster.remote * cluster.cpus_each)
        self._recipe = send_recipe(self._ray, (setup, cluster))
        self._remote = self._ray.remote(num_cpus=cluster.cpus_each, max_restarts=0)(Shard)
        self._told: tuple[Any, Any] = (None, None)  # what was sent last, and its reference
        self._flying: dict[Any, InFlight] = {}
        self._next_index: int | None = 0  # None within a call
        self._version = self._asked = self._dropped = self._replaced = self._missed = 0
        self._staleness: list[int] = []
        self.workers = [_Worker(place) for place in range(cluster.gradient_workers)]
        for worker in self.workers:
            self._hire(worker)

    # -- experience ------------------------------------------------------------------------------

    def add(self, collector: int, rows: Rows) -> None:
        """Send the steps of a collector to who keeps them. One chunk may be on its way."""
        keeper, place = collector % len(self.workers), collector // len(self.workers)
        worker = self.workers[keeper]
        self._settle(worker)
        lane = np.full_like(rows.first_lane, place * self._lanes)
        worker.latest, worker.number = rows._replace(first_lane=lane), worker.number + 1
        worker.empty = False
        self._send_latest(worker)

    def _send_latest(self, worker: _Worker) -> None:
        latest, number = worker.latest, worker.number
        worker.adding = insist(self._ray, lambda: worker.actor.add.remote(latest, number))

    def _settle(self, worker: _Worker) -> None:
        while worker.adding is not None:
            reference, worker.adding = worker.adding, None
            if self._take(worker, reference) is None and worker.adding is None:
                self._send_latest(worker)  # it was lost on the way, the worker was not

    def state_dict(self) -> StateDict:
        named: StateDict = {}
        for worker in self.workers:
            self._settle(worker)
            kept = self._have(worker, lambda one: one.actor.named.remote())
            named |= add_prefix(f"shard.{worker.place}", kept)
        return named

    def load_state_dict(self, arrays: StateDict) -> None:
        stored = {name.split(".")[1] for name in arrays if name.startswith("shard.")}
        if stored != {str(worker.place) for worker in self.workers}:
            raise CheckpointError(
                f"the checkpoint does not hold the replay of {len(self.workers)} gradient workers: "
                "load it with the Cluster that it was saved with"
            )
        self._flying.clear()
        for worker in self.workers:
            kept = select_prefix(arrays, f"shard.{worker.place}")
            worker.latest, worker.empty = None, False
            self._have(worker, lambda one, kept=kept: one.actor.load_state_dict.remote(kept))

    # -- updates ---------------------------------------------------------------------------------

    def learn(
        self, learner: LearnerState, experience: Any, first_index: int, count: int
    ) -> tuple[LearnerState, Any]:
        """`count` updates. The experience given is none of theirs, and is given back."""
        if first_index != self._next_index:  # another moment, or the last call did not end
            self._flying.clear()
            self._asked = first_index
        self._next_index = None
        if self._asynchronous:
            learner = self._learn_on_arrival(learner, count)
        else:
            for index in range(first_index, first_index + count):
                learner = self._learn_together(learner, self._algorithm.update_mask(index))
        self._next_index = first_index + count
        return learner, experience

    def _learn_together(self, learner: LearnerState, mask: Any) -> LearnerState:
        sent, learner = self._tell(learner)
        ask = partial(self._ask, sent=jax.device_get(sent), mask=mask)
        asked = [(worker, ask(worker)) for worker in self.workers]
        answers = [self._have(worker, ask, reference) for worker, reference in asked]
        for worker, (held, _) in zip(self.workers, answers, strict=True):
            self._look_at(worker, held)
        self._refuse_if_all_are_empty()
        return self._receive(answers, learner, mask)

    def _learn_on_arrival(self, learner: LearnerState, count: int) -> LearnerState:
        """What is still being computed in the end stays in flight for the next call."""
        applied = 0
        while applied < count:
            learner = self._keep_busy(learner)
            self._refuse_if_all_are_empty()
            done, _ = self._ray.wait(list(self._flying), timeout=GLANCE)
            if not done:
                self._replace_silent()
                continue
            worker, mask, version, _ = self._flying.pop(done[0])
            answer = self._take(worker, done[0])
            if answer is None or not self._look_at(worker, answer[0]):
                continue
            if self._version - version > self._most_stale:
                self._dropped += 1
                continue
            self._staleness.append(self._version - version)
            learner = self._receive([answer], learner, mask)
            self._version += 1
            applied += 1
        return learner

    def _keep_busy(self, learner: LearnerState) -> LearnerState:
        """Ask everyone who has something to draw from for a gradient of the present State."""
        busy = [flying.worker.place for flying in self._flying.values()]
        for worker in self.workers:
            if worker.place in busy or worker.empty:
                continue
            sent, learner = self._tell(learner)
            mask = self._algorithm.update_mask(self._asked)
            reference = self._ask(worker, jax.device_get(sent), mask)
            self._flying[reference] = InFlight(worker, mask, self._version, time.monotonic())
            self._asked += 1
        return learner

    def _look_at(self, worker: _Worker, held: Array | np.ndarray) -> bool:
        """Whether the worker has taken part."""
        known, worker.empty = worker.empty, not np.any(held)
        self._missed += worker.empty
        if worker.empty and not known:
            told = "gradient worker %d keeps no experience yet: others learn without it"
            _log.warning(told, worker.place)
        return not worker.empty

    def _refuse_if_all_are_empty(self) -> None:
        if all(worker.empty for worker in self.workers):
            raise ClusterError(
                f"none of {len(self.workers)} gradient workers keeps a step to learn from: raise "
                "min_buffer_size"
            )

    # -- workers that come and go ----------------------------------------------------------------

    def _hire(self, worker: _Worker) -> None:
        """Someone who keeps nothing yet, but for what was sent last."""
        recipe, place = [self._recipe], worker.place
        worker.actor = insist(self._ray, lambda: self._remote.remote(recipe, place))
        worker.answered = worker.empty = False
        if worker.latest is not None:
            self._send_latest(worker)

    def _ask(self, worker: _Worker, sent: dict[str, np.ndarray], mask: Any) -> Any:
        def ask() -> Any:
            if self._told[0] is not sent:
                self._told = (sent, self._ray.put(sent))
            return worker.actor.gradients.remote(self._told[1], mask)

        return insist(self._ray, ask)

    def _have(self, worker: _Worker, ask: Any, reference: Any = None) -> Any:
        """The answer, if need be of who takes the worker's place."""
        answer = None
        while answer is None:
            answer = self._take(worker, ask(worker) if reference is None else reference)
            reference = None
        return answer

    def _take(self, worker: _Worker, reference: Any) -> Any:
        """What a worker owes. None if something went wrong, about which something was done."""
        allowed = self._allowed(worker)
        if not self._ray.wait([reference], timeout=allowed)[0]:
            self._replace(worker, f"was silent for {allowed:g} s")
            return None
        try:
            answer = self._ray.get(reference)
        except gone(self._ray) as problem:
            refuse_if_it_cannot_start(problem)
            self._replace(worker, "died")
        except lost(self._ray) as problem:
            self._told = (None, None)  # it may be this that was lost
            self._count_failure(worker, f"had its answer lost ({type(problem).__name__})")
        except self._ray.exceptions.RayTaskError as problem:
            raise problem.cause from problem
        else:
            worker.failures, worker.answered = 0, True
            return answer
        return None

    def _allowed(self, worker: _Worker) -> float:
        """Seconds of silence."""
        return self._patience if worker.answered else max(self._patience, SECONDS_TO_START)

    def _replace_silent(self) -> None:
        for worker, _, _, since in list(self._flying.values()):
            if time.monotonic() - since > self._allowed(worker):
                self._replace(worker, f"was silent for {self._allowed(worker):g} s")

    def _replace(self, worker: _Worker, reason: str) -> None:
        self._count_failure(worker, reason)
        _log.warning(
            "gradient worker %d %s and is replaced: the experience that it kept is lost",
            worker.place, reason,
        )  # fmt: skip
        self._ray.kill(worker.actor)
        # Nothing that it still owes is waited for.
        self._flying = {ref: one for ref, one in self._flying.items() if one.worker is not worker}
        worker.adding = None
        self._hire(worker)
        self._replaced += 1

    def _count_failure(self, worker: _Worker, reason: str) -> None:
        worker.failures += 1
        if worker.failures == TRIES:
            raise ClusterError(
                f"gradient worker {worker.place} has failed {TRIES} times in a row: the last time "
                f"it {reason}; see that the cluster has cores and memory for "
                f"{len(self.workers)} of them"
            )

    def facts(self) -> dict[str, float]:
        """About the workers, since the last call."""
        facts: dict[str, float] = {
            "gradient_workers": sum(worker.answered for worker in self.workers),
            "gradient_workers_replaced": self._replaced,
            "gradient_shares_missed": self._missed,
        }
        if self._asynchronous:
            facts["gradients_dropped"] = self._dropped
            if self._staleness:
                facts["gradient_staleness"] = sum(self._staleness) / len(self._staleness)
                facts["gradient_staleness_max"] = max(self._staleness)
        self._replaced = self._missed = self._dropped = 0
        self._staleness = []
        return {name: float(value) for name, value in facts.items()}

    def close(self) -> None:
        """The workers belong to this process, and would end with it too."""
        for worker in self.workers:
            self._ray.kill(worker.actor)
