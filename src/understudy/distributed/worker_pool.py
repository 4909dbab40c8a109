"""Workers that come and go, and tasks that get done nevertheless.

A task goes to whoever has nothing to do. That of a worker which died or fell silent goes to
another, and somebody new takes the worker's place. An answer belongs to the reference it was
promised by: what a worker says after it was given up is never looked at.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import jax
import numpy as np

from understudy.distributed.config import Cluster
from understudy.distributed.connect import load_ray
from understudy.training.gradient_sharding import Shares
from understudy.training.setup import TrainingSetup
from understudy.types import ConfigError, UnderstudyError

GLANCE = 1.0  # seconds between two looks at who is silent
TRIES = 5  # of what Ray's object store refuses or loses
PAUSE = 0.1  # seconds before the second try; twice as long before each one after it

_log = logging.getLogger("understudy.distributed")


class Task(NamedTuple):
    """A share of an update."""

    sent: dict[str, np.ndarray]  # of the State; the same object for all shares of one update
    batch: Any  # [seeds, rows, ...]
    key: np.ndarray
    mask: Any


@final
class Remote:
    """What runs in a worker's process."""

    def __init__(self, recipe: list[Any]):
        ray = load_ray()
        # Before the first array: that of a loss add-on may be among what is fetched.
        if not ray.get_gpu_ids():
            jax.config.update("jax_platforms", "cpu")
        shares = Shares(ray.get(recipe[0]))
        self._answer = jax.jit(shares.answer, static_argnums=3)

    def pid(self) -> int:
        return os.getpid()

    def gradients(self, sent: dict[str, np.ndarray], batch: Any, key: np.ndarray, mask: Any):
        return jax.device_get(self._answer(sent, batch, key, mask))


@dataclass
class _Worker:
    actor: Any
    owes: Any  # Ray's reference; None if there is nothing
    since: float
    task: int | None = None
    pid: int | None = None  # None until it has started


@final
class WorkerPool:
    def __init__(self, ray: Any, setup: TrainingSetup, cluster: Cluster):
        self._ray, self._patience = ray, cluster.patience
        self._recipe = send_recipe(ray, setup)
        self._remote = ray.remote(num_cpus=cluster.cpus_each, max_restarts=0)(Remote)
        self._tasks: dict[int, Task] = {}
        self._tries: dict[int, int] = {}
        self._waiting: deque[int] = deque()
        self._number = 0
        self._told: tuple[Any, Any] = (None, None)  # what was sent last, and its reference
        self._reason = "none has started"
        self.replaced = 0
        self.workers = [self._hire() for _ in range(cluster.gradient_workers)]

    @property
    def alive(self) -> int:
        return sum(worker.pid is not None for worker in self.workers)

    def ask(self, task: Task) -> int:
        """Returns at once, with the task's number."""
        self._number += 1
        self._tasks[self._number] = task
        self._waiting.append(self._number)
        return self._number

    def next(self) -> tuple[int, dict[str, np.ndarray]]:
        """The number of a task and its answer, whichever comes first."""
        assert self._tasks, "nothing was asked"
        heard = time.monotonic()
        while True:
            self._hand_out()
            owed = {worker.owes: worker for worker in self.workers if worker.owes is not None}
            done, _ = self._ray.wait(list(owed), timeout=GLANCE)
            if done:
                number, answer = self._collect(owed[done[0]])
                if number is not None:
                    return number, answer
                if answer is not None:
                    heard = time.monotonic()
            else:
                self._replace_silent()
            # One patience for the silent, and one for whoever takes their place.
            if time.monotonic() - heard > 2 * self._patience:
                raise UnderstudyError(
                    f"no gradient worker has answered for {2 * self._patience:g} s "
                    f"({self._reason}); see that the cluster has cores for "
                    f"{len(self.workers)} of them, or raise the patience of the Cluster"
                )

    def forget(self) -> None:
        """Whatever was asked is not wanted any more; who works on it is let finish."""
        self._tasks.clear()
        self._tries.clear()
        self._waiting.clear()

    def close(self) -> None:
        for worker in self.workers:
            self._ray.kill(worker.actor)
        self.workers = []

    def _hire(self) -> _Worker:
        actor = insist(self._ray, lambda: self._remote.remote([self._recipe]))
        return _Worker(actor, actor.pid.remote(), time.monotonic())

    def _hand_out(self) -> None:
        for worker in self.workers:
            if not self._waiting:
                return
            if worker.owes is None:
                number = self._waiting.popleft()
                worker.task, worker.since = number, time.monotonic()
                worker.owes = insist(self._ray, lambda w=worker, n=number: self._start(w, n))

    def _start(self, worker: _Worker, number: int) -> Any:
        task = self._tasks[number]
        if self._told[0] is not task.sent:
            self._told = (task.sent, self._ray.put(task.sent))
        return worker.actor.gradients.remote(self._told[1], task.batch, task.key, task.mask)

    def _collect(self, worker: _Worker) -> tuple[int | None, Any]:
        """What a worker owed: a task's answer, or its process id when it has started. No answer if
        something went wrong, about which something was done."""
        reference, number = worker.owes, worker.task
        worker.owes = worker.task = None
        try:
            answer = self._ray.get(reference)
        except gone(self._ray) as problem:
            refuse_if_it_cannot_start(problem)
            self._replace(worker, number, "died")
        except lost(self._ray) as problem:
            self._again(number, problem)
        except self._ray.exceptions.RayTaskError as problem:
            raise problem.cause from problem
        else:
            if number is None:
                worker.pid = answer
            elif self._tasks.pop(number, None) is not None:  # else it was forgotten meanwhile
                self._tries.pop(number, None)
                return number, answer
            return None, answer
        return None, None

    def _replace_silent(self) -> None:
        """Only those with something to do: one that has not started may wait for its cores."""
        for worker in list(self.workers):
            if worker.task is not None and time.monotonic() - worker.since > self._patience:
                self._ray.kill(worker.actor)
                self._replace(worker, worker.task, f"was silent for {self._patience:g} s")

    def _replace(self, worker: _Worker, number: int | None, reason: str) -> None:
        self._reason = f"the last one {reason}"
        _log.warning("a gradient worker (process %s) %s and is replaced", worker.pid, reason)
        self.workers[self.workers.index(worker)] = self._hire()
        self.replaced += 1
        if number in self._tasks:
            self._waiting.appendleft(number)

    def _again(self, number: int | None, problem: Exception) -> None:
        if number not in self._tasks:
            return
        self._tries[number] = self._tries.get(number, 0) + 1
        if self._tries[number] == TRIES:
            raise cannot_carry(problem) from problem
        self._told = (None, None)  # it may be this that was lost
        self._waiting.appendleft(number)


def lost(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises if its object store has lost or refused something."""
    errors = ray.exceptions
    return errors.ObjectLostError, errors.ObjectStoreFullError, errors.OutOfDiskError


def gone(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises if a worker is no more."""
    errors = ray.exceptions
    return errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError


def refuse_if_it_cannot_start(problem: Exception) -> None:
    """Another in its place could not either."""
    if getattr(problem, "actor_init_failed", False):
        said = [line for line in str(problem).splitlines() if "Error: " in line]
        reason = said[-1].strip() if said else str(problem)
        raise UnderstudyError(f"a gradient worker cannot start: {reason}") from problem


def send_recipe(ray: Any, recipe: Any) -> Any:
    """What workers are made from, where they can read it."""
    try:
        return ray.put(recipe)
    except TypeError as error:
        raise ConfigError(
            "this agent cannot be sent to gradient workers: its networks or loss add-ons "
            f"hold what cannot be copied ({str(error).strip().splitlines()[0]})"
        ) from error


def insist(ray: Any, call: Callable[[], Any]) -> Any:
    """Try again while the object store is full."""
    errors = ray.exceptions
    for attempt in range(TRIES):
        try:
            return call()
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as problem:
            if attempt == TRIES - 1:
                raise cannot_carry(problem) from problem
            time.sleep(PAUSE * 2**attempt)


def cannot_carry(problem: Exception) -> UnderstudyError:
    return UnderstudyError(
        f"Ray's object store lost or refused a share of an update {TRIES} times "
        f"({type(problem).__name__}): give it more memory (ray start --object-store-memory)"
    )
