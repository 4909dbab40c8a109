"""A collector in the learner's own process, with the face of many: for runs of which only the
gradients are computed elsewhere."""

from collections import deque
from typing import Any, final

from understudy.distributed.collectors import Delivery, Order, Recipe, make_collector
from understudy.distributed.supervisor import Slot


@final
class LocalCollectors:
    """Carries out an order when it is asked for deliveries."""

    replaced = ignored = lost = 0
    alive = 1

    def __init__(self, recipe: Recipe, attempt: int):
        self._collector = make_collector(recipe, 0, attempt)
        self.slots = [Slot(0, attempt, None)]
        self._to_do: deque[tuple[Any, Order]] = deque()

    def order(self, slot: Slot, policy: Any, version: int, iterations: int, random: bool) -> None:
        order = Order(slot.ordered, version, iterations, random)
        slot.ordered += 1
        slot.orders[order.number] = order
        self._to_do.append((policy, order))

    def ordered(self) -> int:
        return sum(order.iterations for _, order in self._to_do)

    def deliveries(self) -> list[Delivery]:
        policy, order = self._to_do.popleft()
        rows = self._collector.collect(policy, order.random, order.iterations)
        slot = self.slots[0]
        del slot.orders[order.number]
        faults, episodes = dict(self._collector.faults), self._collector.episodes()
        return [Delivery(0, slot.attempt, order, rows, episodes, faults)]

    def ask(self, method: str) -> list[Any]:
        assert method == "state_dict", method
        return [self._collector.state_dict()]

    def load_state_dict(self, kept: list[Any]) -> None:
        if kept[0]:
            self._collector.load_state_dict(kept[0])

    def rested(self) -> None:
        """There is no clock to be kept."""

    def close(self) -> None:
        self._collector.close()
