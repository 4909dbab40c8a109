"""Replay that lies with the gradient workers, on a real Ray: as if it lay in one place."""

import os
import signal
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from tests.distributed.cluster_cases import wait_for_death
from tests.distributed.shared_updates import LANES, close, make_learner, make_setup
from understudy.distributed.config import Cluster
from understudy.distributed.gradient_workers import check_gradient_workers
from understudy.distributed.replay_shards import ShardWorkers, add_rows, shard_buffer
from understudy.errors import CheckpointError, UnderstudyError
from understudy.training.step_packing import as_bytes, pack_rows, step_dtype
from understudy.training.transport import Rows
from understudy.training.update import apply_update, sample_inputs
from understudy.types import ConfigError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray")]
SHARDED = dict(gradient_workers=2, collectors=2, cpus_each=0.5, replay="sharded")
CLUSTER, ENVS, MEMBERS = Cluster(**SHARDED), LANES // 2, 2
LEARNING_FROM, SIZE, STEPS = 20, 4_000, 160
CONFIG = us.SACConfig(
    hidden_sizes=(8,), batch_size=8, buffer_size=SIZE, start_steps=10, normalize_observations=True,
    min_buffer_size=LEARNING_FROM,
)  # fmt: skip
RUN = us.RunConfig(log_every=20, evaluate_every=0, evaluation_episodes=1, checkpoint_every=0)


SETTING = make_setup("ddqn", members=MEMBERS, target_update_interval=5)
ROWS = step_dtype(SETTING.algorithm, SETTING.spec)


def make_chunk(seed, steps=6):
    """What a collector has brought."""
    rng, shape = np.random.default_rng(seed), (MEMBERS, steps, ENVS)
    ended = rng.uniform(size=shape) < 0.2
    fields = {
        "reward": rng.normal(size=shape),
        "observation": rng.normal(size=(*shape, 3)),
        "action": rng.integers(0, 3, shape),
        "terminated": ended & (rng.uniform(size=shape) < 0.5),
        "last": ended,
        "next_observation": rng.normal(size=(*shape, 3)),
        "valid": np.ones(shape, bool),
    }
    rows = pack_rows(ROWS, fields)
    return Rows(as_bytes(rows), np.full(MEMBERS, 7, np.int32))


class InOneProcess:
    """One member's updates, of rows sampled from the same parts of replay by the same keys:
    one batch, whose rows have the weight of what they stand for. (DDQN's gradients have no
    noise.)"""

    def __init__(self, member, learner):
        self.learner, self._member = jax.tree.map(lambda x: x[member], learner), member
        self._buffer = shard_buffer(SETTING, CLUSTER, 0)
        self._parts = [self._buffer.init() for _ in range(2)]
        self._add = jax.jit(partial(add_rows, self._buffer, ROWS))
        self._one = jax.jit(self._update, static_argnums=(2, 3))

    def add(self, place, chunk):
        own = Rows(chunk.data[self._member], jnp.int32(0))
        self._parts[place] = self._add(self._parts[place], own)

    def learn(self, index):
        mask = SETTING.algorithm.update_mask(index)
        parts = {place: part for place, part in enumerate(self._parts) if part.stored.sum()}
        self.learner = self._one(self.learner, list(parts.values()), tuple(parts), mask)

    def _update(self, learner, parts, places, mask):
        algorithm, state = SETTING.algorithm, learner.state
        assert self._buffer.batch_size == 6
        total, batches = sum(part.stored.sum() for part in parts), []
        for place, part in zip(places, parts, strict=True):
            own = state._replace(key=jax.random.fold_in(state.key, place))
            batch = sample_inputs(algorithm, self._buffer, own, part).batch
            weight = batch.weight * part.stored.sum() / total * len(parts)
            batches.append(batch._replace(weight=weight))
        batch = jax.tree.map(lambda *parts: jnp.concatenate(parts), *batches)
        gradients, aux = algorithm.gradients(state, batch, state.key, mask)
        next_key = jax.random.split(state.key, 3)[0]
        return apply_update(algorithm, learner, gradients, aux.metrics, next_key)[0]


def test_updates_are_those_of_one_process_that_draws_the_same_rows():
    workers, learner = ShardWorkers(SETTING, CLUSTER), make_learner(SETTING)
    singles = [InOneProcess(member, learner) for member in range(MEMBERS)]
    index = 0
    for number, (collector, updates) in enumerate([(0, 2), (1, 6), (0, 4)]):
        workers.add(collector, make_chunk(number))
        learner, _ = workers.learn(learner, None, index, updates)
        for single in singles:
            single.add(collector, make_chunk(number))
            for each in range(updates):
                single.learn(index + each)
        index += updates
    for member, single in enumerate(singles):
        close(jax.tree.map(lambda x, m=member: x[m], learner.state), single.learner.state)
    assert list(learner.state.updates) == [index] * MEMBERS
    facts = workers.metrics()
    assert facts["gradient_workers"] == 2
    assert facts["gradient_shares_missed"] == 2  # before anything was brought to the other
    workers.close()


@pytest.mark.slow
def test_on_arrival_everyone_draws_for_itself_who_keeps_something():
    cluster = replace(CLUSTER, gradient_mode="async", max_staleness=40)
    workers, learner = ShardWorkers(SETTING, cluster), make_learner(SETTING)
    with pytest.raises(UnderstudyError, match="none of 2 gradient workers stores a step"):
        workers.learn(learner, None, 0, 1)
    workers.add(1, make_chunk(0))
    learner, _ = workers.learn(learner, None, 0, 5)
    assert workers.metrics()["gradient_staleness_max"] == 0  # there is one who can
    workers.add(0, make_chunk(1))
    updates, stale = 5, 0
    while not stale:  # until the other one takes part
        learner, _ = workers.learn(learner, None, updates, 1)
        updates, stale = updates + 1, workers.metrics()["gradient_staleness_max"]
    assert list(learner.state.updates) == [updates] * MEMBERS
    workers.close()


def make_agent(**cluster):
    cluster = Cluster(**(SHARDED | dict(collector_chunk_steps=10) | cluster))
    return us.SAC("Pendulum-v1", CONFIG, seed=0, num_envs=1, cluster=cluster)


def train(agent, steps, *callbacks):
    agent.train(steps, run=RUN, callbacks=callbacks, progress=False)


def workers_of(agent):
    return agent.trainer.workers


def rings_of(agent):
    return workers_of(agent).state_dict()


def stored_by(agent):
    rings = rings_of(agent)
    return [int(rings[f"shard.{place}.stored"].sum()) for place in range(2)]


@pytest.mark.slow
def test_a_resumed_run_is_the_unbroken_one(tmp_path):
    unbroken = make_agent(mode="sync")
    train(unbroken, 40)
    unbroken.save(tmp_path / "kept")
    resumed = us.load(tmp_path / "kept")
    for agent in (unbroken, resumed):
        train(agent, 40)
        assert agent.steps == 80
        assert agent.trainer.position.updates == 80 - LEARNING_FROM
        assert stored_by(agent) == [40, 40]
    # Nothing was kept twice: the learner has room for hardly a step.
    ring = unbroken.trainer.experience
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(ring)) < 1_000
    want, got = (agent.trainer for agent in (unbroken, resumed))
    assert jax.tree.all(jax.tree.map(np.array_equal, want.learner.state, got.learner.state))
    one, two = rings_of(unbroken), rings_of(resumed)
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)
    running = want.learner.state.normalizer.observation
    assert int(running.count[0]) == 80  # statistics are the learner's
    unbroken.close()
    with pytest.raises(CheckpointError, match="does not hold the replay of 2 gradient workers"):
        workers_of(resumed).load_state_dict({"shard.0.cursor": np.zeros(1)})
    resumed.close()


@pytest.mark.fault(39, "a gradient worker that stores replay is replaced; only its shard is lost")
@pytest.mark.parametrize(
    ("gradient_mode", "victims"),
    [("sync", (0, 1)), ("async", (0,))],
)
@pytest.mark.slow
def test_killed_workers_are_replaced_and_counts_stay_exact(ray, gradient_mode, victims):
    # In rounds: both collectors deliver before and after the blow.
    agent, struck = make_agent(mode="sync", gradient_mode=gradient_mode), {}
    slots = workers_of(agent).supervisor.slots

    def strike(facts):
        if not struck and facts["time/total_steps"] >= 60:
            for place in victims:
                struck[place] = slots[place].actor
                os.kill(ray.get(struck[place].pid.remote()), signal.SIGKILL)
                wait_for_death(ray, struck[place])

    train(agent, STEPS, strike)
    position = agent.trainer.position
    assert agent.steps == STEPS and position.updates == STEPS - LEARNING_FROM
    for place in victims:
        assert slots[place].actor is not struck[place]
        assert ray.get(slots[place].actor.pid.remote()) > 0
    stored = stored_by(agent)
    assert min(stored) > 0 and sum(stored) <= STEPS - 20
    agent.close()


@pytest.mark.slow
@pytest.mark.fault(43, "a chunk or a State that Ray loses is sent again")
def test_lost_objects_are_sent_again(ray, monkeypatch):
    workers, learner = ShardWorkers(SETTING, CLUSTER), make_learner(SETTING)
    get, gets = ray.get, []

    def losing(reference):
        gets.append(reference)
        if len(gets) % 4 == 1:
            raise ray.exceptions.ObjectLostError(reference.hex(), "nobody", "")
        return get(reference)

    monkeypatch.setattr(ray, "get", losing)
    for number, collector in enumerate((0, 0, 1)):
        workers.add(collector, make_chunk(number, steps=4))
    learner, _ = workers.learn(learner, None, 0, 10)
    assert list(learner.state.updates) == [10] * MEMBERS and len(gets) > 20
    kept = workers.state_dict()  # once, though it was sent again when its arrival was not heard of
    assert (kept["shard.0.stored"] == 8).all() and (kept["shard.1.stored"] == 4).all()

    def lose(reference):
        raise ray.exceptions.ObjectLostError(reference.hex(), "nobody", "")

    monkeypatch.setattr(ray, "get", lose)
    with pytest.raises(
        UnderstudyError, match=r"worker [01] failed 5 times in a row, .* answer lost"
    ):
        workers.learn(learner, None, 10, 1)
    workers.close()


def test_what_cannot_be_sharded_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match="needs a collector for each of the gradient_workers"):
        replace(CLUSTER, collectors=1)
    with pytest.raises(ConfigError, match="needs replay, which A2C has none of"):
        us.A2C("CartPole-v1", cluster=CLUSTER).train(1, progress=False)
    with pytest.raises(ConfigError, match="cannot be prioritized"):
        check_gradient_workers(make_setup("ddqn", prioritized=True), CLUSTER)
    with pytest.raises(ConfigError, match=r"memory of the gradient workers: .* got 'disk'"):
        check_gradient_workers(make_setup("sac", replay_storage="disk"), CLUSTER)
    with pytest.raises(ConfigError, match="batch_size 12 cannot be shared by 5"):
        check_gradient_workers(
            make_setup("sac"), replace(CLUSTER, gradient_workers=5, collectors=5)
        )
