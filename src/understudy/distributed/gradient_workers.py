"""Gradient workers on Ray: they compute gradients, and the learner applies them.

Synchronously, the parts of one batch make one update, the same as that of a single process except
for the order of sums. Asynchronously, every worker has a batch of its own. Its gradient is applied
when it arrives, to a state that other gradients have changed meanwhile.
"""

import abc
import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import jax
import numpy as np
from jaxtyping import Array

from understudy.algorithms.base import Needs
from understudy.algorithms.off_policy import ReplayNeeds
from understudy.buffers import Buffer
from understudy.distributed.config import Cluster
from understudy.distributed.connect import connect
from understudy.distributed.supervisor import (
    Answer,
    Slot,
    Supervisor,
    read_recipe,
    retry_while_full,
)
from understudy.training.gradient_sharding import BatchSharding, check_shares
from understudy.training.learner import minibatch, minibatch_rows
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import TrainingSetup
from understudy.training.trainer import States
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


@final
@dataclass(frozen=True, eq=False)
class Request:
    """A call that is repeated until it is answered."""

    method: str
    arguments: tuple[Any, ...] = ()
    worker: int | None = None  # None: any idle one


def describe_staleness(name: str, values: list[int]) -> dict[str, float]:
    """Return the mean and the maximum as metrics, if there are values."""
    return {name: sum(values) / len(values), f"{name}_max": max(values)} if values else {}


class GradientWorkers(abc.ABC):
    """Holds no learner and no experience: both are given with every call. Abstract; the final ones
    send batches (`BatchWorkers`), or let workers sample from their own replay (`ShardWorkers`)."""

    everyone: Sequence[int | None]  # the workers of requests that go to all: None is any of them

    def __init__(self, setup: TrainingSetup, cluster: Cluster, actor_class: type, recipe: Any):
        """`setup` has the lanes of all collectors."""
        self.algorithm, self.num_workers = setup.algorithm, cluster.gradient_workers
        self._asynchronous = cluster.gradient_mode == "async"
        # With G workers G - 1 others arrive between a gradient's start and its end.
        self.max_staleness = cluster.max_staleness or 4 * self.num_workers
        self._ray = connect(cluster.address, cluster.remote * cluster.cpus_each)
        attempts = [0] * self.num_workers
        self.supervisor = Supervisor(
            self._ray, cluster, "gradient worker", actor_class, recipe, attempts, self._prepare
        )
        self._next_index: int | None = 0  # None within a call
        self.version = self.asked = self._dropped = self._replaced = 0
        # Gradients of updates of their own: what `_apply` needs, and the version when asked for.
        self.in_flight: dict[Request, tuple[Any, int]] = {}
        self._staleness: list[int] = []
        self._published: tuple[Any, Any] = (None, None)  # the last state sent, and its reference

    @abc.abstractmethod
    def _prepare(self, slot: Slot, notes: list[Any]) -> None:
        """Make calls that come before any other: of a new worker, or again after a lost object."""

    @abc.abstractmethod
    def _idle(self) -> Sequence[int | None]:
        """Return the workers to ask for gradients of updates of their own."""

    @abc.abstractmethod
    def _divide(self, states: States, index: int, workers: Sequence[Any]) -> tuple[Any, Any]:
        """Divide an update among workers: return a request for each worker, and what `_apply` needs
        beside the answers. The learner gets its next key."""

    @abc.abstractmethod
    def _apply(self, answers: list[Any], states: States, inputs: Any, reset: bool) -> None:
        """Finish one update by the answers of the workers that took part in it. With `reset`
        networks start again after it."""

    def mask_at(self, index: int) -> Any:
        """Return the delayed parts of the gradients of update `index`. Whether a reset follows is
        decided when they are applied: some never are, and workers compile nothing for it."""
        return self.algorithm.update_mask(index)._replace(reset=False)

    def resets_at(self, index: int) -> bool:
        """Return whether networks start again after update `index`."""
        return bool(self.algorithm.update_mask(index).reset)

    def _takes_part(self, request: Request, answer: Any) -> bool:
        """Return whether a worker had steps to learn from."""
        return True

    @in_mid_update()
    def learn(
        self, learner: LearnerState, experience: Any, first_index: int, count: int
    ) -> tuple[LearnerState, Any]:
        """Do `count` updates, [seeds, ...] each. The priorities of the given experience are donated
        to the programs."""
        if self.supervisor.given_up is not None:
            raise self.supervisor.given_up
        if first_index != self._next_index:  # the run was restored, or the last call did not end
            self.in_flight.clear()
            self.asked = first_index
        self._next_index = None
        states = States(learner, experience)
        if self._asynchronous:
            self._update_on_arrival(states, first_index, count)
        else:
            self._update_together(states, first_index, count)
        self._next_index = first_index + count
        return states.learner, states.experience

    def _update_together(self, states: States, first_index: int, count: int) -> None:
        """Do `count` synchronous updates."""
        for index in range(first_index, first_index + count):
            requests, inputs = self._divide(states, index, self.everyone)
            answers = self.call_all(requests)
            for request, answer in zip(requests, answers, strict=True):
                self._takes_part(request, answer)
            self._apply(answers, states, inputs, self.resets_at(index))

    def _update_on_arrival(self, states: States, first_index: int, count: int) -> None:
        """Gradients that are still being computed in the end stay in flight for the next call."""
        begin, end = self.version, self.version + count
        while self.version < end:
            for worker in self._idle():
                [request], inputs = self._divide(states, self.asked, [worker])
                self.in_flight[request] = (inputs, self.version)
                self.asked += 1
            answer = next(self.answers(self.in_flight), None)
            if answer is None:
                continue
            inputs, version = self.in_flight.pop(answer.note)
            if not self._takes_part(answer.note, answer.value):
                continue
            if self.version - version > self.max_staleness:
                self._dropped += 1
                continue
            self._staleness.append(self.version - version)
            resets = self.resets_at(first_index + self.version - begin)
            self._apply([answer.value], states, inputs, resets)
            self.version += 1

    def call_all(self, requests: list[Request]) -> list[Any]:
        """Return the answers to all these requests."""
        if self.supervisor.given_up is not None:
            raise self.supervisor.given_up
        answers: dict[Request, Any] = {}
        while missing := [request for request in requests if request not in answers]:
            answers |= {answer.note: answer.value for answer in self.answers(missing)}
        return [answers[request] for request in requests]

    def answers(self, requests: Collection[Request]) -> Iterator[Answer]:
        """Send the requests that no worker has, also those of a worker that was replaced and those
        whose answer was lost. Yield the answers to them that have arrived. Other gradients in
        flight are not read. All other answers are, because a worker whose answer is not read would
        seem to be silent."""
        slots = self.supervisor.slots
        sent = {note for slot in slots for note in slot.calls.values()}
        for request in requests:
            slot = None if request in sent else self._slot_for(request)
            if slot is not None:
                self.send(slot, request)
        notes = [(call, note) for slot in slots for call, note in slot.calls.items()]
        calls = [call for call, note in notes if note in requests or note not in self.in_flight]
        for answer in self.supervisor.answers(calls):
            if answer.lost:
                self._published = (None, None)  # the state that was sent may be lost
                self._prepare(answer.slot, [answer.note])
            elif answer.note in requests:
                yield answer

    def _slot_for(self, request: Request) -> Slot | None:
        slots = self.supervisor.slots
        if request.worker is not None:
            return slots[request.worker]
        return next((slot for slot in slots if slot.started and not slot.calls), None)

    def send(self, slot: Slot, request: Request) -> None:
        arguments = request.arguments
        if request.method == "gradients":  # the state is put into the object store once
            state, *others = arguments
            if self._published[0] is not state:
                self._published = (state, retry_while_full(self._ray, self._ray.put, state))
            arguments = (self._published[1], *others)
        self.supervisor.call(slot, request.method, *arguments, note=request)

    def metrics(self) -> dict[str, float]:
        """Metrics of the workers since the last call."""
        replaced = self.supervisor.replaced
        metrics: dict[str, float] = {
            "gradient_workers": self.supervisor.started,
            "gradient_workers_replaced": replaced - self._replaced,
        }
        if self._asynchronous:
            metrics["gradients_dropped"] = self._dropped
            metrics |= describe_staleness("gradient_staleness", self._staleness)
        self._replaced, self._dropped, self._staleness = replaced, 0, []
        return metrics

    def close(self) -> None:
        self.supervisor.close()


@final
class BatchWorkers(GradientWorkers):
    """The learner samples the batches. A request goes to any idle worker; that of a worker which is
    replaced goes to the next idle one."""

    def __init__(self, setup: TrainingSetup, cluster: Cluster, buffer: Buffer | None = None):
        """`buffer` is the setup's own unless given."""
        self._shares, self._num_seeds = BatchSharding(setup), setup.num_seeds
        self.everyone = [None] * cluster.gradient_workers
        self._rollout: tuple[UpdateInputs, Array, int] | None = None  # whole, rows, first index
        super().__init__(setup, cluster, GradientProcess, setup)
        self.use_buffer(buffer or setup.buffer)
        for slot in self.supervisor.slots:
            self._prepare(slot, [])

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

    def _prepare(self, slot: Slot, notes: list[Any]) -> None:
        if not slot.started:  # its answer says that it can be given requests
            self.supervisor.call(slot, "pid")

    def _idle(self) -> Sequence[int | None]:
        return self.everyone[len(self.in_flight) :]

    def _update_together(self, states: States, first_index: int, count: int) -> None:
        self._rollout = None
        if self.algorithm.needs.on_policy and count > 1:
            whole = self._ready(states.learner.state, states.experience)
            self._rollout = (whole, self._order(states.learner.state, whole), first_index)
        super()._update_together(states, first_index, count)

    def sample(self, states: States, index: int) -> UpdateInputs:
        if self._rollout is not None:
            whole, order, first_index = self._rollout
            return self._minibatch(whole, order[:, index - first_index], np.int32(index))
        buffer: Any = self._buffer
        experience = states.experience
        if buffer.external:
            drawn, _ = buffer.sample_updates(experience, index, 1)
            experience = jax.tree.map(lambda x: x[:, 0], drawn)
        return self._ready(states.learner.state, experience)

    def _divide(self, states: States, index: int, workers: Sequence[Any]) -> tuple[Any, Any]:
        now, mask = self.sample(states, index), self.mask_at(index)
        state, key = states.learner.state, np.asarray(now.key)
        sent, batches = jax.device_get(self._send(state, now.batch, len(workers)))
        state = state._replace(key=now.next_key)  # the next batch is another one
        states.learner = states.learner._replace(state=state)
        requests = [Request("gradients", (sent, batch, key, mask)) for batch in batches]
        return requests, (now, mask)

    def _apply(self, answers: list[Any], states: States, inputs: Any, reset: bool) -> None:
        now, mask = inputs[0], inputs[1]._replace(reset=reset)
        # The program that changes the priorities takes them over.
        learner, experience = states.learner, states.experience
        priorities = self._buffer.get_priorities(experience)
        rest = None if priorities is None else experience._replace(priorities=None)
        states.learner, revised = self._receive(answers, learner, priorities, rest, now, mask)
        states.experience = self._buffer.with_priorities(experience, revised)


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
    config = setup.algorithm.config
    if (setting := config.batch_setting) is not None:
        usual = config.__dataclass_fields__[setting].default
        raise ConfigError(
            f"Cluster: gradient workers do not see the whole batch, whose statistics {name} uses "
            f"with {setting}={getattr(config, setting)!r}; use {usual!r}"
        )
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
