"""Tasks that need memory: what is shown, and what is not."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.envs import resolve
from understudy.envs.native import CartPole, Hidden, MinAtarBreakout, Pendulum, Recall
from understudy.types import ArraySpec, Discrete, EnvironmentError

KEY = jnp.zeros(2, jnp.uint32)  # for steps, none of which draws


def walk(env: Recall, key: jax.Array, turn: int):
    """First observation, then (observation, reward, terminated, truncated) of each step."""
    state, first = env.reset(key)

    def advance(state, _):
        step = env.step(state, jnp.int32(turn), KEY)
        return step.state, (step.observation, step.reward, step.terminated, step.truncated)

    return first, jax.lax.scan(advance, state, length=env.max_steps)[1]


@pytest.fixture(scope="module")
def walks():
    env = resolve("jax:Recall-v0")
    keys = jax.random.split(jax.random.PRNGKey(0), 64)
    batch = jax.jit(jax.vmap(walk, in_axes=(None, 0, None)), static_argnums=0)
    return env, [jax.tree.map(np.asarray, batch(env, keys, turn)) for turn in (0, 1)]


def test_the_sign_is_shown_once_and_the_junction_comes_after_the_corridor(walks):
    env, ((first, (seen, *_)), _) = walks
    assert env.corridor >= 20
    signs = first.argmax(axis=1)
    assert set(signs.tolist()) == {0, 1}
    assert (first == np.eye(4)[signs]).all()
    assert (seen[:, : env.corridor] == np.eye(4)[2]).all()
    assert (seen[:, env.corridor :] == np.eye(4)[3]).all()  # the last one after the turn


def test_turning_by_the_sign_pays_and_ends_it(walks):
    env, both = walks
    for turn, (first, (_, rewards, terminated, truncated)) in enumerate(both):
        right = first.argmax(axis=1) == turn
        assert (rewards[:, -1] == np.where(right, 1.0, -1.0)).all()
        assert not rewards[:, :-1].any() and not truncated.any()
        assert terminated[:, -1].all() and not terminated[:, :-1].any()
    assert env.spec.action == Discrete(2) and env.max_steps == env.corridor + 2 == 22


def test_signs_are_drawn_evenly():
    keys = jax.random.split(jax.random.PRNGKey(1), 2_000)
    states, _ = jax.vmap(Recall().reset)(keys)
    assert abs(float(states.sign.mean()) - 0.5) < 0.05


@pytest.mark.parametrize(
    ("name", "whole", "keep", "action"),
    [
        ("jax:Pendulum-P-v1", Pendulum(), [0, 1], jnp.array([1.5])),
        ("jax:CartPole-P-v1", CartPole(), [0, 2], jnp.int32(1)),
    ],
)
def test_positions_are_shown_and_velocities_are_not(name, whole, keep, action):
    env = resolve(name)
    assert env.spec.observation == ArraySpec((2,))
    assert (env.spec.action, env.max_steps) == (whole.spec.action, whole.max_steps)
    (state, seen), (same, everything) = (one.reset(jax.random.PRNGKey(4)) for one in (env, whole))
    assert (seen == everything[jnp.array(keep)]).all()
    step, reference = env.step(state, action, KEY), whole.step(same, action, KEY)
    assert (step.observation == reference.observation[jnp.array(keep)]).all()
    assert (step.reward, step.terminated) == (reference.reward, reference.terminated)


def test_what_cannot_be_kept_is_refused():
    for env, keep in ((Pendulum(), (3,)), (Pendulum(), ()), (MinAtarBreakout(), (0,))):
        with pytest.raises(EnvironmentError, match=r"keep=\(.*\) does not fit .* of shape \("):
            Hidden(env, keep)


def test_gymnasium_hides_entries_too():
    """The line of the documentation."""
    whole = gymnasium.make("Pendulum-v1")
    space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    env = gymnasium.wrappers.TransformObservation(whole, lambda seen: seen[:2], space)
    assert resolve(env).spec.observation == Hidden(Pendulum(), (0, 1)).spec.observation
    observation, _ = env.reset(seed=0)
    assert observation.shape == (2,)
