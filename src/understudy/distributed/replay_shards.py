"""Replay shards: each gradient worker stores the steps of some of the collectors.

A step is sent once, to the worker that stores it, and no batch is sent at all. The learner sends
its state to every worker. Each samples from its shard, and answers with gradients and with how much
it stores. The answers are weighted by that, so that every step is as likely to be learned from as
in one buffer.

The shard of a worker that dies is lost. The next process starts with the last chunk.
"""

import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import jax
import numpy as np
from jaxtyping import Array

from understudy.algorithms.off_policy import ReplayNeeds
from understudy.buffers import Buffer
from understudy.distributed.config import Cluster
from understudy.distributed.gradient_workers import GradientWorkers, InFlight, in_mid_update
from understudy.distributed.supervisor import Answer, Slot, read_recipe
from understudy.errors import CheckpointError, ClusterError
from understudy.state_dict import StateDict, add_prefix, select_prefix
from understudy.training.compilation import set_up_compilation
from understudy.training.gradient_sharding import ReplaySharding
from understudy.training.replay_placement import free_bytes, init_program
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import TrainingSetup
from understudy.training.step_packing import step_dtype, to_chunk, unpack_rows
from understudy.training.transport import Rows
from understudy.training.update import LearnerState
from understudy.types import ConfigError

_log = logging.getLogger("understudy.distributed")


def shard_buffer(setup: TrainingSetup, cluster: Cluster, index: int) -> Buffer:
    """Return the buffer of one worker: the lanes of every G-th collector, and their part of the
    whole size and of a batch."""
    needs = setup.algorithm.needs
    assert isinstance(needs, ReplayNeeds)
    collectors = len(range(index, cluster.collectors, cluster.gradient_workers))
    parts = cluster.gradient_workers if cluster.gradient_mode == "sync" else 1
    return replace(
        setup.buffer,  # type: ignore[type-var]
        capacity=math.ceil(needs.buffer_size * collectors / cluster.collectors),
        lanes=setup.num_envs // cluster.collectors * collectors,
        batch_size=needs.batch_size // parts,
    )


@final
class ShardProcess:
    """Runs in a worker's process: a shard of replay, and gradients of batches sampled from it."""

    def __init__(self, recipe: list[Any], index: int, attempt: int):
        setup, cluster = read_recipe(recipe)
        set_up_compilation()
        self._buffer, num_seeds = shard_buffer(setup, cluster, index), setup.num_seeds
        needed, has = num_seeds * self._buffer.nbytes, free_bytes("device")
        if needed > has:
            raise ConfigError(
                f"its part of replay needs {needed / 2**30:,.1f} GiB, there are "
                f"{has / 2**30:,.1f}: lower buffer_size, or take more gradient_workers"
            )
        self._empty = init_program(self._buffer, num_seeds, None)
        self._experience, self._index = self._empty(), np.int32(index)
        self._number = 0  # of the last chunk that was added
        rows = step_dtype(setup.algorithm, setup.spec)
        add = over_seeds(partial(add_rows, self._buffer, rows), num_seeds)
        self._add = jax.jit(add, donate_argnums=0)
        draws = ReplaySharding(setup, self._buffer)
        self._answer = jax.jit(draws.answer, static_argnums=3)

    def pid(self) -> int:
        return os.getpid()

    def add(self, rows: Rows, number: int) -> None:
        """Add a chunk once, even if it is sent several times."""
        if number != self._number:
            self._experience = jax.block_until_ready(self._add(self._experience, rows))
            self._number = number

    def gradients(self, sent: dict[str, np.ndarray], mask: Any) -> Any:
        return jax.device_get(self._answer(sent, self._experience, self._index, mask))

    def state_dict(self) -> StateDict:
        return self._buffer.state_dict(self._experience)

    def load_state_dict(self, arrays: StateDict) -> None:
        own = {name: np.array(array) for name, array in arrays.items()}  # not Ray's memory
        self._experience = self._buffer.load_state_dict(self._empty(), own)


def add_rows(buffer: Buffer, rows: np.dtype, experience: Any, given: Rows) -> Any:
    """Add the steps of packed rows to a buffer's state."""
    fields = unpack_rows(rows, given.data)
    return buffer.add(experience, to_chunk(fields, rows, given.first_lane))


@final
@dataclass(frozen=True, eq=False)
class Request:
    """A call that is repeated until it is answered."""

    method: str
    arguments: tuple[Any, ...] = ()


@final
class ShardWorkers(GradientWorkers):
    """Gradient workers that store all experience; the learner stores none."""

    def __init__(self, setup: TrainingSetup, cluster: Cluster):
        self._latest: dict[int, Request] = {}  # slot -> the last chunk that was sent to it
        self._empty: set[int] = set()  # slots that had nothing to sample from when last asked
        self._chunks = self._missed = 0
        super().__init__(setup, cluster, ShardProcess, (setup, cluster))
        self._lanes = setup.num_envs // cluster.collectors  # of each collector
        draws = ReplaySharding(setup, shard_buffer(setup, cluster, 0))
        self._send = jax.jit(draws.send)
        self._receive = jax.jit(draws.receive, static_argnums=2)

    # -- experience ------------------------------------------------------------------------------

    @in_mid_update()
    def add(self, collector: int, rows: Rows) -> None:
        """Send the steps of a collector to the worker that stores them. One chunk may be on its
        way to each worker."""
        slot = self.supervisor.slots[collector % self.num_workers]
        while self._latest.get(slot.index) in slot.calls.values():
            list(self._answers([]))
        lane = np.full_like(rows.first_lane, collector // self.num_workers * self._lanes)
        self._chunks += 1
        request = Request("add", (rows._replace(first_lane=lane), self._chunks))
        self._latest[slot.index] = request
        self._empty.discard(slot.index)
        self._call(slot, request)

    def state_dict(self) -> StateDict:
        named: StateDict = {}
        for index, stored in enumerate(self._call_all([Request("state_dict")] * self.num_workers)):
            named |= add_prefix(f"shard.{index}", stored)
        return named

    def load_state_dict(self, arrays: StateDict) -> None:
        stored = {name.split(".")[1] for name in arrays if name.startswith("shard.")}
        if stored != {str(index) for index in range(self.num_workers)}:
            raise CheckpointError(
                f"the checkpoint does not hold the replay of {self.num_workers} gradient workers: "
                "load it with the Cluster that it was saved with"
            )
        self._forget()
        self._latest.clear()
        self._empty.clear()
        shards = [select_prefix(arrays, f"shard.{index}") for index in range(self.num_workers)]
        self._call_all([Request("load_state_dict", (shard,)) for shard in shards])

    # -- calls -----------------------------------------------------------------------------------

    def _call(self, slot: Slot, request: Request) -> None:
        arguments = request.arguments
        if request.method == "gradients":
            arguments = (self.publish(arguments[0]), *arguments[1:])
        self.supervisor.call(slot, request.method, *arguments, note=request)

    def _call_all(self, requests: list[Request]) -> list[Any]:
        """Return the answers of all workers, each to its request."""
        if self.supervisor.given_up is not None:
            raise self.supervisor.given_up
        for slot, request in zip(self.supervisor.slots, requests, strict=True):
            self._call(slot, request)
        answers: dict[int, Any] = {}
        while len(answers) < self.num_workers:
            answers |= {answer.slot.index: answer.value for answer in self._answers(requests)}
        return [answers[index] for index in range(self.num_workers)]

    def _answers(self, requests: list[Any]) -> Iterator[Answer]:
        """Yield the answers to these requests that have arrived, and repeat lost ones. The answers
        to `add` are only taken: a worker whose answer is not read would seem to be silent."""
        notes = [
            (call, note) for slot in self.supervisor.slots for call, note in slot.calls.items()
        ]
        calls = [call for call, note in notes if note in requests or note.method == "add"]
        for answer in self.supervisor.answers(calls):
            if answer.lost:
                self._published = (None, None)  # the state that was sent may be lost
                self._ask_again(answer.slot, [answer.note])
            elif answer.note in requests:
                yield answer

    def _ask_again(self, slot: Slot, notes: list[Any]) -> None:
        latest = self._latest.get(slot.index)
        if not slot.started:  # a new process
            _log.warning("the experience that gradient worker %d stored is lost", slot.index)
            self._empty.discard(slot.index)
            if latest is not None:  # first: gradients need something to sample from
                notes = [latest, *(note for note in notes if note is not latest)]
        for request in notes:
            self._call(slot, request)

    def _forget(self) -> None:
        self.in_flight.clear()
        for slot in self.supervisor.slots:
            calls = slot.calls.items()
            slot.calls = {call: note for call, note in calls if note.method != "gradients"}

    # -- updates ---------------------------------------------------------------------------------

    def _update_together(
        self, learner: LearnerState, experience: Any, first_index: int, count: int
    ) -> tuple[LearnerState, Any]:
        for index in range(first_index, first_index + count):
            sent, learner = self._send(learner)
            mask = self.algorithm.update_mask(index)
            request = Request("gradients", (jax.device_get(sent), mask))
            answers = self._call_all([request] * self.num_workers)
            for slot, (num_stored, _) in zip(self.supervisor.slots, answers, strict=True):
                self._takes_part(slot, num_stored)
            self._refuse_if_all_are_empty()
            learner, experience = self._apply(answers, learner, experience, request)
        return learner, experience

    def _keep_busy(self, learner: LearnerState, experience: Any) -> LearnerState:
        for slot in self.supervisor.slots:
            if slot.index in self.in_flight or slot.index in self._empty:
                continue
            sent, learner = self._send(learner)
            mask = self.algorithm.update_mask(self.asked)
            request = Request("gradients", (jax.device_get(sent), mask))
            self.in_flight[slot.index] = InFlight(request, self.version)
            self._call(slot, request)
            self.asked += 1
        self._refuse_if_all_are_empty()
        return learner

    def _next_gradient(self) -> tuple[InFlight, Any] | None:
        requests = [one.request for one in self.in_flight.values()]
        for answer in self._answers(requests):
            in_flight = self.in_flight.pop(answer.slot.index)
            if self._takes_part(answer.slot, answer.value[0]):
                return in_flight, answer.value
        return None

    def _apply(
        self, answers: list[Any], learner: LearnerState, experience: Any, request: Any
    ) -> tuple[LearnerState, Any]:
        """The given experience is empty, and is returned as it is."""
        return self._receive(answers, learner, request.arguments[1]), experience

    def _takes_part(self, slot: Slot, num_stored: Array | np.ndarray) -> bool:
        """Note whether a worker had steps to sample from; `num_stored` is per seed."""
        if np.any(num_stored):
            self._empty.discard(slot.index)
            return True
        if slot.index not in self._empty:
            _log.warning(
                "gradient worker %d stores no experience yet: the others learn without it",
                slot.index,
            )
        self._empty.add(slot.index)
        self._missed += 1
        return False

    def _refuse_if_all_are_empty(self) -> None:
        if len(self._empty) == self.num_workers:
            raise ClusterError(
                f"none of {self.num_workers} gradient workers stores a step to learn from: raise "
                "min_buffer_size"
            )

    def metrics(self) -> dict[str, float]:
        missed, self._missed = self._missed, 0
        return super().metrics() | {"gradient_shares_missed": float(missed)}
