"""The supervisor without Ray: which answers count, who is replaced, and when it gives up."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.distributed.cluster_cases import sac
from tests.distributed.shared_updates import make_setup
from understudy.distributed import episode_runner, gradient_workers, loop
from understudy.distributed import supervisor as supervising
from understudy.distributed.collectors import Collectors, Delivery
from understudy.distributed.config import Cluster
from understudy.distributed.gradient_workers import BatchWorkers, Request
from understudy.distributed.replay_shards import ShardWorkers
from understudy.errors import ClusterError, UnderstudyError
from understudy.training.episode_runner import EpisodeResults
from understudy.training.transport import Rows
from understudy.types import EnvironmentError

PATIENCE = 10.0
ERRORS = ("RayError", "RayActorError", "RayTaskError", "ObjectLostError", "ObjectStoreFullError",
          "RaySystemError", "OutOfDiskError", "WorkerCrashedError", "OutOfMemoryError")  # fmt: skip


class FakeRay:
    """References are numbers; the test decides what they stand for."""

    def __init__(self):
        self.exceptions = SimpleNamespace(**{name: type(name, (Exception,), {}) for name in ERRORS})
        self.results, self.killed, self.asked = {}, [], 0
        self.sent = []  # (slot, attempt, method) of every call

    def put(self, value):
        return value

    def remote(self, **options):
        return lambda actor_class: SimpleNamespace(remote=self._start)

    def wait(self, references, num_returns, timeout):
        return [one for one in references if one in self.results], None

    def get(self, reference):
        result = self.results[reference]
        if isinstance(result, Exception):
            raise result
        return result

    def kill(self, actor):
        self.killed.append(actor)

    def cluster_resources(self):
        return {"CPU": 2.0}

    def _start(self, recipe, index, attempt):
        return FakeActor(self, index, attempt)


class FakeActor:
    def __init__(self, ray, index, attempt):
        self.ray, self.index, self.attempt = ray, index, attempt

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *arguments: self._call(method))

    def _call(self, method):
        self.ray.sent.append((self.index, self.attempt, method))
        self.ray.asked += 1
        return self.ray.asked


@pytest.fixture
def clock(monkeypatch):
    """Time stands still until a test moves it."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(supervising, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def make_collectors(count=2):
    ray = FakeRay()
    cluster = Cluster(count, patience=PATIENCE)
    return ray, Collectors(ray, cluster, None, [0] * count)  # type: ignore


def ordered(collectors, slot):
    """The reference of a new order, and what answers it."""
    collectors.order(slot, None, 0, 1, False)
    reference, order = list(slot.calls.items())[-1]
    return reference, Delivery(slot.index, slot.attempt, order, np.zeros(1), [], {})


def replace(collectors, slot, reason="died"):
    collectors.supervisor.replace(slot, reason)


@pytest.mark.fault(42, "duplicate, late and out-of-order deliveries are ignored and counted")
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_each_order_of_the_present_attempt_is_taken_once_and_in_turn(said):
    """Ray says that the answer of one order has arrived, and gives that of another."""
    ray, collectors = make_collectors(1)
    [slot] = collectors.slots
    late = [ordered(collectors, slot) for _ in range(3)]
    replace(collectors, slot)
    present = [ordered(collectors, slot) for _ in range(3)]
    orders, taken = late + present, []
    for arrived, given_back in said:
        ray.results[orders[arrived][0]] = orders[given_back][1]
        taken += [delivery.order.number for delivery in collectors.deliveries()]
    assert taken == sorted(set(taken)) and set(taken) <= {3, 4, 5}
    answered = len(present) - len(slot.calls)
    assert collectors.ignored == answered - len(taken)


@pytest.mark.fault(43, "a lost or refused object: the order is given again, the lane is cut")
@pytest.mark.parametrize("name", ["ObjectLostError", "ObjectStoreFullError", "RaySystemError"])
@pytest.mark.parametrize("of_the_task", [False, True])
def test_a_lost_delivery(name, of_the_task):
    ray, collectors = make_collectors()
    slot = collectors.slots[0]
    (first, _), (second, delivery) = ordered(collectors, slot), ordered(collectors, slot)
    error = getattr(ray.exceptions, name)("gone")
    if of_the_task:
        error, cause = ray.exceptions.RayTaskError(), error
        error.cause = cause
    ray.results = {first: error, second: delivery}
    [taken] = collectors.deliveries()
    assert taken.order == delivery.order and taken.torn
    supervisor = collectors.supervisor
    assert (supervisor.lost, supervisor.replaced, collectors.ordered()) == (1, 0, 0)
    third, delivery = ordered(collectors, slot)
    ray.results = {third: delivery}
    assert [one.torn for one in collectors.deliveries()] == [False]


def test_a_later_delivery_waits_for_an_earlier_one():
    ray, collectors = make_collectors()
    slot = collectors.slots[0]
    (first, one), (second, two) = ordered(collectors, slot), ordered(collectors, slot)
    ray.results = {second: two}
    assert list(collectors.deliveries()) == []
    ray.results[first] = one
    assert [taken.order for taken in collectors.deliveries()] == [one.order, two.order]


@pytest.mark.fault(
    39, "the next process in a slot starts anew; calls of the last one are forgotten"
)
def test_a_death_frees_its_orders_and_cuts_only_what_follows():
    ray, collectors = make_collectors()
    slot = collectors.slots[0]
    (first, delivery), (second, _), (third, _) = (ordered(collectors, slot) for _ in range(3))
    ray.results = {first: delivery, second: ray.exceptions.RayActorError(),
                   third: ray.exceptions.RayActorError()}  # fmt: skip
    [taken] = collectors.deliveries()
    assert not taken.torn
    assert (collectors.supervisor.replaced, collectors.ordered(), slot.attempt) == (1, 0, 1)
    assert [actor.attempt for actor in ray.killed] == [0]
    reference, delivery = ordered(collectors, slot)
    ray.results[reference] = delivery
    [taken] = collectors.deliveries()
    assert (taken.attempt, taken.order, taken.torn) == (1, delivery.order, True)


@pytest.mark.fault(40, "one slot whose processes all die: given up")
def test_too_many_failures_in_a_row_end_the_run():
    _, collectors = make_collectors()
    slot = collectors.slots[0]
    for _ in range(supervising.MAX_FAILURES - 1):
        replace(collectors, slot)
    ordered(collectors, slot)
    with pytest.raises(ClusterError, match=r"collector 0 failed 5 times in a row, .* it died;"):
        replace(collectors, slot)
    assert collectors.ordered() == 0 and collectors.supervisor.call_all("state_dict") == [
        None,
        None,
    ]


def test_a_process_that_cannot_start_ends_the_run():
    ray, collectors = make_collectors()
    reference, _ = ordered(collectors, collectors.slots[0])
    error = ray.exceptions.RayActorError("a trace\nValueError: no such environment")
    error.actor_init_failed = True
    ray.results = {reference: error}
    with pytest.raises(ClusterError, match="a collector cannot start: ValueError: no such env"):
        list(collectors.deliveries())


def test_an_answer_between_them_ends_the_row_of_failures():
    ray, collectors = make_collectors()
    slot = collectors.slots[0]
    for _ in range(3 * supervising.MAX_FAILURES):
        replace(collectors, slot)
        reference, delivery = ordered(collectors, slot)
        ray.results[reference] = delivery
        assert len(list(collectors.deliveries())) == 1


def _both_delivered(ray, collectors):
    for slot in collectors.slots:
        reference, delivery = ordered(collectors, slot)
        ray.results[reference] = delivery
    assert len(list(collectors.deliveries())) == collectors.supervisor.started == 2


@pytest.mark.fault(42, "a process that does not answer in time is replaced")
def test_silence_is_measured_while_something_is_ordered(clock):
    ray, collectors = make_collectors()
    supervisor = collectors.supervisor
    _both_delivered(ray, collectors)
    clock.now += 100 * PATIENCE  # idle, not silent
    ordered(collectors, collectors.slots[0])
    assert list(collectors.deliveries()) == [] and supervisor.replaced == 0
    clock.now += PATIENCE + 1
    supervisor.reset_timeouts()  # the learner was busy
    assert list(collectors.deliveries()) == [] and supervisor.replaced == 0
    clock.now += PATIENCE + 1
    assert list(collectors.deliveries()) == [] and supervisor.replaced == 1
    assert [slot.attempt for slot in collectors.slots] == [1, 0]


@pytest.mark.fault(40, "no process answers: the run ends")
def test_everyone_is_silent(clock):
    ray, collectors = make_collectors()
    _both_delivered(ray, collectors)
    for slot in collectors.slots:
        ordered(collectors, slot)
    clock.now += PATIENCE + 1
    with pytest.raises(ClusterError, match=r"has answered for 11 s \(2 were asked for, 0 were"):
        list(collectors.deliveries())
    assert collectors.ordered() == 0


@pytest.mark.fault(42, "a single process that does not answer is replaced once, then the run ends")
def test_a_single_process_is_silent(clock):
    ray, collectors = make_collectors(1)
    [slot] = collectors.slots
    reference, delivery = ordered(collectors, slot)
    ray.results[reference] = delivery
    assert len(list(collectors.deliveries())) == 1
    ordered(collectors, slot)
    clock.now += PATIENCE + 1
    assert list(collectors.deliveries()) == [] and slot.attempt == 1
    ordered(collectors, slot)
    clock.now += supervising.SECONDS_TO_START + 1
    with pytest.raises(ClusterError, match=r"has answered for 121 s \(1 were asked for, 1 were"):
        list(collectors.deliveries())


@pytest.mark.parametrize("answered_before", [False, True])
def test_a_constructor_that_fails(answered_before):
    """The first processes cannot start: give up at once. A later one: count a failure."""
    ray, collectors = make_collectors()
    slot = collectors.slots[0]
    if answered_before:
        reference, delivery = ordered(collectors, slot)
        ray.results[reference] = delivery
        assert len(list(collectors.deliveries())) == 1
    reference, _ = ordered(collectors, slot)
    error = ray.exceptions.RayActorError("ValueError: no such file")
    error.actor_init_failed = True
    ray.results[reference] = error
    if answered_before:
        assert list(collectors.deliveries()) == [] and slot.attempt == 1 and slot.failures == 1
    else:
        with pytest.raises(ClusterError, match="cannot start: ValueError: no such file"):
            list(collectors.deliveries())


def test_a_process_that_has_not_started_yet_has_more_time(clock):
    _, collectors = make_collectors()
    for slot in collectors.slots:
        ordered(collectors, slot)
    clock.now += supervising.SECONDS_TO_START - 1
    assert list(collectors.deliveries()) == [] and collectors.supervisor.replaced == 0


def test_a_call_of_all_does_not_end_the_time_to_start(clock):
    ray, collectors = make_collectors()
    ray.results = {1: "one", 2: "two"}
    assert collectors.supervisor.call_all("state_dict") == ["one", "two"]
    for slot in collectors.slots:
        ordered(collectors, slot)
    clock.now += supervising.SECONDS_TO_START - 1
    assert list(collectors.deliveries()) == [] and collectors.supervisor.replaced == 0


def make_workers(monkeypatch, workers_class, **cluster):
    ray = FakeRay()
    monkeypatch.setattr(gradient_workers, "connect", lambda address, cpus: ray)
    cluster = Cluster(2, gradient_workers=2, patience=PATIENCE, **cluster)
    return ray, workers_class(make_setup("sac"), cluster)


ROWS = Rows(np.zeros(1), np.zeros(1, np.int32))


@pytest.mark.fault(42, "a pause between two updates is no silence of the workers that store replay")
def test_a_chunk_that_was_added_before_a_pause_is_no_silence(clock, monkeypatch):
    ray, workers = make_workers(monkeypatch, ShardWorkers, replay="sharded")
    ray.results = {1: {}, 2: {}, 3: None, 5: {}}
    workers.state_dict()
    workers.add(0, ROWS)
    clock.now += PATIENCE + 1
    waits = []

    def wait(references, num_returns, timeout):
        """Worker 1 answers first."""
        waits.append(references)
        if len(waits) > 2:
            ray.results |= {number: {} for number in (4, 6, 7)}
        return FakeRay.wait(ray, references, num_returns, timeout)

    monkeypatch.setattr(ray, "wait", wait)
    workers.state_dict()
    assert workers.supervisor.replaced == 0
    assert not any(slot.calls for slot in workers.supervisor.slots)


@pytest.mark.fault(39, "a new worker gets the last chunk before it is asked for gradients")
def test_a_new_worker_has_something_to_sample_from(monkeypatch):
    ray, workers = make_workers(monkeypatch, ShardWorkers, replay="sharded", gradient_mode="async")
    slot, request = workers.supervisor.slots[0], Request("gradients", ({}, None), 0)
    list(workers.answers([request]))
    workers.add(0, ROWS)
    workers.supervisor.replace(slot, "died")
    list(workers.answers([request]))
    assert ray.sent[2:] == [(0, 1, "add"), (0, 1, "gradients")]


@pytest.mark.fault(40, "gradient workers are given up: no half update is saved, and no second try")
def test_giving_up_in_mid_update(monkeypatch):
    ray, workers = make_workers(monkeypatch, BatchWorkers)
    monkeypatch.setattr(workers, "sample", lambda *inputs: list(workers.supervisor.answers()))
    error = ray.exceptions.RayActorError("ValueError: no such module")
    error.actor_init_failed = True
    ray.results = {1: error}
    for _ in range(2):
        with pytest.raises(UnderstudyError, match="cannot start: ValueError") as caught:
            workers.learn(None, None, 0, 1)
        assert not isinstance(caught.value, ClusterError)  # a run is saved after one
        monkeypatch.setattr(workers.supervisor, "answers", None)


def test_a_chunk_that_cannot_be_sent_in_mid_update(monkeypatch):
    _, workers = make_workers(monkeypatch, ShardWorkers, replay="sharded")

    def refuse(*arguments, **others):
        raise ClusterError("Ray's object store refused an object")

    monkeypatch.setattr(workers.supervisor, "call", refuse)
    with pytest.raises(UnderstudyError, match="refused") as caught:
        workers.add(0, ROWS)
    assert not isinstance(caught.value, ClusterError)


def test_portions_of_a_broken_generation_are_not_read(monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr(episode_runner, "connect", lambda address, cpus: ray)
    plan = SimpleNamespace(num_policies=1, seeds=SimpleNamespace(first_row=0))
    plan.share = lambda first_row, count: plan
    runner = episode_runner.RemoteEpisodeRunner(Cluster(1), plan, None, None)  # type: ignore

    def portion(value):
        return SimpleNamespace(chunk=None, results=value, faults={})

    results = EpisodeResults(*([np.zeros(1)] * len(EpisodeResults._fields)))
    broken = ray.exceptions.RayTaskError()
    broken.cause = EnvironmentError("it broke")
    ray.results = {1: None, 2: portion(None), 3: broken}
    with pytest.raises(EnvironmentError, match="it broke"):
        runner.run(np.zeros((1, 1)))
    ray.results |= {3: portion(None), 4: portion(results)}
    assert runner.run(np.zeros((1, 1)), 1) == results
    assert [method for _, _, method in ray.sent] == ["open", "begin", "go_on", "begin"]


@pytest.mark.fault(43, "a collector's stored state is lost on its way: its lane is cut")
def test_a_state_that_is_lost_on_its_way_cuts_the_lane(monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr(loop, "join", lambda cluster: ray)
    trainer = sac().trainer
    state, lost = {"key": np.zeros(1)}, ray.exceptions.ObjectLostError("gone")
    ray.results = {1: state, 2: state, 3: True, 4: lost}
    trainer.restore(trainer.snapshot())
    assert trainer.collectors.torn == {1}
