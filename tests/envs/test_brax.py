"""Brax's environments, as Brax steps them, with an end for each of the two reasons.

Compiling Brax takes seconds: all that is stepped here goes through one program of `Hoppers`.
"""

import functools
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from understudy.envs import Brax, brax, resolve
from understudy.envs.brax_envs import BraxState, quiet_brax

pytest.importorskip("brax", reason="needs the extra brax")
pytestmark = pytest.mark.mujoco


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


LENGTH = 100  # steps of one call of the compiled program
LIMIT = 150
KEYS = jax.random.split(jax.random.PRNGKey(0), 2)


class Hoppers:
    """Two episodes side by side."""

    def __init__(self):
        self.env = brax("hopper", max_steps=LIMIT)
        feet = self.env.descriptors["feet"].of

        def step(state: Any, action: Any) -> tuple[Any, Any]:
            after = self.env.step(state, action, KEYS[0])
            return after.state, (after, feet(after.state, after.observation))

        self.begin = jax.jit(jax.vmap(self.env.reset))
        self._play = jax.jit(jax.vmap(lambda state, actions: jax.lax.scan(step, state, actions)))

    def play(self, state: Any, actions: Any) -> tuple[Any, Any, Any]:
        """The last state, and of every step [2, LENGTH] what it gave and whether feet touched."""
        state, (steps, feet) = self._play(state, actions)
        return state, steps, np.asarray(feet)


@pytest.fixture(scope="module")
def hoppers() -> Hoppers:
    return Hoppers()


STILL = jnp.zeros((2, LENGTH, 3))
WILD = jax.random.uniform(KEYS[0], (2, LENGTH, 3), minval=-1.0, maxval=1.0)


def hopper_of_brax(key: Any, actions: Any) -> Any:
    """All states of an episode stepped by Brax's own environment."""
    with quiet_brax():
        from brax.envs import get_environment

        env = get_environment("hopper", backend="spring")

        def step(state: Any, action: Any) -> tuple[Any, Any]:
            state = env.step(state, action)
            return state, state

        return jax.jit(lambda key: jax.lax.scan(step, env.reset(key), actions)[1])(key)


def test_steps_are_brax_s_own(hoppers):
    _, steps, _ = hoppers.play(hoppers.begin(KEYS)[0], WILD)
    ours = jax.tree.map(lambda leaf: leaf[0], steps)
    theirs = hopper_of_brax(KEYS[0], WILD[0])
    pairs = [
        (ours.state.physics, theirs.pipeline_state),
        (ours.observation, theirs.obs),
        (ours.reward, theirs.reward),
    ]
    for got, wanted in pairs:
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            # The two programs round differently, and contacts amplify it in time.
            np.testing.assert_allclose(one[:20], other[:20], rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(ours.terminated, theirs.done != 0)
    assert ours.terminated.any() and not ours.terminated[0]


def test_the_same_key_gives_the_same_episode(hoppers):
    once, again = (hoppers.play(hoppers.begin(KEYS)[0], WILD)[1] for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, once, again)
    assert not np.array_equal(once.observation[0, 0], once.observation[1, 0])


def test_the_time_limit_truncates_and_feet_at_rest_touch_the_floor(hoppers):
    state, early, feet = hoppers.play(hoppers.begin(KEYS)[0], STILL)
    assert not feet[:, 0].any()  # it begins above the floor
    state, late, feet = hoppers.play(state, STILL)
    truncated = np.concatenate([early.truncated, late.truncated], axis=1)
    np.testing.assert_array_equal(truncated[0], np.arange(1, 2 * LENGTH + 1) >= LIMIT)
    assert not (early.terminated.any() or late.terminated.any())
    assert hoppers.play(state, STILL)[2].all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hopper", slow("halfcheetah"), slow("walker2d"), slow("ant")])
def test_feet_are_where_brax_finds_them(name):
    env = brax(name, contact_distance=0.0)
    found, touched = jax.jit(functools.partial(_contacts, env))(jax.random.PRNGKey(3))
    np.testing.assert_array_equal(found, touched)
    assert 0 < touched.mean() < 1
    assert touched.any(axis=0).all(), "a foot never touched"


def _contacts(env: Brax, key: Any) -> tuple[Any, Any]:
    """Contacts of the feet, [bodies, feet], of bodies thrown about near the floor: Brax's and
    ours."""
    with quiet_brax():
        from brax import contact, kinematics

        system = env.brax_env.sys
        ids = [system.mj_model.geom(name).id for name in _feet_geoms(env)]

        def one(key: Any) -> tuple[Any, Any]:
            turn, fall = jax.random.split(key)
            q = system.init_q + jax.random.uniform(
                turn, (system.q_size(),), minval=-0.4, maxval=0.4
            )
            height = 2 if env.name == "ant" else 1
            q = q.at[height].add(jax.random.uniform(fall, minval=-0.7, maxval=0.2))
            x, _ = kinematics.forward(system, q, jnp.zeros(system.qd_size()))
            found = contact.get(system, x)
            near = (found.geom2[None] == jnp.array(ids)[:, None]) & (found.dist <= 0.0)
            state = BraxState(SimpleNamespace(x=x), {}, jnp.int32(0))
            return near.any(axis=1), env.descriptors["feet"].of(state, q) > 0

        return jax.vmap(one)(jax.random.split(key, 64))


def _feet_geoms(env: Brax) -> list[str]:
    """Whatever of a foot may touch the floor."""
    model = env.brax_env.sys.mj_model
    names = [model.geom(place).name for place in range(model.ngeom)]
    return [name for name in names if "foot" in name and model.geom(name).contype[0]]


@pytest.mark.parametrize(
    "backend", ["spring", slow("positional"), slow("generalized"), slow("mjx")]
)
def test_a_loop_can_carry_the_state(backend):
    env = resolve(f"brax:halfcheetah/{backend}")
    assert isinstance(env, Brax) and env.backend == backend
    state, _ = jax.eval_shape(env.reset, KEYS[0])
    after = jax.eval_shape(env.step, state, jnp.zeros(6), KEYS[0])
    kinds = [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)
        for tree in (state, after.state)
    ]
    assert kinds[0] == kinds[1]
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, after)))
    feet = env.descriptors["feet"]
    assert jax.eval_shape(feet.of, state, after.observation).shape == (feet.size,)


@pytest.mark.slow
def test_info_that_a_step_needs_is_kept():
    env = resolve("brax:inverted_pendulum")
    state, _ = jax.eval_shape(env.reset, KEYS[0])
    after = jax.eval_shape(env.step, state, jnp.zeros(1), KEYS[0])
    assert jax.tree.structure(state) == jax.tree.structure(after.state)
    assert after.reward.dtype == jnp.float32 and not after.reward.weak_type


def test_what_is_seen_and_done():
    env = resolve("brax:ant")
    assert env == brax("ant", backend="spring", max_steps=1000)
    observed = jax.eval_shape(env.reset, KEYS[0])[1]
    assert env.spec.observation.shape == observed.shape
    bounds = np.stack([env.spec.action.low, env.spec.action.high], axis=-1)
    np.testing.assert_array_equal(bounds, env.brax_env.sys.actuator.ctrl_range)


def test_positions_are_the_torso_s(hoppers):
    ant = brax("ant", max_steps=250)
    position = ant.descriptors["position"]
    assert position.over == "last" and position.axis_names == ("x", "y")
    np.testing.assert_allclose([position.low, position.high], [(-30.0, -30.0), (30.0, 30.0)])
    hop = hoppers.env.descriptors["position"]
    state, observation = hoppers.begin(KEYS)
    place = jax.vmap(hop.of)(state, observation)
    np.testing.assert_array_equal(place, state.physics.x.pos[:, 0, :1])
    assert next(iter(ant.descriptors)) == "feet"
    assert resolve("brax:reacher").descriptors == {}


def test_options_reach_brax():
    still = brax("hopper", options={"reset_noise_scale": 0.0})
    state = jax.jit(still.reset)(KEYS[0])[0]
    np.testing.assert_allclose(state.physics.q, still.brax_env.sys.init_q, atol=1e-6)
    with pytest.raises(us.UnderstudyError, match=r'"brax:hopper/spring" cannot be made.*nois'):
        brax("hopper", options={"noise": 0.0})


@pytest.mark.slow
def test_td3_learns_on_it():
    config = us.TD3Config(hidden_sizes=(8,), batch_size=8, start_steps=8, min_buffer_size=8)
    agent = us.TD3(brax("inverted_pendulum", max_steps=10), config, num_seeds=2)
    agent.train(16, progress=False)
    assert 0.0 < agent.evaluate()["mean"] <= 10.0  # it is paid 1 a step


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("brax:HalfCheeta", r'no Brax environment "HalfCheeta"; did you mean "brax:halfcheetah"\?'),
        ("brax:ant/sprint", r'no backend "sprint"; did you mean "brax:ant/spring"\?'),
        ("brax:swimmer", r'"brax:swimmer/spring" cannot be made: .*[Uu]nsupported backend'),
    ],
)
def test_what_brax_does_not_have(name, line):
    with pytest.raises(us.UnderstudyError, match=line):
        resolve(name)


def test_an_episode_has_a_step(hoppers):
    with pytest.raises(us.UnderstudyError, match="max_steps must be at least 1, got 0"):
        replace(hoppers.env, max_steps=0)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax.envs", None)
    line = r'^"brax:ant" needs a package that is missing: pip install "understudy\[brax\]"$'
    with pytest.raises(us.UnderstudyError, match=line):
        resolve("brax:ant")


@pytest.mark.slow
@pytest.mark.processes
def test_brax_comes_late_andquiet_brax(tmp_path):
    script = """
import sys
import understudy.envs.make
assert "brax" not in sys.modules and "mujoco" not in sys.modules
understudy.envs.make.resolve("brax:halfcheetah")
"""
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())


def test_arguments():
    env = resolve("brax:ant", env_args={"max_steps": 7, "ctrl_cost_weight": 0.1})
    assert env == brax("ant", max_steps=7, options={"ctrl_cost_weight": 0.1})
    assert resolve("brax:ant/positional", env_args={"max_steps": 7}).backend == "positional"
    with pytest.raises(us.UnderstudyError, match=r"env_args wrong=1.*ctrl_cost_weight"):
        resolve("brax:ant", env_args={"wrong": 1})
