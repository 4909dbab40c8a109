"""Cases for a process with eight devices: `test_devices.py` runs them in one.

The default run covers how rows are divided, rollouts of the device loop, and where native members
lie.
"""

import jax
import numpy as np
import pytest

from understudy.algorithms import find
from understudy.envs.make import resolve
from understudy.errors import ConfigError
from understudy.training.devices import divides_rows, find_sharding, split_rows
from understudy.training.factory import make_trainer
from understudy.training.trainer import TrainingSetup

REPLAY = dict(hidden_sizes=(8,), batch_size=16, buffer_size=128, start_steps=8, min_buffer_size=10)
CHUNKS = dict(chunk_steps=8)  # the usual number depends on how many devices there are
MEMORY = dict(memory="gru", memory_size=4, sequence_length=3, burn_in=1)
PRIORITIZED = dict(prioritized=True)
BY_BATCH = dict(network="flashsac", learning_rate=3e-5)  # rounding errors stay small
ROLLOUT = dict(hidden_sizes=(8,), horizon=2)
HALVES = dict(minibatches=2, epochs=2, memory="gru", memory_size=4)
HALF = 20  # iterations


def make_setup(name, env, *, devices=1, num_seeds=1, num_envs=1, **settings):
    algorithm = find(name)(find(name).config_class(**settings))
    source = resolve(env, num_envs)
    return TrainingSetup(algorithm, source.spec, 3, num_seeds, num_envs, devices), source


def trainer_of(name, env, **settings):
    setup, source = make_setup(name, env, **settings)
    return make_trainer(setup, source, 0)


def learned(trainer):
    return jax.device_get(jax.tree.leaves(trainer.learner))


def assert_equal(one, other, tolerance=0.0):
    for a, b in zip(learned(one), learned(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def slow(case, /, **settings):
    return pytest.param(settings, id=case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "settings",
    [
        slow("replay on devices", name="sac", env="jax:Pendulum-v1", **REPLAY),
        slow(
            "prioritized replay", name="ddqn", env="CartPole-v1", **REPLAY, **CHUNKS, **PRIORITIZED
        ),
        slow(
            "replay of the host",
            name="td3",
            env="Pendulum-v1",
            **REPLAY,
            **CHUNKS,
            replay_storage="host",
        ),
        slow("batch statistics", name="sac", env="jax:Pendulum-v1", **REPLAY, **BY_BATCH),
        slow("sequences", name="ddqn", env="CartPole-v1", **REPLAY, **CHUNKS, **MEMORY),
        slow("minibatches", name="a2c", env="CartPole-v1", num_envs=8, minibatches=2, **ROLLOUT),
        slow("rollouts", name="a2c", env="jax:CartPole-v1", num_envs=4, **ROLLOUT),
        slow("environments", name="ppo", env="jax:CartPole-v1", num_envs=16, **ROLLOUT, **HALVES),
        slow(
            "sampled targets",
            name="reppo",
            env="jax:Pendulum-v1",
            num_envs=8,
            minibatches=2,
            **ROLLOUT,
        ),
        slow("native members", name="sac", env="jax:Pendulum-v1", num_seeds=8, **REPLAY),
        slow("members", name="td3", env="Pendulum-v1", num_seeds=8, **REPLAY, **CHUNKS),
    ],
)
def test_spread_and_alone_learn_the_same(settings):
    """Also across a snapshot, which gathers what is spread, and restoring, which spreads it."""
    alone, spread = trainer_of(**settings), trainer_of(**settings, devices=8)
    alone.advance(2 * HALF)
    spread.advance(HALF)
    snapshot = spread.snapshot()
    spread.advance(HALF)
    assert alone.position.updates == spread.position.updates >= HALF
    assert_equal(alone, spread, 1e-5)
    resumed = trainer_of(**settings, devices=8)
    resumed.restore(snapshot)
    resumed.advance(HALF)
    assert_equal(resumed, spread)
    for trainer in (alone, spread, resumed):
        assert trainer.metrics()
        trainer.close()


def compiled(trainer):
    """The text of the device loop's program."""
    plan, moved = trainer.plan_iterations(0, HALF), trainer.scheduled_values(0)
    held = (trainer.learner, trainer.experience, trainer.world)
    return trainer.general_program.lower(held, plan, moved).compile().as_text()


def test_rows_are_divided_and_their_gradients_summed():
    settings = dict(name="sac", env="jax:Pendulum-v1", **REPLAY)
    alone, spread = trainer_of(**settings), trainer_of(**settings, devices=8)
    assert "all-reduce" in compiled(spread) and "all-reduce" not in compiled(alone)
    batch = {"observation": np.zeros((16, 3), np.float32), "weight": np.ones(16, np.float32)}
    sharding = find_sharding(spread.setup)
    shares = jax.jit(divides_rows(split_rows, sharding))(jax.device_put(batch, sharding))
    for array in shares.values():
        assert [len(shard.data) for shard in array.addressable_shards] == [2] * 8
    assert len(jax.jit(split_rows)(batch)["weight"].devices()) == 1


def test_each_device_holds_one_member_and_none_waits_for_another():
    spread = trainer_of("sac", "jax:Pendulum-v1", num_seeds=8, devices=8, **REPLAY)
    spread.advance(1)
    for array in jax.tree.leaves((spread.learner, spread.experience, spread.world)):
        assert [len(shard.data) for shard in array.addressable_shards] == [1] * 8
    program = compiled(spread)
    for communication in ("all-reduce", "all-gather", "all-to-all", "collective-permute"):
        assert communication not in program


@pytest.mark.slow
def test_hyper_parameters_and_weights_are_set_while_spread():
    settings = dict(name="td3", env="Pendulum-v1", num_seeds=8, **REPLAY, **CHUNKS)
    alone, spread = trainer_of(**settings), trainer_of(**settings, devices=8)
    for trainer in (alone, spread):
        trainer.set({"gamma": 0.5})
        weights = trainer.setup.algorithm.get_weights(trainer.learner.state)
        trainer.set_weights(jax.tree.map(lambda x: np.asarray(x) / 2, weights))
        trainer.advance(HALF)
        trainer.close()
    assert_equal(alone, spread, 1e-5)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (dict(name="sac", env="jax:Pendulum-v1", devices=9), r"at most 8 \(cpu\) here, got 9"),
        (dict(name="sac", env="jax:Pendulum-v1", devices=0), "devices must be at least 1"),
        (
            dict(name="sac", env="jax:Pendulum-v1", devices=8, num_seeds=12),
            "num_seeds must be a multiple of devices: 12 cannot be divided among 8",
        ),
        (
            dict(name="sac", env="jax:Pendulum-v1", devices=8, batch_size=12),
            "batch_size must be a multiple of devices: 12",
        ),
        (
            dict(name="a2c", env="CartPole-v1", devices=8, num_envs=2, horizon=8, minibatches=4),
            r"minibatches must be a multiple of devices: 4",
        ),
        (
            dict(name="a2c", env="CartPole-v1", devices=8, num_envs=4, horizon=8, memory="gru"),
            "num_envs / minibatches must be a multiple of devices: 4",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        find_sharding(make_setup(**settings)[0])
