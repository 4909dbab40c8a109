"""The supervisor without Ray: who is heard, who is replaced, and when it gives up."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.distributed import supervisor as supervising
from understudy.distributed.collectors import Delivery
from understudy.distributed.supervisor import Supervisor
from understudy.errors import ClusterError

PATIENCE = 10.0
ERRORS = ("RayActorError", "RayTaskError", "ObjectLostError", "ObjectStoreFullError",
          "RaySystemError", "GetTimeoutError")  # fmt: skip


class FakeRay:
    """References are numbers; what they stand for is decided by the test."""

    def __init__(self):
        self.exceptions = SimpleNamespace(**{name: type(name, (Exception,), {}) for name in ERRORS})
        self.results, self.killed, self.asked = {}, [], 0

    def wait(self, references, num_returns, timeout):
        return [one for one in references if one in self.results], None

    def get(self, reference, timeout=None):
        result = self.results[reference]
        if isinstance(result, Exception):
            raise result
        return result

    def kill(self, actor):
        self.killed.append(actor)

    def cluster_resources(self):
        return {"CPU": 2.0}

    def hire(self, place, attempt):
        actor = SimpleNamespace(place=place, attempt=attempt)
        actor.collect = SimpleNamespace(remote=self._take_an_order)
        return actor

    def _take_an_order(self, policy, order):
        self.asked += 1
        return self.asked


@pytest.fixture
def clock(monkeypatch):
    """Time stands still until a test moves it."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(supervising, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def a_crew(places=2):
    ray = FakeRay()
    return ray, Supervisor(ray, ray.hire, [0] * places, PATIENCE)


def ordered(pool, slot):
    pool.order(slot, None, 0, 1, False)
    return list(slot.orders)[-1]


def delivery(slot, number, attempt=None):
    order = supervising.Order(number, 0, 1, False)
    attempt = slot.attempt if attempt is None else attempt
    return Delivery(slot.place, attempt, order, np.zeros(1), [], {})


@pytest.mark.fault(42, "doubles, late deliveries and such out of turn are ignored and counted")
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=40))
def test_each_order_of_the_present_attempt_is_taken_once_and_in_turn(said):
    _, pool = a_crew(1)
    [slot] = pool.slots
    pool.replace(slot, "was lost")
    taken = [
        (attempt, number)
        for attempt, number in said
        if pool.expects(slot, delivery(slot, number, attempt))
    ]
    assert taken == [(1, number) for number in range(len(taken))]
    assert pool.ignored == len(said) - len(taken)
    following = iter(said)  # and nothing was ignored that was due
    due = 0
    for one in following:
        due += one == (1, due)
    assert due == len(taken)


@pytest.mark.fault(43, "a lost or refused object: the order is free again, the lane is cut")
@pytest.mark.parametrize("name", ["ObjectLostError", "ObjectStoreFullError", "RaySystemError"])
@pytest.mark.parametrize("of_the_task", [False, True])
def test_a_lost_delivery(name, of_the_task):
    ray, pool = a_crew()
    slot = pool.slots[0]
    first, second = ordered(pool, slot), ordered(pool, slot)
    error = getattr(ray.exceptions, name)("gone")
    if of_the_task:
        error, cause = ray.exceptions.RayTaskError(), error
        error.cause = cause
    ray.results = {first: error, second: delivery(slot, 1)}
    [taken] = pool.deliveries()
    assert taken.order.number == 1 and taken.torn
    assert (pool.lost, pool.replaced, pool.ordered()) == (1, 0, 0)
    third = ordered(pool, slot)
    ray.results = {third: delivery(slot, 2)}
    assert [one.torn for one in pool.deliveries()] == [False]


@pytest.mark.fault(39, "whoever takes the place begins anew; what was promised before is not heard")
def test_a_death_frees_its_orders_and_cuts_only_what_follows():
    ray, pool = a_crew()
    slot = pool.slots[0]
    first, second, third = (ordered(pool, slot) for _ in range(3))
    ray.results = {first: delivery(slot, 0), second: ray.exceptions.RayActorError(),
                   third: ray.exceptions.RayActorError()}  # fmt: skip
    [taken] = pool.deliveries()
    assert not taken.torn
    assert (pool.replaced, pool.ordered(), slot.attempt) == (1, 0, 1)
    assert [actor.attempt for actor in ray.killed] == [0]
    again = ordered(pool, slot)
    ray.results[again] = delivery(slot, 0)
    [taken] = pool.deliveries()
    assert (taken.attempt, taken.order.number, taken.torn) == (1, 0, True)


@pytest.mark.fault(40, "one place that kills everyone who takes it: given up")
def test_fruitless_replacements_end():
    _, pool = a_crew()
    slot = pool.slots[0]
    for _ in range(supervising.MOST_FRUITLESS - 1):
        pool.replace(slot, "died")
    ordered(pool, slot)
    with pytest.raises(ClusterError, match=r"collector 0 was replaced 5 times .* it died$"):
        pool.replace(slot, "died")
    assert pool.ordered() == 0 and pool.ask("state_dict") == [None, None]


def test_a_delivery_between_them_makes_them_fruitful():
    _, pool = a_crew()
    slot = pool.slots[0]
    for _ in range(3 * supervising.MOST_FRUITLESS):
        pool.replace(slot, "died")
        assert pool.expects(slot, delivery(slot, 0))


def _both_delivered(ray, pool):
    for slot in pool.slots:
        ray.results[ordered(pool, slot)] = delivery(slot, 0)
    assert len(pool.deliveries()) == pool.alive == 2


@pytest.mark.fault(42, "one who is silent for too long is replaced")
def test_silence_is_measured_while_something_is_ordered(clock):
    ray, pool = a_crew()
    _both_delivered(ray, pool)
    clock.now += 100 * PATIENCE  # idle, not silent
    ordered(pool, pool.slots[0])
    assert pool.deliveries() == [] and pool.replaced == 0
    clock.now += PATIENCE + 1
    pool.rested()  # the learner was busy
    assert pool.deliveries() == [] and pool.replaced == 0
    clock.now += PATIENCE + 1
    assert pool.deliveries() == [] and pool.replaced == 1
    assert [slot.attempt for slot in pool.slots] == [1, 0]


@pytest.mark.fault(40, "everyone is silent: given up")
def test_everyone_is_silent(clock):
    ray, pool = a_crew()
    _both_delivered(ray, pool)
    for slot in pool.slots:
        ordered(pool, slot)
    clock.now += PATIENCE + 1
    with pytest.raises(ClusterError, match=r"delivered anything for 11 s \(2 were asked for, 0"):
        pool.deliveries()
    assert pool.ordered() == 0


def test_who_has_not_begun_yet_is_given_time(clock):
    _, pool = a_crew()
    for slot in pool.slots:
        ordered(pool, slot)
    clock.now += supervising.SECONDS_TO_START - 1
    assert pool.deliveries() == [] and pool.replaced == 0
