"""The supervisor of remote processes on Ray: it starts, calls and replaces one in every slot.

Collectors, gradient workers, replay shards and population runners are all processes of a
`Supervisor`. A process that dies, or exceeds its time limit, is killed, and the next attempt takes
its slot. An answer belongs to the reference of its call, and replacing a process forgets its calls.
So a late answer is never read, and nothing counts twice.

The supervisor gives up with a `ClusterError` if one slot fails too often in a row, if all slots are
silent at the same time (a single one: twice in a row), or if the first processes cannot start.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from understudy.distributed.config import Cluster
from understudy.distributed.connect import cores, first_line, load_ray, send_recipe
from understudy.errors import ClusterError

MAX_FAILURES = 5  # of one slot, in a row
SECONDS_TO_WAIT = 0.5  # for an answer, before looking at the clock and at signals
SECONDS_TO_START = 120.0  # a process, Ray's and ours, on a busy machine, and what it compiles
STORE_TRIES = 5  # of an object that Ray's object store refuses
STORE_PAUSE = 0.1  # seconds before the second try; twice as long before each one after it

_log = logging.getLogger("understudy.distributed")


@final
@dataclass(eq=False)
class Slot:
    """A place for a remote process, and the process that holds it now."""

    index: int
    attempt: int  # which of the processes that held the slot one after the other
    actor: Any = None
    calls: dict[Any, Any] = field(default_factory=dict)  # Ray's reference -> the caller's note
    failures: int = 0  # since the last answer, of all attempts
    last_failure: str = ""
    started: bool = False  # the present process has answered a call
    since: float = 0.0  # time of its last answer, or of the call that ended its idle time

    @property
    def silent_for(self) -> float:
        """Seconds without an answer; 0 while it has nothing to do."""
        return time.monotonic() - self.since if self.calls else 0.0


class Answer(NamedTuple):
    """The end of one call."""

    slot: Slot
    note: Any  # of the call
    value: Any  # None if it is lost
    lost: bool = False  # in Ray's object store; the process is alive


@final
class Supervisor:
    """Watches one process of `actor_class(recipe, index, attempt)` in each slot."""

    def __init__(
        self,
        ray: Any,
        cluster: Cluster,
        role: str,
        actor_class: type,
        recipe: Any,
        attempts: list[int],
        on_replace: Callable[[Slot, list[Any]], None],
    ):
        """`role` is the word for such a process in messages. `on_replace(slot, notes)` is called
        when a new process holds the slot, with the notes of the calls that were not answered."""
        self.ray, self._patience, self._role = ray, cluster.patience, role
        self._actor_class = ray.remote(num_cpus=cluster.cpus_each, max_restarts=0)(actor_class)
        self._recipe, self._on_replace = send_recipe(ray, role, recipe), on_replace
        self.replaced = self.lost = 0
        self._ever_started = False  # any process
        self.given_up: ClusterError | None = None
        self.slots = [Slot(index, attempt) for index, attempt in enumerate(attempts)]
        for slot in self.slots:
            self._start(slot)

    @property
    def started(self) -> int:
        """Processes that have answered a call."""
        return sum(slot.started for slot in self.slots)

    def call(self, slot: Slot, method: str, *arguments: Any, note: Any = None) -> Any:
        """Call a method of the process in a slot, and return Ray's reference at once."""
        if not slot.calls:
            slot.since = time.monotonic()
        reference = retry_while_full(self.ray, getattr(slot.actor, method).remote, *arguments)
        slot.calls[reference] = note
        return reference

    def call_all(self, method: str, arguments: list[tuple[Any, ...]] | None = None) -> list[Any]:
        """Call a method of all processes, and return the answers: None of a process that had to be
        replaced, and None of all after giving up. Such calls are short: a process that answers one
        may still need its time to start."""
        answers: list[Any] = [None] * len(self.slots)
        if self.given_up:
            return answers
        each = arguments or [()] * len(self.slots)
        started = {slot: slot.started for slot in self.slots}
        open_calls = {self.call(slot, method, *each[slot.index]) for slot in self.slots}
        while open_calls := open_calls & {call for slot in self.slots for call in slot.calls}:
            for answer in self.answers(open_calls):
                answers[answer.slot.index] = answer.value
                answer.slot.started = started[answer.slot]
        return answers

    def answers(self, references: Collection[Any] | None = None) -> Iterator[Answer]:
        """Replace silent processes, then yield what has arrived, in the order of the calls of each
        slot. Wait a moment for the first answer. `references` are the calls to look at (default:
        all of them)."""
        waiting = {
            slot: [call for call in slot.calls if references is None or call in references]
            for slot in self.slots
        }
        every = [call for calls in waiting.values() for call in calls]
        if not every:
            return
        ready, _ = self.ray.wait(every, num_returns=1, timeout=SECONDS_TO_WAIT)
        if ready:
            ready, _ = self.ray.wait(every, num_returns=len(every), timeout=0)
        arrived = set(ready)
        late = [slot for slot, calls in waiting.items() if calls and calls[0] not in arrived]
        self._replace_silent(late)
        for slot, calls in waiting.items():
            for call in calls:
                if call not in arrived or call not in slot.calls:  # its process was replaced
                    break
                yield from self._take(slot, call)

    def _take(self, slot: Slot, reference: Any) -> list[Answer]:
        errors = self.ray.exceptions
        lost = (errors.ObjectLostError, errors.ObjectStoreFullError, errors.OutOfDiskError,
                errors.RaySystemError)  # fmt: skip
        died = (errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError)
        try:
            value = self.ray.get(reference)
        except errors.RayTaskError as error:
            if not isinstance(error.cause, lost):
                raise error.cause from error
            return self._lose(slot, reference, error.cause)
        except lost as error:
            return self._lose(slot, reference, error)
        except died as error:
            self._refuse_if_it_cannot_start(error)
            self.replace(slot, f"died ({type(error).__name__})")
            return []
        slot.failures, slot.started, slot.since = 0, True, time.monotonic()
        self._ever_started = True
        return [Answer(slot, slot.calls.pop(reference), value)]

    def _lose(self, slot: Slot, reference: Any, error: Exception) -> list[Answer]:
        """The process is alive, but its answer, or what it was sent, cannot be read."""
        note, slot.since = slot.calls.pop(reference), time.monotonic()
        self.lost += 1
        reason = f"{type(error).__name__}: {first_line(error)}"
        _log.warning("an answer of %s %d was lost: %s", self._role, slot.index, reason)
        self._count_failure(slot, f"had its answer lost ({reason})")
        return [Answer(slot, note, None, lost=True)]

    def replace(self, slot: Slot, reason: str) -> None:
        """Kill the process in a slot, and start another one."""
        self._count_failure(slot, reason)
        _log.warning("%s %d %s: it is replaced", self._role, slot.index, reason)
        self.ray.kill(slot.actor)
        self.replaced += 1
        notes = list(slot.calls.values())
        slot.attempt += 1
        self._start(slot)
        self._on_replace(slot, notes)

    def _start(self, slot: Slot) -> None:
        made_from = (self._recipe, slot.index, slot.attempt)
        slot.actor = retry_while_full(self.ray, self._actor_class.remote, *made_from)
        slot.calls, slot.started, slot.since = {}, False, time.monotonic()

    def _replace_silent(self, late: list[Slot]) -> None:
        limits = {True: self._patience, False: max(self._patience, SECONDS_TO_START)}
        silent = [slot for slot in late if slot.silent_for > limits[slot.started]]
        repeated = len(silent) > 1 or any(slot.failures for slot in silent)
        if len(silent) == len(self.slots) and repeated:
            seconds, have = min(slot.silent_for for slot in silent), cores(self.ray)
            self._give_up(
                f"no {self._role} has answered for {seconds:.0f} s ({len(silent)} were asked for, "
                f"{self.replaced} were replaced; the cluster has {have:g} cores): see that it has "
                f"cores for {len(silent)} of them, or raise the patience of the Cluster"
            )
        for slot in silent:
            self.replace(slot, f"was silent for {slot.silent_for:.0f} s")

    def _count_failure(self, slot: Slot, reason: str) -> None:
        slot.failures, slot.last_failure = slot.failures + 1, reason
        if slot.failures >= MAX_FAILURES:
            self._give_up(
                f"{self._role} {slot.index} failed {slot.failures} times in a row, the last time "
                f"because it {reason}; see that the cluster has cores and memory for "
                f"{len(self.slots)} of them"
            )

    def _refuse_if_it_cannot_start(self, error: Exception) -> None:
        """Give up if the constructor raised an error and none ever succeeded: the next one would
        fail, too."""
        if getattr(error, "actor_init_failed", False) and not self._ever_started:
            named = [line for line in str(error).splitlines() if "Error: " in line]
            self._give_up(f"a {self._role} cannot start: {(named or [str(error)])[-1].strip()}")

    def _give_up(self, reason: str) -> None:
        self.given_up = ClusterError(reason)
        for slot in self.slots:
            slot.calls = {}
        raise self.given_up

    def reset_timeouts(self) -> None:
        """Do not count time spent inside the learner towards a process's timeout."""
        for slot in self.slots:
            slot.since = time.monotonic()

    def close(self) -> None:
        """Kill all processes. They belong to this process, and would end with it, too."""
        for slot in self.slots:
            with contextlib.suppress(Exception):  # the process may be gone, or Ray itself
                self.ray.kill(slot.actor)
        self.slots = []


def read_recipe(recipe: list[Any]) -> Any:
    """Fetch the recipe in a remote process. The device is chosen first, because arrays may be among
    what is fetched."""
    import jax

    ray = load_ray()
    if not ray.get_gpu_ids():
        jax.config.update("jax_platforms", "cpu")
    return ray.get(recipe[0])


def retry_while_full(ray: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `call` returns, and try again while Ray's object store is full."""
    errors = ray.exceptions
    for attempt in range(STORE_TRIES):
        try:
            return call(*arguments)
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            if attempt == STORE_TRIES - 1:
                raise ClusterError(
                    f"Ray's object store refused an object {STORE_TRIES} times "
                    f"({type(error).__name__}): give it more memory "
                    "(ray start --object-store-memory)"
                ) from error
            time.sleep(STORE_PAUSE * 2**attempt)
