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
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

import jax
import numpy as np

from understudy.algorithms.off_policy import ReplayNeeds
from understudy.buffers import Buffer
from understudy.distributed.config import Cluster
from understudy.distributed.gradient_workers import GradientWorkers, Request, in_mid_update
from understudy.distributed.supervisor import Slot, read_recipe
from understudy.errors import CheckpointError, ClusterError
from understudy.state_dict import StateDict, add_prefix, select_prefix
from understudy.training.compilation import set_up_compilation
from understudy.training.gradient_sharding import ReplaySharding
from understudy.training.replay_placement import free_bytes, init_program
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import TrainingSetup
from understudy.training.step_packing import step_dtype, to_chunk, unpack_rows
from understudy.training.trainer import States
from understudy.training.transport import Rows
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
class ShardWorkers(GradientWorkers):
    """Gradient workers that store all experience; the learner stores none."""

    def __init__(self, setup: TrainingSetup, cluster: Cluster):
        self._latest: dict[int, Request] = {}  # worker -> the last chunk that was sent to it
        self._empty: set[int] = set()  # workers that had nothing to sample from when last asked
        self._chunks = self._missed = 0
        self.everyone = range(cluster.gradient_workers)
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
            list(self.answers([]))
        lane = np.full_like(rows.first_lane, collector // self.num_workers * self._lanes)
        self._chunks += 1
        request = Request("add", (rows._replace(first_lane=lane), self._chunks), slot.index)
        self._latest[slot.index] = request
        self._empty.discard(slot.index)
        self.send(slot, request)

    def state_dict(self) -> StateDict:
        requests = [Request("state_dict", (), worker) for worker in self.everyone]
        named: StateDict = {}
        for index, stored in enumerate(self.call_all(requests)):
            named |= add_prefix(f"shard.{index}", stored)
        return named

    def load_state_dict(self, arrays: StateDict) -> None:
        stored = {name.split(".")[1] for name in arrays if name.startswith("shard.")}
        if stored != set(map(str, self.everyone)):
            raise CheckpointError(
                f"the checkpoint does not hold the replay of {self.num_workers} gradient workers: "
                "load it with the Cluster that it was saved with"
            )
        for kept in (self.in_flight, self._latest, self._empty):
            kept.clear()
        self.call_all(
            [
                Request("load_state_dict", (select_prefix(arrays, f"shard.{worker}"),), worker)
                for worker in self.everyone
            ]
        )

    def _prepare(self, slot: Slot, notes: list[Any]) -> None:
        latest = self._latest.get(slot.index)
        if not slot.started:  # a new process
            _log.warning("the experience that gradient worker %d stored is lost", slot.index)
            self._empty.discard(slot.index)
        if latest is not None and (not slot.started or latest in notes):
            self.send(slot, latest)  # first: gradients need something to sample from

    # -- updates ---------------------------------------------------------------------------------

    def _idle(self) -> Sequence[int | None]:
        self._refuse_if_all_are_empty()
        busy = {request.worker for request in self.in_flight} | self._empty
        return [worker for worker in self.everyone if worker not in busy]

    def _divide(self, states: States, index: int, workers: Sequence[Any]) -> tuple[Any, Any]:
        sent, states.learner = self._send(states.learner)
        mask = self.mask_at(index)
        arguments = (jax.device_get(sent), mask)
        return [Request("gradients", arguments, worker) for worker in workers], mask

    def _apply(self, answers: list[Any], states: States, inputs: Any, reset: bool) -> None:
        """The given experience is empty, and stays so."""
        states.learner = self._receive(answers, states.learner, inputs._replace(reset=reset))

    def _takes_part(self, request: Request, answer: Any) -> bool:
        """Note whether a worker had steps to sample from."""
        worker, (num_stored, _) = request.worker, answer  # per seed
        assert worker is not None
        if np.any(num_stored):
            self._empty.discard(worker)
            return True
        if worker not in self._empty:
            _log.warning(
                "gradient worker %d stores no experience yet: the others learn without it", worker
            )
        self._empty.add(worker)
        self._missed += 1
        self._refuse_if_all_are_empty()
        return False

    def _refuse_if_all_are_empty(self) -> None:
        if len(self._empty) == self.num_workers:
            raise ClusterError(
                f"none of {self.num_workers} gradient workers stores a step to learn from: raise "
                "min_buffer_size"
            )

    def metrics(self) -> dict[str, float]:
        missed, self._missed = self._missed, 0
        return super().metrics() | {"gradient_shares_missed": missed}
