"""Gradient workers on Ray: they compute the gradients, the learner draws and finishes.

Synchronously, the shares of one batch make one update, the same as that of a single process but
for the order of sums. Asynchronously, every worker has a batch of its own, and its gradient is
applied when it arrives, to a State that has moved on since.
"""

from functools import partial
from typing import Any, NamedTuple, final

import jax
import numpy as np

from understudy.algorithms.base import Needs
from understudy.algorithms.off_policy import ReplayNeeds
from understudy.buffers import Buffer
from understudy.distributed.config import Cluster
from understudy.distributed.connect import connect
from understudy.distributed.worker_pool import Task, WorkerPool
from understudy.training.gradient_sharding import Shares, check_shares
from understudy.training.rollout_updates import minibatch, minibatch_rows
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import TrainingSetup
from understudy.training.update import LearnerState, Ready, ready
from understudy.types import ConfigError


class InFlight(NamedTuple):
    """A batch that a worker has for itself."""

    now: Ready
    mask: Any
    version: int  # updates applied when it was drawn


@final
class GradientWorkers:
    """Holds no learner and no experience: both come and go with every call."""

    def __init__(self, setup: TrainingSetup, cluster: Cluster, buffer: Buffer | None = None):
        """`setup` and `buffer` (default: the setup's own) have the lanes of all collectors."""
        check(setup, cluster)
        self._algorithm, self._count = setup.algorithm, cluster.gradient_workers
        self._shares, self._num_seeds = Shares(setup), setup.num_seeds
        self._asynchronous = cluster.gradient_mode == "async"
        # With G workers G - 1 others arrive between a gradient's start and its end.
        self._most_stale = cluster.max_staleness or 4 * self._count
        self.use_buffer(buffer or setup.buffer)
        ray = connect(cluster.address, cluster.remote * cluster.cpus_each)
        self._pool = WorkerPool(ray, setup, cluster)
        self._next_index: int | None = 0  # None within a call
        self._version = self._asked = self._dropped = self._replaced = 0
        self._flying: dict[int, InFlight] = {}
        self._staleness: list[int] = []

    def use_buffer(self, buffer: Buffer) -> None:
        """Compile what samples from this buffer."""
        self._buffer, shares, num_seeds = buffer, self._shares, self._num_seeds
        self._ready = jax.jit(over_seeds(partial(ready, self._algorithm, buffer), num_seeds))
        self._minibatch = jax.jit(over_seeds(minibatch, num_seeds, shared=(2,)))
        self._send = jax.jit(shares.send, static_argnums=2)

        def receive(
            answers: Any, learner: LearnerState, priorities: Any, experience: Any, now: Ready,
            mask: Any,
        ):  # fmt: skip
            if priorities is not None:
                experience = buffer.with_priorities(experience, priorities)
            return shares.receive(answers, learner, experience, now, mask, self._asynchronous)

        rows = partial(minibatch_rows, self._algorithm)
        self._order = jax.jit(over_seeds(rows, num_seeds))
        self._receive = jax.jit(receive, static_argnums=5, donate_argnums=2)

    def learn(
        self, learner: LearnerState, experience: Any, first_index: int, count: int
    ) -> tuple[LearnerState, Any]:
        """`count` updates, [seeds, ...] each. The priorities of what was given are given up."""
        if first_index != self._next_index:  # another moment, or the last call did not end
            self._pool.forget()
            self._flying.clear()
            self._asked = first_index
        self._next_index = None
        if self._asynchronous:
            answer = self._learn_on_arrival(learner, experience, count)
        else:
            answer = self._learn_together(learner, experience, first_index, count)
        self._next_index = first_index + count
        return answer

    def _learn_together(
        self, learner: LearnerState, experience: Any, first_index: int, count: int
    ) -> tuple[LearnerState, Any]:
        whole = order = None
        if self._algorithm.needs.on_policy and count > 1:
            whole = self._ready(learner.state, experience)
            order = self._order(learner.state, whole)
        for place, index in enumerate(range(first_index, first_index + count)):
            if whole is None or order is None:
                now = self._draw(learner, experience, index)
            else:
                now = self._minibatch(whole, order[:, place], np.int32(index))
            mask, numbers = self._ask(learner, now, index, self._count)
            answers = dict(self._pool.next() for _ in numbers)
            answers = [answers[number] for number in numbers]
            learner, experience = self._finish(answers, learner, experience, now, mask)
        return learner, experience

    def _learn_on_arrival(
        self, learner: LearnerState, experience: Any, count: int
    ) -> tuple[LearnerState, Any]:
        """What is still being computed in the end stays in flight for the next call."""
        applied = 0
        while applied < count:
            while len(self._flying) < self._count:
                now = self._draw(learner, experience, self._asked)
                mask, (number,) = self._ask(learner, now, self._asked, 1)
                self._flying[number] = InFlight(now, mask, self._version)
                self._asked += 1
                state = learner.state._replace(key=now.next_key)  # the next one draws others
                learner = learner._replace(state=state)
            number, answer = self._pool.next()
            now, mask, version = self._flying.pop(number)
            if self._version - version > self._most_stale:
                self._dropped += 1
                continue
            self._staleness.append(self._version - version)
            learner, experience = self._finish([answer], learner, experience, now, mask)
            self._version += 1
            applied += 1
        return learner, experience

    def _draw(self, learner: LearnerState, experience: Any, index: int) -> Ready:
        buffer: Any = self._buffer
        if buffer.fed:
            drawn, _ = buffer.draw(experience, index, 1)
            experience = jax.tree.map(lambda x: x[:, 0], drawn)
        return self._ready(learner.state, experience)

    def _ask(
        self, learner: LearnerState, now: Ready, index: int, shares: int
    ) -> tuple[Any, list[int]]:
        mask = self._algorithm.update_mask(index)
        sent, parts = jax.device_get(self._send(learner.state, now.batch, shares))
        key = np.asarray(now.key)
        return mask, [self._pool.ask(Task(sent, part, key, mask)) for part in parts]

    def _finish(
        self, answers: list[Any], learner: LearnerState, experience: Any, now: Ready, mask: Any
    ) -> tuple[LearnerState, Any]:
        # Priorities are given up to the program that changes them.
        priorities = self._buffer.get_priorities(experience)
        rest = None if priorities is None else experience._replace(priorities=None)
        learner, revised = self._receive(answers, learner, priorities, rest, now, mask)
        return learner, self._buffer.with_priorities(experience, revised)

    def facts(self) -> dict[str, float]:
        """About the workers, since the last call."""
        replaced, self._replaced = self._pool.replaced - self._replaced, self._pool.replaced
        facts: dict[str, float] = {
            "gradient_workers": self._pool.alive,
            "gradient_workers_replaced": replaced,
        }
        if self._asynchronous:
            facts["gradients_dropped"] = self._dropped
            if self._staleness:
                facts["gradient_staleness"] = sum(self._staleness) / len(self._staleness)
                facts["gradient_staleness_max"] = max(self._staleness)
            self._dropped, self._staleness = 0, []
        return {name: float(value) for name, value in facts.items()}

    def close(self) -> None:
        """The workers belong to this process, and would end with it too."""
        self._pool.close()


def check(setup: TrainingSetup, cluster: Cluster) -> None:
    """Refuse, before anything starts, what gradient workers cannot do."""
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
