"""The cluster loop on a real Ray: exact counts, the same bits in rounds, and what travels."""

import shutil
import threading
from dataclasses import replace

import gymnasium
import jax
import numpy as np
import pytest

import understudy as us
from tests.distributed.cluster_cases import (
    CHUNK_STEPS,
    LEARNING_FROM,
    RUN,
    SMALL,
    assert_counted_once,
    lanes_of,
    sac,
    train,
)
from tests.envs.goal import Goal
from understudy.distributed import loop
from understudy.distributed.config import Cluster
from understudy.errors import ConfigError
from understudy.runs import checkpoint
from understudy.runs.csv_log import read_csv

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray")]
ODD = 205  # steps: no whole number of chunks
A2C = dict(hidden_sizes=(8,), horizon=5, normalize_observations=True)


def bits(agent):
    """All that was learned, and all that was stored."""
    trainer = agent.trainer
    leaves = jax.tree.leaves(jax.device_get((trainer.learner, trainer.experience)))
    return [np.asarray(leaf).tobytes() for leaf in leaves]


def closed(agent):
    """What is left of it."""
    kept = bits(agent)
    agent.close()
    return kept


def test_rounds_are_reproducible_and_go_on_to_the_bit(tmp_path):
    """With all that could be forgotten: n-step rewards, priorities, statistics, open episodes."""
    changes = dict(n_step=3, prioritized=True, normalize_observations=True)

    def make():
        return sac(mode="sync", num_envs=2, config=changes)

    run = replace(RUN, log_every=40)
    whole, stopped = make(), make()
    train(whole, 200, run=run)
    train(stopped, 200, lambda facts: facts["time/total_steps"] >= 120, run=run)
    assert stopped.steps == 120
    stopped.save(tmp_path / "stopped")
    stopped.close()
    resumed = us.load(tmp_path / "stopped")
    train(resumed, 80, run=run)
    assert_counted_once(resumed, 200)
    assert closed(whole) == closed(resumed)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_rollouts_of_several_collectors(mode, tmp_path):
    """Side by side in rounds; one by one as they come otherwise."""

    def make():
        config, cluster = us.A2CConfig(**A2C), Cluster(2, mode=mode, cpus_each=0.5)
        return us.A2C("CartPole-v1", config, num_envs=2, cluster=cluster)

    agent = make()
    train(agent, 40)
    rollouts = agent.trainer.position.updates
    together = 2 if mode == "sync" else 1
    assert agent.steps == 40 and rollouts == 40 // (5 * 2 * together)
    assert agent.trainer.experience.valid.shape == (1, 5, 2 * together)
    if mode == "sync":
        agent.save(tmp_path / "kept")
        train(agent, 40)
        again = us.load(tmp_path / "kept")
        train(again, 40)
        assert bits(agent) == closed(again)
    agent.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_ratio_of_remote_rollouts_is_1(workers):
    """Collectors act with the statistics by which the learner normalizes their rollouts."""
    config = us.PPOConfig(**A2C, minibatches=2, epochs=2, learning_rate=0.1)
    cluster = Cluster(2, mode="sync", gradient_workers=workers, cpus_each=0.4)
    agent, seen = us.PPO("CartPole-v1", config, num_envs=2, cluster=cluster), []
    prepare = agent.algorithm.prepare

    def watched(state, batch):
        rows = prepare(state, batch)
        moved = state.params.actor(rows.observation).log_prob(rows.action) - rows.log_prob
        mean = state.normalizer.observation.mean
        jax.debug.callback(lambda *x: seen.append([np.abs(y).max() for y in x]), moved, mean)
        return rows

    agent.algorithm.prepare = watched
    train(agent, 80)
    jax.effects_barrier()
    agent.close()
    assert len(seen) == 4 and max(moved for moved, _ in seen) < 1e-5
    assert len({mean for _, mean in seen}) == 4


def test_steps_and_updates_are_exact_whatever_the_collectors_do(tmp_path):
    agent = sac(config=dict(updates_per_step=0.5))
    history = train(agent, ODD).history
    trainer = agent.trainer
    assert agent.steps == ODD
    assert trainer.position.updates == (ODD - LEARNING_FROM) // 2
    assert history[-1]["cluster/collectors"] == 2
    assert history[-1]["cluster/replay_ratio"] == trainer.position.updates / ODD
    assert trainer.experience.stored.sum() == ODD
    assert {len(lane.reward) > 0 for lane in lanes_of(agent)[0]} == {True}
    agent.save(tmp_path / "kept")
    agent.close()
    resumed = us.load(tmp_path / "kept")
    train(resumed, ODD)
    assert resumed.steps == 2 * ODD
    assert resumed.trainer.experience.stored.sum() == 2 * ODD
    resumed.close()


@pytest.mark.slow
def test_what_is_in_flight_when_a_run_is_stopped_is_not_lost(tmp_path):
    agent = sac()
    train(agent, 300, lambda facts: facts["time/total_steps"] >= 100)
    assert 100 <= agent.steps < 300
    agent.save(tmp_path / "kept")
    arrived = len(agent.trainer.arrived)
    agent.close()
    resumed = us.load(tmp_path / "kept")
    assert len(resumed.trainer.arrived) == arrived > 0
    train(resumed, 300 - resumed.steps)
    assert_counted_once(resumed, 300)
    resumed.close()


@pytest.mark.slow
def test_two_members_on_two_collectors():
    agent = sac(num_seeds=2, num_envs=2)
    train(agent, 100)
    assert_counted_once(agent, 100)
    one, other = (np.concatenate([lane.reward for lane in lanes]) for lanes in lanes_of(agent))
    assert not np.array_equal(one, other)
    assert np.array(agent.evaluate(1)["returns"]).shape == (2, 1)
    agent.close()


@pytest.mark.slow
def test_replay_on_the_host():
    agent = sac(config=dict(replay_storage="host"))
    train(agent, 100)
    trainer = agent.trainer
    only_seed = jax.tree.map(lambda x: x[0], trainer.experience)
    assert trainer.buffer.frames.num_stored(only_seed) == agent.steps == 100
    assert trainer.position.updates == 100 - LEARNING_FROM
    agent.close()


@pytest.mark.slow
@pytest.mark.parametrize("collectors", [0, 1])
def test_gradient_workers_beside_collectors(collectors):
    agent = sac(collectors=collectors, gradient_workers=2)
    history = train(agent, 60).history
    assert_counted_once(agent, 60)
    assert history[-1]["cluster/gradient_workers"] == 2
    agent.close()


@pytest.mark.slow
def test_gradients_elsewhere_are_those_of_here():
    """A cluster in rounds, with and without gradient workers."""
    agents = [sac(mode="sync", collectors=1, gradient_workers=workers) for workers in (0, 2)]
    weights = []
    for agent in agents:
        train(agent, 60)
        weights.append(jax.tree.leaves(agent.get_weights()))
        agent.close()
    for here, there in zip(*weights, strict=True):
        np.testing.assert_allclose(here, there, atol=1e-5)


def policies_acted_by(agent, monkeypatch):
    """The leaves of every policy that was put where collectors can read it."""
    collectors, sent = agent.trainer.collectors, []
    put = collectors.put
    monkeypatch.setattr(collectors, "put", lambda value: sent.append(value) or put(value))
    return sent


@pytest.mark.slow
def test_the_normalizer_and_the_networks_reach_the_collectors(monkeypatch):
    agent = sac(mode="sync", collectors=1, config=dict(normalize_observations=True))
    sent = policies_acted_by(agent, monkeypatch)
    train(agent, 60)
    trainer = agent.trainer
    last = jax.tree.leaves(jax.device_get(trainer.policy()))
    assert len(sent) == 60 // CHUNK_STEPS
    published = trainer.collectors.supervisor.ray.get(trainer.newest_policy())
    assert all(map(np.array_equal, published, last))
    moved = [not np.array_equal(old, new) for old, new in zip(sent[0], sent[-1], strict=True)]
    assert all(moved)
    agent.close()


def share_of_greedy(agent):
    """Of the actions that were stored, those that the agent itself would take."""
    [lanes] = lanes_of(agent)
    seen = np.concatenate([lane.observation for lane in lanes])
    done = np.concatenate([lane.action for lane in lanes])
    return float(np.mean(np.asarray(agent.act(seen)) == done.squeeze()))


@pytest.mark.slow
def test_epsilon_reaches_the_collectors():
    """Nobody learns here (no learning rate), so what was greedy then is greedy now."""
    settings = SMALL | dict(start_steps=0, learning_rate=0.0, target_update_interval=10)

    def acted(epsilon, steps):
        epsilons = dict(initial_epsilon=1.0, final_epsilon=epsilon, epsilon_decay_steps=1)
        config = us.DDQNConfig(**settings, **epsilons)
        agent = us.DDQN(
            "CartPole-v1",
            config,
            cluster=Cluster(1, collector_chunk_steps=CHUNK_STEPS, cpus_each=0.5),
        )
        train(agent, steps)
        share = share_of_greedy(agent)
        agent.close()
        return share

    assert acted(0.0, 300) > 0.75 > acted(1.0, 300)


@pytest.mark.slow
def test_memory_travels_with_the_steps():
    """What was remembered before a step is stored with it, and is nothing where episodes begin."""
    config = us.SACConfig(**(SMALL | dict(batch_size=16)), memory="gru", memory_size=4,
                          share_encoder=True, burn_in=2, sequence_length=4)  # fmt: skip
    agent = us.SAC(
        "Pendulum-v1", config, cluster=Cluster(2, collector_chunk_steps=CHUNK_STEPS, cpus_each=0.5)
    )
    trainer, brought = agent.trainer, []
    learn = trainer.learn_from
    trainer.learn_from = lambda deliveries: (brought.extend(deliveries), learn(deliveries))
    train(agent, 120)
    assert agent.steps == sum(delivery.order.iterations for delivery in brought) == 120
    for place in (0, 1):
        mine = np.concatenate([each.rows for each in brought if each.slot == place], axis=1)
        memory = mine["recurrent_state"].reshape(-1, 4)
        assert not memory[0].any()
        assert np.abs(memory[1:]).max(axis=1).all()  # the first episode is longer than this
        assert len(np.unique(memory, axis=0)) == len(memory)
    agent.close()


def test_a_delivery_that_does_not_fit_replay_is_refused():
    with pytest.raises(
        ConfigError, match=r"20 steps does not fit replay.*lower collector_chunk_steps"
    ):
        train(sac(collector_chunk_steps=20, config=dict(buffer_size=32)), 10)


def test_what_does_not_fit_or_travel_is_refused(monkeypatch):
    monkeypatch.setattr(loop, "BatchWorkers", None)  # nothing is started before
    with pytest.raises(ConfigError, match=r"need 40 cores, the cluster has 4: ask for fewer"):
        train(sac(cpus_each=20.0), 10)
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="cannot be sent to a collector"):
        train(sac(lambda: lock and gymnasium.make("Pendulum-v1"), gradient_workers=2), 10)
    with pytest.raises(ConfigError, match="native ones are stepped on the device"):
        sac("jax:Pendulum-v1")


@pytest.mark.slow
def test_what_environments_report_arrives_and_a_resumed_run_logs_the_same(tmp_path):
    """The checkpoint is between two rows: it holds the episodes that no row has counted."""
    run = replace(RUN, log_every=100, checkpoint_every=60, keep_checkpoints=9)
    for name in ("whole", "resumed"):
        agent = sac(Goal, mode="sync")
        train(agent, 200, run=run, run_dir=tmp_path / name)
        agent.close()
    first, *later = checkpoint.numbered(tmp_path / "resumed")
    for place in later:
        shutil.rmtree(place)
    resumed = us.load(tmp_path / "resumed", env=Goal)
    train(resumed, 200 - resumed.steps, run=run, run_dir=tmp_path / "resumed")
    resumed.close()
    logs = [read_csv(tmp_path / name / "episodes.csv") for name in ("whole", "resumed")]
    assert logs[0].keys() == logs[1].keys() and int(first.name) % 100
    for name in set(logs[0]) - {"seconds"}:
        np.testing.assert_array_equal(logs[0][name], logs[1][name], name)
    whole = logs[0]
    assert set(whole["env"]) == {0, 1} and set(whole["success"]) <= {0, 1}
    assert (whole["info/time"] == (whole["length"] + 1) / 2).all()
    assert 180 < whole["length"].sum() <= 200 and (np.diff(whole["step"]) >= 0).all()
    rows = read_csv(tmp_path / "resumed" / "progress.csv")
    assert np.isfinite(rows["rollout/success_rate"]).all() and "info/distance" in rows
