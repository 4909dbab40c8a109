"""Fault 30: a run that was stopped and resumed is the run that was never stopped, to the bit."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from resume_cases import QUICK, Walk, assert_same_to_the_bit, make, stopped_and_resumed

import understudy as us

NATIVE = ("jax:Pendulum-v1", "jax:CartPole-v1")
CLASSIC = ("Pendulum-v1", "CartPole-v1")
CONTINUOUS, DISCRETE = 0, 1
KINDS = [
    ("A2C", CONTINUOUS),
    ("A2C", DISCRETE),
    ("DDQN", DISCRETE),
    ("DDPG", CONTINUOUS),
    ("TD3", CONTINUOUS),
    ("SAC", CONTINUOUS),
    ("SAC", DISCRETE),
    ("MPO", CONTINUOUS),
    ("MPO", DISCRETE),
]
STEPS, STOP = 240, 120


def compare(tmp_path, kind, env, *, again=None, schedules=None, **settings):
    whole = make(kind, env, **settings)
    whole.train(STEPS, progress=False, run=QUICK, schedules=schedules)
    resumed = stopped_and_resumed(
        make(kind, env, **settings), tmp_path, STEPS, until=STOP, env=again, schedules=schedules
    )
    assert_same_to_the_bit(whole, resumed, tmp_path)
    assert whole.evaluate(2) == resumed.evaluate(2)
    whole.close()
    resumed.close()


@pytest.mark.fault(30, "a stopped and resumed run equals the uninterrupted one to the bit")
@pytest.mark.parametrize("place", [NATIVE, CLASSIC], ids=["native", "classic"])
@pytest.mark.parametrize(("kind", "actions"), KINDS)
def test_every_algorithm_goes_on_to_the_bit(tmp_path, kind, actions, place):
    compare(tmp_path, kind, place[actions])


@pytest.mark.fault(30, "MuJoCo environments come back by replay")
@pytest.mark.parametrize("kind", ["A2C", "TD3"])
def test_a_mujoco_environment_goes_on_to_the_bit(tmp_path, kind):
    compare(tmp_path, kind, "Hopper-v5", num_envs=2)


@pytest.mark.fault(30, "so does a user's own environment")
@pytest.mark.parametrize("kind", ["A2C", "DDPG", "SAC", "MPO"])
def test_a_users_environment_goes_on_to_the_bit(tmp_path, kind):
    compare(tmp_path, kind, Walk, again=Walk)


@pytest.mark.fault(30, "four seeds at once")
@pytest.mark.parametrize("env", ["jax:Pendulum-v1", "Pendulum-v1"])
def test_four_seeds_go_on_to_the_bit(tmp_path, env):
    compare(tmp_path, "SAC", env, num_seeds=4, num_envs=2)


@pytest.mark.fault(30, "prioritised replay")
@pytest.mark.parametrize("env", ["jax:CartPole-v1", "CartPole-v1"])
def test_prioritised_replay_goes_on_to_the_bit(tmp_path, env):
    compare(tmp_path, "DDQN", env, prioritised=True, n_step=2)


@pytest.mark.fault(30, "schedules with a horizon")
@pytest.mark.parametrize("env", ["jax:Pendulum-v1", "Pendulum-v1"])
def test_schedules_go_on_to_the_bit(tmp_path, env):
    schedules = {"learning_rate": us.linear(1e-2, 0.0), "gamma": us.cosine(0.9, 0.99, 200)}
    compare(tmp_path, "TD3", env, schedules=schedules)
