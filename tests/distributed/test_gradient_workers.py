"""Gradient workers on a real Ray: as one process, whatever becomes of them."""

import math
import os
import signal
import sys
import types
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.distributed.cluster_cases import kill, wait_for_death
from tests.distributed.shared_updates import (
    close,
    in_one_process,
    make_experience,
    make_learner,
    make_setup,
)
from understudy.algorithms.sac import SAC
from understudy.distributed import supervisor
from understudy.distributed.config import Cluster
from understudy.distributed.gradient_workers import BatchWorkers, check_gradient_workers
from understudy.types import ConfigError, UnderstudyError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray")]

KINDS = {"sac": {}, "ddqn": dict(prioritized=True, target_update_interval=5)}
UPDATES = 100
TWO = dict(gradient_workers=2, cpus_each=0.5, patience=300.0)


@cache
def case(name):
    setup = make_setup(name, members=1, **KINDS[name])
    learner, experience = make_learner(setup), make_experience(setup)
    return setup, learner, experience, in_one_process(setup, learner, experience, 0, UPDATES)


def given(name):
    """Learner and experience to be given away: programs take them over."""
    return jax.tree.map(jnp.copy, case(name)[1:3])


@pytest.fixture(scope="module")
def of_ddqn(ray):
    workers = BatchWorkers(case("ddqn")[0], Cluster(**TWO))
    while workers.metrics()["gradient_workers"] < 2:  # until both have started
        workers.learn(*given("ddqn"), 0, 1)
    yield workers
    workers.close()


def assert_as_one_process(name, learner, experience):
    want, priorities = case(name)[3]
    close(learner.state, want.state)
    close(experience.priorities, priorities)
    assert np.array_equal(learner.meter.count, want.meter.count)


def test_a_hundred_updates_are_those_of_one_process(ray):
    workers = BatchWorkers(case("sac")[0], Cluster(**TWO))
    learner, experience = workers.learn(*given("sac"), 0, 60)
    learner, experience = workers.learn(learner, experience, 60, UPDATES - 60)
    assert_as_one_process("sac", learner, experience)
    assert workers.metrics() == {"gradient_workers": 2.0, "gradient_workers_replaced": 0.0}
    actors = [slot.actor for slot in workers.supervisor.slots]
    workers.close()
    for actor in actors:
        wait_for_death(ray, actor)


@pytest.mark.slow
def test_priorities_are_those_of_one_process(of_ddqn):
    learner, experience = of_ddqn.learn(*given("ddqn"), 0, UPDATES)
    assert_as_one_process("ddqn", learner, experience)


@pytest.mark.fault(39, "a killed gradient worker is replaced, and its shard is computed again")
def test_a_killed_worker_is_replaced_and_nothing_is_lost(of_ddqn, monkeypatch):
    of_ddqn.metrics()
    supervisor = of_ddqn.supervisor
    call, [victim, _], calls = supervisor.call, supervisor.call_all("pid"), []

    def call_and_kill(slot, method, *arguments, note=None):
        reference = call(slot, method, *arguments, note=note)
        calls.append(slot.index)
        if calls.count(0) == UPDATES // 2 and slot.index == 0:
            os.kill(victim, signal.SIGKILL)
        return reference

    monkeypatch.setattr(supervisor, "call", call_and_kill)
    learner, experience = of_ddqn.learn(*given("ddqn"), 0, UPDATES)
    assert_as_one_process("ddqn", learner, experience)
    assert of_ddqn.metrics()["gradient_workers_replaced"] == 1
    while of_ddqn.metrics()["gradient_workers"] < 2:  # the other one did its share meanwhile
        learner, experience = of_ddqn.learn(learner, experience, UPDATES, 1)
    monkeypatch.undo()
    assert victim not in supervisor.call_all("pid")


@pytest.mark.slow
@pytest.mark.fault(
    42, "a gradient worker that does not answer is replaced; its late answers are ignored"
)
def test_the_late_answers_of_a_silent_worker_are_ignored(of_ddqn, monkeypatch):
    learner, experience = of_ddqn.learn(*given("ddqn"), 0, 10)
    supervisor = of_ddqn.supervisor
    call, slot, [sleeper, _] = supervisor.call, supervisor.slots[0], supervisor.call_all("pid")
    actor = slot.actor

    def call_long_ago(slot, method, *arguments, note=None):
        """As if patience with the sleeper had passed, and with no other worker."""
        reference = call(slot, method, *arguments, note=note)
        if slot.actor is actor:
            slot.since = -math.inf
        return reference

    monkeypatch.setattr(supervisor, "call", call_long_ago)
    monkeypatch.setattr(supervisor.ray, "kill", lambda actor: None)  # it cannot be reached
    os.kill(sleeper, signal.SIGSTOP)
    try:
        learner, experience = of_ddqn.learn(learner, experience, 10, 20)
    finally:
        os.kill(sleeper, signal.SIGCONT)
    learner, experience = of_ddqn.learn(learner, experience, 30, UPDATES - 30)
    assert_as_one_process("ddqn", learner, experience)
    assert of_ddqn.metrics()["gradient_workers_replaced"] == 1
    kill(sleeper)


@pytest.mark.slow
@pytest.mark.fault(43, "a full object store is tried again; a lost object is sent again")
def test_a_full_store_and_a_lost_object_are_survived(of_ddqn, ray, monkeypatch):
    put, get, puts, gets = ray.put, ray.get, [], []

    def refusing(value):
        puts.append(value)
        if len(puts) % 10 == 5:
            raise ray.exceptions.ObjectStoreFullError("full")
        return put(value)

    def losing(reference):
        gets.append(reference)
        if len(gets) % 10 < 2:  # also twice in a row
            raise ray.exceptions.ObjectLostError(reference.hex(), "nobody", "")
        return get(reference)

    monkeypatch.setattr(ray, "get", losing)
    monkeypatch.setattr(ray, "put", refusing)
    learner, experience = of_ddqn.learn(*given("ddqn"), 0, UPDATES)
    assert_as_one_process("ddqn", learner, experience)
    assert len(puts) > UPDATES + 10 and len(gets) > 2 * UPDATES + 40

    def full(value):
        raise ray.exceptions.ObjectStoreFullError("full")

    monkeypatch.setattr(ray, "put", full)
    monkeypatch.setattr(supervisor, "STORE_PAUSE", 0.0)
    with pytest.raises(UnderstudyError, match=r"object store refused .* 5 times"):
        of_ddqn.learn(learner, experience, UPDATES, 1)


@pytest.mark.fault(44, "a gradient of a stale state is dropped and counted")
def test_on_arrival_every_gradient_is_an_update(ray, monkeypatch):
    setup = case("ddqn")[0]
    workers = BatchWorkers(setup, Cluster(**TWO, gradient_mode="async"))
    _answer_in_order(workers.supervisor, monkeypatch)
    before, ring = given("ddqn")
    learner, experience = workers.learn(before, ring, 0, 20)
    facts = workers.metrics()
    # Two are under way at any time: each but the first finds one update made since it began.
    assert facts["gradient_staleness"] == 19 / 20 and facts["gradient_staleness_max"] == 1
    assert facts["gradients_dropped"] == 0
    learner, experience = workers.learn(learner, experience, 20, 5)
    assert list(learner.state.updates) == [25]
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(learner.state))
    moved = zip(
        *(jax.tree.leaves(one.state.params.critic) for one in (before, learner)), strict=True
    )
    assert not any(np.array_equal(old, new) for old, new in moved)
    assert not np.array_equal(learner.state.key, before.state.key)
    assert workers.metrics()["gradient_staleness"] == 1
    workers.max_staleness = -1  # however fresh
    monkeypatch.setattr(workers, "sample", _stop_after(workers.sample, 4))
    with pytest.raises(StopIteration):
        workers.learn(learner, experience, 25, 1)
    dropped = workers.metrics()
    assert dropped["gradients_dropped"] == 4 and "gradient_staleness" not in dropped
    workers.close()


def test_on_arrival_a_dropped_gradient_takes_no_reset_with_it(ray, monkeypatch):
    """Two are under way: the gradient of every second request finds an update made meanwhile."""
    setup = make_setup("ddpg", 1, reset_at=(4,))
    workers = BatchWorkers(setup, Cluster(**TWO, gradient_mode="async"))
    workers.max_staleness = 0
    _answer_in_order(workers.supervisor, monkeypatch)
    learner, _ = workers.learn(make_learner(setup), make_experience(setup), 0, 5)
    assert workers.metrics()["gradients_dropped"] == 4
    assert learner.state.updates.tolist() == [5]
    assert learner.state.opt_state["critic"].count.tolist() == [1]
    workers.close()


def _answer_in_order(supervisor, monkeypatch):
    """Answers arrive in the order of their calls, however long a worker takes."""
    ray, call, wait, called = supervisor.ray, supervisor.call, supervisor.ray.wait, []

    def note_call(*arguments, **others):
        called.append(call(*arguments, **others))
        return called[-1]

    def wait_for_first(references, num_returns, timeout):
        before = [one for one in references if one not in called]  # those of the start
        first = before or [one for one in called if one in references]
        return wait(first[:1], num_returns=1, timeout=timeout)

    monkeypatch.setattr(supervisor, "call", note_call)
    monkeypatch.setattr(ray, "wait", wait_for_first)


def _stop_after(draw, times):
    left = iter(range(times))

    def limited(*arguments):
        next(left)
        return draw(*arguments)

    return limited


@pytest.mark.slow
def test_rollouts_and_their_minibatches(ray):
    setup = make_setup("a2c", members=2, horizon=4, minibatches=2)
    learner, experience = make_learner(setup), make_experience(setup, steps=4)
    want, _ = in_one_process(setup, learner, experience, 6, 2)
    workers = BatchWorkers(setup, Cluster(**TWO))
    got, _ = workers.learn(learner, experience, 6, 2)
    workers.close()
    close(got.state, want.state)


def _unknown_to_workers():
    """A function of a module that only this process has."""
    module = sys.modules["only_here"] = types.ModuleType("only_here")
    exec("def addon(actor, batch, key): ...", vars(module))
    return module.addon


def _known_to_workers():
    def addon(actor, batch, key):
        raise ConfigError("this add-on is broken")

    return addon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("addon", "error", "words"),
    [
        (_known_to_workers(), ConfigError, "^this add-on is broken"),
        pytest.param(
            _unknown_to_workers(),
            UnderstudyError,
            "cannot start: ModuleNotFoundError",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_workers_own_error_is_told_as_it_is(ray, addon, error, words):
    setup, learner, experience, _ = case("sac")
    broken = SAC(setup.algorithm.config, loss_addons=(addon,))
    workers = BatchWorkers(replace(setup, algorithm=broken), Cluster(**TWO))
    with pytest.raises(error, match=words):
        workers.learn(learner, experience, 0, 1)
    workers.close()


def test_no_worker_at_all_is_an_error_in_time(ray, monkeypatch):
    monkeypatch.setattr(supervisor, "SECONDS_TO_START", 1.0)
    setup, learner, experience, _ = case("sac")
    workers = BatchWorkers(setup, Cluster(gradient_workers=2, cpus_each=16.0, patience=1.0))
    with pytest.raises(
        UnderstudyError, match=r"no gradient worker has answered for [12] s .*cores"
    ):
        workers.learn(learner, experience, 0, 1)
    workers.close()


def test_what_workers_cannot_do_is_refused_before_they_start():
    a2c, sac = make_setup("a2c"), make_setup("sac")
    with pytest.raises(ConfigError, match="batch_size 12 cannot be shared by 5 gradient workers"):
        check_gradient_workers(sac, Cluster(gradient_workers=5))
    check_gradient_workers(sac, Cluster(gradient_workers=5, gradient_mode="async"))
    with pytest.raises(ConfigError, match="gradient_mode='async' needs replay: A2C"):
        check_gradient_workers(a2c, Cluster(gradient_workers=2, gradient_mode="async"))
    by_batch = (("normalization", "batch", "off"), ("network", "flashsac", "mlp"))
    for setting, value, usual in by_batch:
        refused = make_setup("sac", **{setting: value})
        words = f"{setting}='{value}'; use '{usual}'"
        for mode in ("sync", "async"):
            with pytest.raises(ConfigError, match=f"SAC uses with {words}"):
                check_gradient_workers(refused, Cluster(gradient_workers=2, gradient_mode=mode))
