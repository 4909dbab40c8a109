"""The supervisor of the collectors: gives orders, takes in deliveries, replaces who is lost.

Every delivery names its place, the attempt of the collector there and the number of the order. Only
the one that is expected next is taken; all else is late, or a double, and is left aside. So
nothing is counted twice, whatever the network does.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, final

from understudy.distributed.collectors import Delivery, Order
from understudy.errors import ClusterError

MOST_FRUITLESS = 5  # collectors of one place that may die one after the other without a delivery
SECONDS_TO_WAIT = 0.5  # for a delivery, before looking at the clock and at signals
SECONDS_TO_START = 120.0  # a process, Ray's and ours, on a busy machine, and what it compiles

_log = logging.getLogger("understudy.distributed")


@final
class Slot:
    """A place among the collectors, and who holds it now."""

    def __init__(self, place: int, attempt: int, actor: Any):
        self.place = place
        self.fruitless = 0  # of its latest holders
        self.torn = False  # the next delivery does not go on where the last one taken ended
        self.hold(attempt, actor)

    def hold(self, attempt: int, actor: Any) -> None:
        self.attempt, self.actor = attempt, actor
        self.orders: dict[Any, Order] = {}  # by the reference to their delivery
        self.ordered = self.expected = 0  # numbers of orders
        self.heard, self.delivered = time.monotonic(), False

    @property
    def silent_for(self) -> float:
        return time.monotonic() - self.heard if self.orders else 0.0


@final
class Supervisor:
    """Of collectors on Ray. `hire(place, attempt)` starts one."""

    def __init__(
        self, ray: Any, hire: Callable[[int, int], Any], attempts: list[int], patience: float
    ):
        self._ray, self._hire, self._patience = ray, hire, patience
        self.slots = [
            Slot(place, attempt, hire(place, attempt)) for place, attempt in enumerate(attempts)
        ]
        self.replaced = self.ignored = self.lost = 0
        self._given_up = False

    @property
    def alive(self) -> int:
        """Those who have delivered since they began."""
        return sum(slot.delivered for slot in self.slots)

    def order(self, slot: Slot, policy: Any, version: int, iterations: int, random: bool) -> None:
        """Have a collector take steps by a policy (a reference to one)."""
        order = Order(slot.ordered, version, iterations, random)
        slot.ordered += 1
        if not slot.orders:  # it was idle, not silent
            slot.heard = time.monotonic()
        slot.orders[slot.actor.collect.remote(policy, order)] = order

    def ordered(self) -> int:
        """Iterations that are on their way."""
        if self._given_up:
            return 0
        return sum(order.iterations for slot in self.slots for order in slot.orders.values())

    def deliveries(self) -> list[Delivery]:
        """What has come, place by place; waits a moment for the first. Whose work was lost holds
        no orders afterwards."""
        waiting = {ref: slot for slot in self.slots for ref in slot.orders}
        if not waiting:
            return []
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=SECONDS_TO_WAIT)
        if ready:
            ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        arrived = []
        # In the order in which they were asked for: a later one cannot be expected first.
        for ref, slot in waiting.items():
            if ref in ready and ref in slot.orders:  # not so if it was replaced a moment ago
                arrived += self._take(slot, ref)
        self._look_after()
        return arrived

    def _take(self, slot: Slot, ref: Any) -> list[Delivery]:
        """The delivery, if it is the one expected."""
        errors = self._ray.exceptions
        lost = (errors.ObjectLostError, errors.ObjectStoreFullError, errors.RaySystemError)
        try:
            delivery = self._ray.get(ref)
        except errors.RayActorError as error:
            self.replace(slot, f"was lost ({type(error).__name__})")
            return []
        except errors.RayTaskError as error:
            if isinstance(error.cause, lost):  # it could not put its steps where we could see them
                return self._lose(slot, ref, error.cause)
            raise error.cause from error
        except lost as error:
            return self._lose(slot, ref, error)
        slot.orders.pop(ref)
        if not self.expects(slot, delivery):
            return []
        torn, slot.torn = slot.torn, False
        return [delivery._replace(torn=torn)]

    def _lose(self, slot: Slot, ref: Any, why: Exception) -> list[Delivery]:
        """The steps were taken, but nobody will ever see them: others are taken instead."""
        slot.orders.pop(ref)
        slot.expected, slot.torn, slot.heard = slot.expected + 1, True, time.monotonic()
        self.lost += 1
        _log.warning("a delivery of collector %d was lost: %s", slot.place, why)
        return []

    def expects(self, slot: Slot, delivery: Delivery) -> bool:
        """Whether this is the next delivery of the attempt in the slot. If so, it is taken."""
        if (delivery.attempt, delivery.order.number) != (slot.attempt, slot.expected):
            self.ignored += 1
            return False
        slot.expected += 1
        slot.fruitless, slot.delivered, slot.heard = 0, True, time.monotonic()
        return True

    def replace(self, slot: Slot, why: str) -> None:
        """Another collector takes the place. It is sent the present policy with its first order."""
        slot.fruitless += 1
        if slot.fruitless >= MOST_FRUITLESS:
            self._given_up = True
            raise ClusterError(
                f"collector {slot.place} was replaced {slot.fruitless} times without delivering a "
                f"single step, the last time because it {why}"
            )
        _log.warning("collector %d %s: it is replaced", slot.place, why)
        self._ray.kill(slot.actor)
        self.replaced += 1
        slot.hold(slot.attempt + 1, self._hire(slot.place, slot.attempt + 1))
        slot.torn = True

    def _look_after(self) -> None:
        """Replace who is silent for too long; give up when everyone is."""
        silent = [slot for slot in self.slots if slot.silent_for > self._allowed(slot)]
        if silent and len(silent) == len(self.slots):
            self._given_up = True
            cores = self._ray.cluster_resources().get("CPU", 0)
            raise ClusterError(
                f"no collector has delivered anything for {min(p.silent_for for p in silent):.0f} "
                f"s ({len(self.slots)} were asked for, {self.replaced} were replaced; the cluster "
                f"has {cores:g} cores)"
            )
        for slot in silent:
            self.replace(slot, f"was silent for {slot.silent_for:.0f} s")

    def _allowed(self, slot: Slot) -> float:
        """Seconds of silence."""
        return self._patience if slot.delivered else max(self._patience, SECONDS_TO_START)

    def load_state_dict(self, kept: list[Any]) -> None:
        """Let everyone go on from what they had said of themselves; from nothing, anew."""
        told = [
            slot.actor.load_state_dict.remote(one)
            for slot, one in zip(self.slots, kept, strict=True)
            if one
        ]
        self._ray.get(told)

    def ask(self, method: str) -> list[Any]:
        """Everyone's answer to the same question, None from those who are lost."""
        errors, answers = self._ray.exceptions, []
        if self._given_up:
            return [None] * len(self.slots)
        asked = [getattr(slot.actor, method).remote() for slot in self.slots]
        for slot, ref in zip(self.slots, asked, strict=True):
            try:
                answers.append(self._ray.get(ref, timeout=self._allowed(slot)))
            except (errors.RayActorError, errors.GetTimeoutError) as error:
                self.replace(slot, f"did not answer ({type(error).__name__})")
                answers.append(None)
        return answers

    def rested(self) -> None:
        """Time that the learner has spent otherwise is nobody's silence."""
        for slot in self.slots:
            slot.heard = time.monotonic()

    def close(self) -> None:
        for slot in self.slots:
            self._ray.kill(slot.actor)
