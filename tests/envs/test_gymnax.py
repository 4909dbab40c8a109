"""Gymnax's environments: termination and truncation, spaces, parameters. Most tests use a fake with
Gymnax's interface; the last ones need the real package."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from tests.envs.fake_gymnax import Walk, make_fake
from understudy.envs import NativeEnv, resolve
from understudy.envs.native.classic_control import CartPoleState, PendulumState
from understudy.types import Continuous, Discrete

KEY = jax.random.PRNGKey(0)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", make_fake())


def walk(env, moves):
    """The steps of an episode, compiled as the loops compile it: as one scan."""
    state, first = env.reset(KEY)
    _, steps = jax.lax.scan(
        lambda state, move: (lambda step: (step.state, step))(env.step(state, move, KEY)),
        state,
        jnp.asarray(moves),
    )
    return first, steps


def test_a_goal_terminates_and_a_time_limit_truncates(fake):
    env = resolve("gymnax:Walk-v0")
    assert isinstance(env, NativeEnv) and env.max_steps == 5
    assert env.spec.observation.shape == (2,)
    assert env.spec.action == Continuous((-1.0,), (2.0,), shape=(1,))
    first, steps = walk(env, [[2.0], [2.0], [0.0], [-1.5], [0.0], [0.0]])
    np.testing.assert_array_equal(first, [0, 0])
    assert steps.terminated.tolist() == [False, True, True, False, False, False]
    assert steps.truncated.tolist() == [False, False, False, False, True, True]
    assert steps.reward.tolist() == [2.0, 10.0, 10.0, -1.5, 0.0, 0.0]
    np.testing.assert_array_equal(steps.observation[:, 1], [1, 2, 3, 4, 5, 6])  # no reset


def test_an_end_can_have_both_reasons(fake):
    _, steps = walk(resolve("gymnax:Walk-v0", env_args={"goal": 4.5}), [[1.0]] * 5)
    assert steps.terminated[4] and steps.truncated[4]


def test_parameters_and_arguments(fake):
    env = resolve("gymnax:Walk-v0", env_args={"max_steps_in_episode": 9, "continuous": False})
    assert env.max_steps == 9 and env.spec.action == Discrete(3)
    same = resolve("gymnax:Walk-v0", env_args={"continuous": False, "max_steps_in_episode": 9})
    assert env == same and hash(env) == hash(same)
    assert not env.shareable  # an environment of the user's own may change


def test_observations(fake):
    cells = resolve("gymnax:Cells-v0")
    assert cells.spec.observation.shape == (4,)
    np.testing.assert_array_equal(walk(cells, [[2.0]])[1].observation, [[0, 0, 1, 0]])
    planes = resolve("gymnax:Planes-MinAtar")
    seen = planes.spec.observation
    assert (seen.shape, seen.dtype, seen.is_image) == ((4, 4, 2), "bool", True)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("Wolk-v0", {}, r'no Gymnax environment "Wolk-v0"; did you mean "gymnax:Walk-v0"'),
        ("Walk-v0", {"gaol": 1.0}, r"gaol.*\(goal=3.0, max_steps_in_episode=5\) and \(continuous="),
        ("Walk-v0", {"goal": "x"}, r"goal must be of type float"),
        ("Walk-v0", {"max_steps_in_episode": 0}, r"max_steps_in_episode must be at least 1"),
        ("Pair-v0", {}, r"only one can be observed"),
    ],
)
def test_mistakes_are_one_line(fake, name, args, message):
    with pytest.raises(us.UnderstudyError, match=message) as told:
        resolve(f"gymnax:{name}", env_args=args)
    assert "\n" not in str(told.value)


def test_an_old_version_is_refused(fake, monkeypatch):
    monkeypatch.delattr(Walk, "is_truncated")
    with pytest.raises(us.UnderstudyError, match=r"needs Gymnax 1.0 or newer"):
        resolve("gymnax:Walk-v0")


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(us.UnderstudyError, match=r'pip install "understudy\[gymnax\]"'):
        resolve("gymnax:Walk-v0")


@pytest.mark.agents
def test_an_agent_trains_and_resumes(fake, tmp_path):
    small = dict(hidden_sizes=(8,), batch_size=4, buffer_size=64, start_steps=4, min_buffer_size=8)
    agent = us.SAC("gymnax:Walk-v0", us.SACConfig(**small), env_args={"goal": 1.0})
    agent.train(20, run_dir=tmp_path / "run", progress=False)
    again = us.load(tmp_path / "run")
    assert again.env_args == {"goal": 1.0}
    again.train(10, progress=False)
    agent.train(10, progress=False)
    for ours, theirs in zip(*map(jax.tree.leaves, (agent.state, again.state)), strict=True):
        np.testing.assert_array_equal(ours, theirs)  # bit for bit


# -- the real package ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    return pytest.importorskip("gymnax", reason="needs the extra gymnax")


def test_the_real_cart_and_pole_is_ours(real):
    ours, theirs = resolve("jax:CartPole-v1"), resolve("gymnax:CartPole-v1")
    assert ours.spec.action == theirs.spec.action and ours.max_steps == theirs.max_steps
    state, seen = theirs.reset(KEY)
    own = CartPoleState(*seen, steps=jnp.zeros((), jnp.int32))
    step, own_step = jax.jit(theirs.step), jax.jit(ours.step)
    ended = False
    for number in range(40):
        action = jnp.asarray(number % 3 > 0, jnp.int32)
        found, expected = step(state, action, KEY), own_step(own, action, KEY)
        np.testing.assert_allclose(found.observation, expected.observation, rtol=1e-4, atol=1e-5)
        assert (found.terminated, found.truncated) == (expected.terminated, expected.truncated)
        if not ended:  # beyond the end Gymnax gives no reward
            assert found.reward == expected.reward == 1.0
        ended = ended or bool(found.terminated)
        state, own = found.state, expected.state
    assert ended


def test_the_real_pendulum_is_ours_until_its_time_limit(real):
    ours, theirs = resolve("jax:Pendulum-v1"), resolve("gymnax:Pendulum-v1")
    assert ours.spec.action == theirs.spec.action and ours.max_steps == theirs.max_steps == 200
    state, _ = theirs.reset(KEY)
    own = PendulumState(state.theta, state.theta_dot, jnp.zeros((), jnp.int32))
    step, own_step = jax.jit(theirs.step), jax.jit(ours.step)
    for number in range(200):
        action = jnp.array([np.sin(number)], jnp.float32)
        found, expected = step(state, action, KEY), own_step(own, action, KEY)
        np.testing.assert_allclose(found.observation, expected.observation, rtol=1e-2, atol=1e-2)
        np.testing.assert_allclose(found.reward, expected.reward, rtol=1e-2, atol=1e-2)
        assert not found.terminated and found.truncated == expected.truncated == (number == 199)
        state, own = found.state, expected.state


def test_all_real_environments_step(real):
    refused = []
    for name in real.registered_envs:
        if name == "MNISTBandit-bsuite":  # downloads its data
            continue
        try:
            env = resolve(f"gymnax:{name}")
        except us.UnderstudyError as error:
            refused.append(f"{name}: {error}")
            continue
        action = jnp.zeros(getattr(env.spec.action, "shape", ()), jnp.float32)
        action = action if isinstance(env.spec.action, Continuous) else jnp.zeros((), jnp.int32)
        _, step = jax.eval_shape(partial(walk, env), jnp.stack([action, action]))
        assert step.observation.shape[1:] == env.spec.observation.shape, name
        assert str(step.observation.dtype) == env.spec.observation.dtype, name
    assert refused == []
