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

    def hire(self, place, life):
        actor = SimpleNamespace(place=place, life=life)
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


def ordered(crew, post):
    crew.order(post, None, 0, 1, False)
    return list(post.orders)[-1]


def delivery(post, number, life=None):
    order = supervising.Order(number, 0, 1, False)
    life = post.life if life is None else life
    return Delivery(post.place, life, order, np.zeros(1), [], {})


@pytest.mark.fault(42, "doubles, late deliveries and such out of turn are ignored and counted")
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=40))
def test_each_order_of_the_present_life_is_taken_once_and_in_turn(said):
    _, crew = a_crew(1)
    [post] = crew.posts
    crew.replace(post, "was lost")
    taken = [
        (life, number) for life, number in said if crew.expects(post, delivery(post, number, life))
    ]
    assert taken == [(1, number) for number in range(len(taken))]
    assert crew.ignored == len(said) - len(taken)
    following = iter(said)  # and nothing was ignored that was due
    due = 0
    for one in following:
        due += one == (1, due)
    assert due == len(taken)


@pytest.mark.fault(43, "a lost or refused object: the order is free again, the lane is cut")
@pytest.mark.parametrize("name", ["ObjectLostError", "ObjectStoreFullError", "RaySystemError"])
@pytest.mark.parametrize("of_the_task", [False, True])
def test_a_lost_delivery(name, of_the_task):
    ray, crew = a_crew()
    post = crew.posts[0]
    first, second = ordered(crew, post), ordered(crew, post)
    error = getattr(ray.exceptions, name)("gone")
    if of_the_task:
        error, cause = ray.exceptions.RayTaskError(), error
        error.cause = cause
    ray.results = {first: error, second: delivery(post, 1)}
    [taken] = crew.deliveries()
    assert taken.order.number == 1 and taken.torn
    assert (crew.lost, crew.replaced, crew.ordered()) == (1, 0, 0)
    third = ordered(crew, post)
    ray.results = {third: delivery(post, 2)}
    assert [one.torn for one in crew.deliveries()] == [False]


@pytest.mark.fault(39, "whoever takes the place begins anew; what was promised before is not heard")
def test_a_death_frees_its_orders_and_cuts_only_what_follows():
    ray, crew = a_crew()
    post = crew.posts[0]
    first, second, third = (ordered(crew, post) for _ in range(3))
    ray.results = {first: delivery(post, 0), second: ray.exceptions.RayActorError(),
                   third: ray.exceptions.RayActorError()}  # fmt: skip
    [taken] = crew.deliveries()
    assert not taken.torn
    assert (crew.replaced, crew.ordered(), post.life) == (1, 0, 1)
    assert [actor.life for actor in ray.killed] == [0]
    again = ordered(crew, post)
    ray.results[again] = delivery(post, 0)
    [taken] = crew.deliveries()
    assert (taken.life, taken.order.number, taken.torn) == (1, 0, True)


@pytest.mark.fault(40, "one place that kills everyone who takes it: given up")
def test_fruitless_replacements_end():
    _, crew = a_crew()
    post = crew.posts[0]
    for _ in range(supervising.MOST_FRUITLESS - 1):
        crew.replace(post, "died")
    ordered(crew, post)
    with pytest.raises(ClusterError, match=r"collector 0 was replaced 5 times .* it died$"):
        crew.replace(post, "died")
    assert crew.ordered() == 0 and crew.ask("named") == [None, None]


def test_a_delivery_between_them_makes_them_fruitful():
    _, crew = a_crew()
    post = crew.posts[0]
    for _ in range(3 * supervising.MOST_FRUITLESS):
        crew.replace(post, "died")
        assert crew.expects(post, delivery(post, 0))


def _both_delivered(ray, crew):
    for post in crew.posts:
        ray.results[ordered(crew, post)] = delivery(post, 0)
    assert len(crew.deliveries()) == crew.alive == 2


@pytest.mark.fault(42, "one who is silent for too long is replaced")
def test_silence_is_measured_while_something_is_ordered(clock):
    ray, crew = a_crew()
    _both_delivered(ray, crew)
    clock.now += 100 * PATIENCE  # idle, not silent
    ordered(crew, crew.posts[0])
    assert crew.deliveries() == [] and crew.replaced == 0
    clock.now += PATIENCE + 1
    crew.rested()  # the learner was busy
    assert crew.deliveries() == [] and crew.replaced == 0
    clock.now += PATIENCE + 1
    assert crew.deliveries() == [] and crew.replaced == 1
    assert [post.life for post in crew.posts] == [1, 0]


@pytest.mark.fault(40, "everyone is silent: given up")
def test_everyone_is_silent(clock):
    ray, crew = a_crew()
    _both_delivered(ray, crew)
    for post in crew.posts:
        ordered(crew, post)
    clock.now += PATIENCE + 1
    with pytest.raises(ClusterError, match=r"delivered anything for 11 s \(2 were asked for, 0"):
        crew.deliveries()
    assert crew.ordered() == 0


def test_who_has_not_begun_yet_is_given_time(clock):
    _, crew = a_crew()
    for post in crew.posts:
        ordered(crew, post)
    clock.now += supervising.SECONDS_TO_START - 1
    assert crew.deliveries() == [] and crew.replaced == 0
