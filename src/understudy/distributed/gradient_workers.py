"""Gradient workers on Ray: they compute gradients, and the learner applies them.

Synchronously, the parts of one batch make one update, the same as that of a single process except
for the order of sums. Asynchronously, every worker has a batch of its own. Its gradient is applied
when it arrives, to a state that other gradients have changed meanwhile.
"""

import abc
import contextlib
import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, final

import jax
import numpy as np

from understudy.algorithms.base import Needs
from understudy.algorithms.off_policy import ReplayNeeds
from understudy.buffers import Buffer
from understudy.distributed.config import Cluster
from understudy.distributed.connect import connect
from understudy.distributed.supervisor import Slot, Supervisor, read_recipe, retry_while_full
from understudy.training.gradient_sharding import BatchSharding, check_shares
from understudy.training.learner import minibatch, minibatch_rows
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import TrainingSetup
from understudy.training.update import LearnerState, UpdateInputs, sample_inputs
from understudy.types import ClusterError, ConfigError, UnderstudyError


@contextlib.contextmanager
def in_mid_update() -> Iterator[None]:
    """Raise no ClusterError, after which a run is saved: steps have been counted whose updates were
    not done, and priorities may have been donated."""
    try:
        yield
    except ClusterError as error:
        raise UnderstudyError(str(error)) from error


class InFlight(NamedTuple):
    """A gradient that a worker computes for an update of its own."""

    request: Any  # what `_apply` needs beside the answer
    version: int  # updates applied when it was asked for


class GradientWorkers(abc.ABC):
    """Holds no learner and no experience: both are given with every call. Abstract; the final ones
    send batches (`BatchWorkers`), or let workers sample from their own replay (`ShardWorkers`)."""

    def __init__(self, setup: TrainingSetup, cluster: Cluster, actor_class: type, recipe: Any):
        """`setup` has the lanes of all collectors."""
        check_gradient_workers(setup, cluster)
        self.algorithm, self.num_workers = setup.algorithm, cluster.gradient_workers
        self._asynchronous = cluster.gradient_mode == "async"
        # With G workers G - 1 others arrive between a gradient's start and its end.
        self.max_staleness = cluster.max_staleness or 4 * self.num_workers
        self._ray = connect(cluster.address, cluster.remote * cluster.cpus_each)
        attempts = [0] * self.num_workers
        self.supervisor = Supervisor(
            self._ray, cluster, "gradient worker", actor_class, recipe, attempts, self._ask_again
        )
        self._next_index: int | None = 0  # None within a call
        self.version = self.asked = self._dropped = self._replaced = 0
        self.in_flight: dict[Any, InFlight] = {}
        self._staleness: list[int] = []
        self._published: tuple[Any, Any] = (None, None)  # the last state sent, and its reference

    @abc.abstractmethod
    def _ask_again(self, slot: Slot, notes: list[Any]) -> None:
        """Repeat calls that were not answered: of a new worker, or after a lost object."""

    @abc.abstractmethod
    def _forget(self) -> None:
        """Drop what is in flight."""

    @abc.abstractmethod
    def _update_together(
        self, learner: LearnerState, experience: Any, first_index: int, count: int
    ) -> tuple[LearnerState, Any]:
        """Do `count` synchronous updates."""

    @abc.abstractmethod
    def _keep_busy(self, learner: LearnerState, experience: Any) -> LearnerState:
        """Ask every idle worker for a gradient of the present state."""

    @abc.abstractmethod
    def _next_gradient(self) -> tuple[InFlight, Any] | None:
        """Wait a moment for the next gradient in flight."""

    @abc.abstractmethod
    def _apply(
        self, answers: list[Any], learner: LearnerState, experience: Any, request: Any
    ) -> tuple[LearnerState, Any]:
        """Finish one update by the answers of the workers that took part in it."""

    @in_mid_update()
    def learn(
        self, learner: LearnerState, experience: Any, first_index: int, count: int
    ) -> tuple[LearnerState, Any]:
        """Do `count` updates, [seeds, ...] each. The priorities of the given experience are donated
        to the programs."""
        if self.supervisor.given_up is not None:
            raise self.supervisor.given_up
        if first_index != self._next_index:  # the run was restored, or the last call did not end
            self._forget()
            self.in_flight.clear()
            self.asked = first_index
        self._next_index = None
        if self._asynchronous:
            updated = self._update_on_arrival(learner, experience, count)
        else:
            updated = self._update_together(learner, experience, first_index, count)
        self._next_index = first_index + count
        return updated

    def _update_on_arrival(
        self, learner: LearnerState, experience: Any, count: int
    ) -> tuple[LearnerState, Any]:
        """Gradients that are still being computed in the end stay in flight for the next call."""
        applied = 0
        while applied < count:
            learner = self._keep_busy(learner, experience)
            arrived = self._next_gradient()
            if arrived is None:
                continue
            (request, version), answer = arrived
            if self.version - version > self.max_staleness:
                self._dropped += 1
                continue
            self._staleness.append(self.version - version)
            learner, experience = self._apply([answer], learner, experience, request)
            self.version += 1
            applied += 1
        return learner, experience

    def publish(self, sent: dict[str, np.ndarray]) -> Any:
        """Return a reference to a state, which is put into the object store once."""
        if self._published[0] is not sent:
            self._published = (sent, retry_while_full(self._ray, lambda: self._ray.put(sent)))
        return self._published[1]

    def metrics(self) -> dict[str, float]:
        """Metrics of the workers since the last call."""
        replaced = self.supervisor.replaced
        metrics: dict[str, float] = {
            "gradient_workers": self.supervisor.started,
            "gradient_workers_replaced": replaced - self._replaced,
        }
        if self._asynchronous:
            metrics["gradients_dropped"] = self._dropped
            if self._staleness:
                metrics["gradient_staleness"] = sum(self._staleness) / len(self._staleness)
                metrics["gradient_staleness_max"] = max(self._staleness)
        self._replaced, self._dropped, self._staleness = replaced, 0, []
        return {name: float(value) for name, value in metrics.items()}

    def close(self) -> None:
        self.supervisor.close()


@final
class BatchWorkers(GradientWorkers):
    """The learner samples the batches. A task goes to any idle worker; that of a worker which is
    replaced goes to the next idle one."""

    def __init__(self, setup: TrainingSetup, cluster: Cluster, buffer: Buffer | None = None):
        """`buffer` is the setup's own unless given."""
        self._shares, self._num_seeds = BatchSharding(setup), setup.num_seeds
        # Number -> (state, batch [seeds, rows, ...], key, mask) of a task that is not answered yet.
        # All parts of one update have the same object as their state.
        self._tasks: dict[int, tuple[Any, ...]] = {}
        self._waiting: deque[int] = deque()  # numbers of those that no worker has
        self._number = 0
        super().__init__(setup, cluster, GradientProcess, setup)
        self.use_buffer(buffer or setup.buffer)
        for slot in self.supervisor.slots:
            self._ask_again(slot, [])

    def use_buffer(self, buffer: Buffer) -> None:
        """Compile what samples from this buffer."""
        self._buffer, shares, num_seeds = buffer, self._shares, self._num_seeds
        self._ready = jax.jit(over_seeds(partial(sample_inputs, self.algorithm, buffer), num_seeds))
        self._minibatch = jax.jit(over_seeds(minibatch, num_seeds, shared=(2,)))
        self._send = jax.jit(shares.send, static_argnums=2)

        def receive(
            answers: Any, learner: LearnerState, priorities: Any, experience: Any,
            now: UpdateInputs, mask: Any,
        ):  # fmt: skip
            if priorities is not None:
                experience = buffer.with_priorities(experience, priorities)
            return shares.receive(answers, learner, experience, now, mask, self._asynchronous)

        rows = partial(minibatch_rows, self.algorithm)
        self._order = jax.jit(over_seeds(rows, num_seeds))
        self._receive = jax.jit(receive, static_argnums=5, donate_argnums=2)

    def _update_together(
        self, learner: LearnerState, experience: Any, first_index: int, count: int
    ) -> tuple[LearnerState, Any]:
        whole = order = None
        if self.algorithm.needs.on_policy and count > 1:
            whole = self._ready(learner.state, experience)
            order = self._order(learner.state, whole)
        for place, index in enumerate(range(first_index, first_index + count)):
            if whole is None or order is None:
                now = self.sample(learner, experience, index)
            else:
                now = self._minibatch(whole, order[:, place], np.int32(index))
            mask, numbers = self._ask(learner, now, index, self.num_workers)
            answers = dict(self._next_answer() for _ in numbers)
            answers = [answers[number] for number in numbers]
            learner, experience = self._apply(answers, learner, experience, (now, mask))
        return learner, experience

    def _keep_busy(self, learner: LearnerState, experience: Any) -> LearnerState:
        while len(self.in_flight) < self.num_workers:
            now = self.sample(learner, experience, self.asked)
            mask, (number,) = self._ask(learner, now, self.asked, 1)
            self.in_flight[number] = InFlight((now, mask), self.version)
            self.asked += 1
            state = learner.state._replace(key=now.next_key)  # the next batch is another one
            learner = learner._replace(state=state)
        return learner

    def _next_gradient(self) -> tuple[InFlight, Any] | None:
        number, answer = self._next_answer()
        return self.in_flight.pop(number), answer

    def sample(self, learner: LearnerState, experience: Any, index: int) -> UpdateInputs:
        buffer: Any = self._buffer
        if buffer.external:
            drawn, _ = buffer.sample_updates(experience, index, 1)
            experience = jax.tree.map(lambda x: x[:, 0], drawn)
        return self._ready(learner.state, experience)

    def _ask(
        self, learner: LearnerState, now: UpdateInputs, index: int, parts: int
    ) -> tuple[Any, list[int]]:
        """Ask for gradients of so many parts of a batch, and return the numbers of the tasks."""
        mask = self.algorithm.update_mask(index)
        sent, batches = jax.device_get(self._send(learner.state, now.batch, parts))
        key, first = np.asarray(now.key), self._number + 1
        self._number += parts
        numbers = list(range(first, first + parts))
        for number, batch in zip(numbers, batches, strict=True):
            self._tasks[number] = (sent, batch, key, mask)
        self._waiting.extend(numbers)
        return mask, numbers

    def _next_answer(self) -> tuple[int, dict[str, np.ndarray]]:
        """Return the number of a task and its answer, whichever comes first."""
        while True:
            self._assign()
            for slot, number, value, lost in self.supervisor.answers():
                if lost:
                    self._published = (None, None)  # the state that was sent may be lost
                    self._ask_again(slot, [number])
                elif self._tasks.pop(number, None) is not None:
                    return number, value

    def _assign(self) -> None:
        """Give waiting tasks to idle workers, in their order."""
        for slot in self.supervisor.slots:
            if self._waiting and slot.started and not slot.calls:
                number = self._waiting.popleft()
                sent, *others = self._tasks[number]
                self.supervisor.call(slot, "gradients", self.publish(sent), *others, note=number)

    def _ask_again(self, slot: Slot, notes: list[Any]) -> None:
        if not slot.started:  # its answer says that it can be given tasks
            self.supervisor.call(slot, "pid")
        self._waiting.extendleft(number for number in notes if number in self._tasks)

    def _forget(self) -> None:
        self._tasks.clear()
        self._waiting.clear()

    def _apply(
        self, answers: list[Any], learner: LearnerState, experience: Any, request: Any
    ) -> tuple[LearnerState, Any]:
        now, mask = request
        # The program that changes the priorities takes them over.
        priorities = self._buffer.get_priorities(experience)
        rest = None if priorities is None else experience._replace(priorities=None)
        learner, revised = self._receive(answers, learner, priorities, rest, now, mask)
        return learner, self._buffer.with_priorities(experience, revised)


@final
class GradientProcess:
    """Runs in a worker's process."""

    def __init__(self, recipe: list[Any], index: int, attempt: int):
        shares = BatchSharding(read_recipe(recipe))
        self._answer = jax.jit(shares.answer, static_argnums=3)

    def pid(self) -> int:
        return os.getpid()

    def gradients(self, sent: dict[str, np.ndarray], batch: Any, key: np.ndarray, mask: Any) -> Any:
        return jax.device_get(self._answer(sent, batch, key, mask))


def check_gradient_workers(setup: TrainingSetup, cluster: Cluster) -> None:
    """Refuse settings that gradient workers cannot serve, before anything starts."""
    name, needs = setup.algorithm.name.upper(), setup.algorithm.needs
    if cluster.replay == "sharded":
        _check_sharded(name, needs)
    if cluster.gradient_mode == "sync":
        check_shares(setup, cluster.gradient_workers)
    elif not isinstance(needs, ReplayNeeds):
        raise ConfigError(
            f"Cluster: gradient_mode='async' needs replay: {name} learns from what its present "
            "policy has just done; use 'sync'"
        )


def _check_sharded(name: str, needs: Needs) -> None:
    if not isinstance(needs, ReplayNeeds):
        raise ConfigError(f"Cluster: replay='sharded' needs replay, which {name} has none of")
    if needs.priority_exponent is not None:
        raise ConfigError(
            "Cluster: replay='sharded' cannot be prioritized: priorities are relative to all that "
            "is kept; use replay='central', or prioritized=False"
        )
    if needs.storage not in ("auto", "device"):
        raise ConfigError(
            "Cluster: replay='sharded' is kept in the memory of the gradient workers: "
            f"replay_storage must be auto or device, got {needs.storage!r}"
        )
