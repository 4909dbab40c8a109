"""Fault 30: a run that was stopped and resumed is the run that was never stopped, to the bit."""

import pytest

import understudy as us
from tests.faults.resume_cases import Walk, compare

pytestmark = pytest.mark.agents

PENDULUM, CART = "Pendulum-v1", "CartPole-v1"
# On one of the two loops; on both, and on all environments, in the long tests. A2C, DDPG, TD3 and
# SAC are in the tests below. PPO and REPPO stop in the middle of a rollout.
EVERY_KIND = [
    ("DDQN", f"jax:{CART}"),
    ("PPO", f"jax:{CART}"),
    ("PQN", f"jax:{CART}"),
    ("REPPO", f"jax:{PENDULUM}"),
    pytest.param("MPO", PENDULUM, marks=pytest.mark.slow),
]
NATIVE_PENDULUM = pytest.param(f"jax:{PENDULUM}", marks=pytest.mark.slow)
NATIVE_CART = pytest.param(f"jax:{CART}", marks=pytest.mark.slow)
CONTINUOUS = ("A2C", "DDPG", "TD3", "SAC", "MPO", "PPO", "REPPO")
DISCRETE = ("A2C", "DDQN", "PQN", "SAC", "MPO", "PPO", "REPPO")
EVERYWHERE = [
    *((kind, env) for kind in CONTINUOUS for env in (f"jax:{PENDULUM}", PENDULUM, Walk)),
    *(pytest.param(kind, "Hopper-v5", marks=pytest.mark.mujoco) for kind in CONTINUOUS),
    *((kind, env) for kind in DISCRETE for env in (f"jax:{CART}", CART)),
]


@pytest.mark.fault(30, "a resumed run equals the uninterrupted run bit for bit")
@pytest.mark.parametrize(("kind", "env"), EVERY_KIND)
def test_every_algorithm_goes_on_to_the_bit(tmp_path, kind, env):
    compare(tmp_path, kind, env)


@pytest.mark.mujoco
@pytest.mark.processes  # importing glfw, as Gymnasium does with MuJoCo, starts one
@pytest.mark.fault(30, "MuJoCo environments are restored by replay")
def test_a_mujoco_environment_goes_on_to_the_bit(tmp_path):
    compare(tmp_path, "TD3", "Hopper-v5", num_envs=2)


@pytest.mark.slow
@pytest.mark.fault(30, "a user's own environment is restored as well")
def test_a_users_environment_goes_on_to_the_bit(tmp_path):
    compare(tmp_path, "DDPG", Walk, again=Walk)


@pytest.mark.slow
@pytest.mark.fault(30, "every algorithm on every kind of environment")
@pytest.mark.parametrize(("kind", "env"), EVERYWHERE, ids=str)
def test_every_algorithm_goes_on_everywhere(tmp_path, kind, env):
    compare(tmp_path, kind, env, again=Walk if env is Walk else None)


@pytest.mark.fault(30, "four seeds at once")
@pytest.mark.parametrize("env", [PENDULUM, NATIVE_PENDULUM])
def test_four_seeds_go_on_to_the_bit(tmp_path, env):
    compare(tmp_path, "SAC", env, num_seeds=4, num_envs=2)


@pytest.mark.fault(30, "in the middle of a chunk, with a policy older than the learner's")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [("SAC", {}), pytest.param("TD3", dict(num_seeds=2, num_envs=2), marks=pytest.mark.slow)],
)
def test_a_run_goes_on_in_mid_chunk_to_the_bit(tmp_path, kind, settings):
    compare(tmp_path, kind, PENDULUM, chunk_steps=7, **settings)


@pytest.mark.fault(30, "in the middle of a rollout")
def test_a_run_goes_on_in_mid_rollout_to_the_bit(tmp_path):
    compare(tmp_path, "A2C", CART, horizon=7)


@pytest.mark.slow
@pytest.mark.fault(30, "prioritized replay")
@pytest.mark.parametrize("env", [CART, NATIVE_CART])
def test_prioritized_replay_goes_on_to_the_bit(tmp_path, env):
    compare(tmp_path, "DDQN", env, prioritized=True, n_step=2)


@pytest.mark.slow
@pytest.mark.fault(30, "distributional critics, and the largest return so far")
@pytest.mark.parametrize(
    ("kind", "env", "head"), [("SAC", PENDULUM, "quantile"), ("DDQN", CART, "categorical")]
)
def test_distributional_critics_go_on_to_the_bit(tmp_path, kind, env, head):
    limited = dict(normalize_rewards=True, return_limit=5.0)
    compare(tmp_path, kind, env, critic_head=head, num_seeds=2, **limited)


@pytest.mark.slow
@pytest.mark.fault(30, "schedules with a horizon")
@pytest.mark.parametrize(
    ("kind", "env"),
    [
        ("A2C", CART),
        pytest.param("TD3", PENDULUM, marks=pytest.mark.slow),
        pytest.param("TD3", f"jax:{PENDULUM}", marks=pytest.mark.slow),
    ],
)
def test_schedules_go_on_to_the_bit(tmp_path, kind, env):
    schedules = {"learning_rate": us.linear(1e-2, 0.0), "gamma": us.cosine(0.9, 0.99, 200)}
    compare(tmp_path, kind, env, schedules=schedules)


@pytest.mark.fault(30, "resets of networks, noise that is held, and no target networks")
@pytest.mark.parametrize("env", [PENDULUM, NATIVE_PENDULUM])
def test_resets_and_held_noise_go_on_to_the_bit(tmp_path, env):
    settings = dict(reset_every=50, max_noise_hold=8, target_networks="off")
    compare(tmp_path, "SAC", env, num_seeds=2, **settings)


@pytest.mark.slow
@pytest.mark.fault(30, "deviations of the noise that each environment draws for itself")
@pytest.mark.parametrize("env", [PENDULUM, f"jax:{PENDULUM}"])
def test_deviations_of_each_environment_go_on_to_the_bit(tmp_path, env):
    settings = dict(min_exploration_noise=0.01, max_noise_hold=4, target_networks="critics")
    compare(tmp_path, "TD3", env, num_envs=2, reset_at=(40, 130), **settings)
