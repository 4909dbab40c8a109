"""Our Breakout against MinAtar's own, given the same random draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from minatar import Environment

from understudy.envs import check, resolve
from understudy.envs.native.minatar_breakout import MinAtarBreakout
from understudy.types import ArraySpec, Discrete

GAME = MinAtarBreakout()
STEPS = 600
ACTIONS = ["n", "l", "r"]


class Draws:
    """In place of the package's generator: says what ours drew."""

    def __init__(self, right: bool, uniforms: np.ndarray):
        self._right, self._uniforms = right, iter(uniforms.tolist())

    def randint(self, _: int) -> int:
        return int(self._right)

    def rand(self) -> float:
        return next(self._uniforms)


def chase(planes: jax.Array) -> jax.Array:
    """Below where the ball goes next: breaks many bricks."""
    column = functools.partial(jnp.argmax, axis=-1)
    paddle, ball, trail = (column(planes[:, :, plane].any(axis=0)) for plane in range(3))
    aim = jnp.clip(2 * ball - trail, 0, 9)
    return jnp.where(aim < paddle, 1, jnp.where(aim > paddle, 2, 0)).astype(jnp.int32)


@jax.jit
def play(key):
    """One episode, continued after its end as if nothing had happened."""
    start, keys = jax.random.split(key, STEPS + 1)[0], jax.random.split(key, STEPS + 1)[1:]
    state, first = GAME.reset(start)

    def advance(carry, key):
        state, planes, time = carry
        random, step_key = jax.random.split(key)
        blunder = jax.random.uniform(random) < 0.02
        action = jnp.where(blunder, jax.random.randint(random, (), 0, 3), chase(planes))
        step = GAME.step(state, action, step_key)
        record = (action, jax.random.uniform(step_key), step)
        return (step.state, step.observation, time + 1), record

    return state, first, jax.lax.scan(advance, (state, first, 0), keys)[1]


@pytest.fixture(scope="module")
def episodes():
    keys = jax.random.split(jax.random.PRNGKey(3), 64)
    return jax.tree.map(np.asarray, jax.vmap(play)(keys))


def test_every_step_is_minatars(episodes):
    starts, firsts, (actions, uniforms, steps) = episodes
    compared, points, cleared, ended = 0, 0, 0, 0
    for episode in range(len(firsts)):
        theirs = Environment("breakout")
        draws = Draws(starts.x[episode] == 9, uniforms[episode])
        theirs.random = theirs.env.random = draws
        theirs.reset()
        assert (theirs.state() == firsts[episode]).all()
        for time in range(STEPS):
            action = theirs.env.action_map.index(ACTIONS[actions[episode, time]])
            reward, terminal = theirs.act(action)
            assert reward == steps.reward[episode, time]
            assert terminal == steps.terminated[episode, time]
            assert (theirs.state() == steps.observation[episode, time]).all(), (episode, time)
            compared += 1
            points += reward
            if terminal:
                ended += 1
                break
        cleared += steps.reward[episode, : time + 1].sum() > 30
    # Enough has been seen: long games, lost ones, and walls that were built again.
    assert compared > 3_000 and points > 300 and cleared and ended, (compared, points, cleared)


def test_episodes_begin_on_either_side(episodes):
    starts, *_ = episodes
    assert set(starts.x.tolist()) == {0, 9}


def test_actions_stick_as_often_as_they_should(episodes):
    _, _, (actions, uniforms, steps) = episodes
    repeated = uniforms[:, 1:] < np.float32(0.1)
    taken = np.where(repeated, steps.state.last_action[:, :-1], actions[:, 1:])
    assert (taken == steps.state.last_action[:, 1:]).all()
    assert abs(repeated.mean() - 0.1) < 5 * np.sqrt(0.09 / repeated.size)


def test_spec_and_time_limit():
    game = resolve("jax:MinAtar-Breakout-v1")
    assert game.spec.observation == ArraySpec((10, 10, 4), "bool")
    assert game.spec.observation.is_image and game.spec.action == Discrete(3)
    state, planes = game.reset(jax.random.PRNGKey(0))
    assert planes.dtype == bool and planes.shape == (10, 10, 4)
    for played, truncated in ((4_998, False), (4_999, True)):
        late = state._replace(steps=jnp.int32(played))
        step = game.step(late, jnp.int32(0), jax.random.PRNGKey(1))
        assert bool(step.truncated) == truncated and not step.terminated


@pytest.mark.parametrize("name", ["MinAtar/Breakout-v1", "MinAtar/SpaceInvaders-v0"])
def test_the_packages_games_by_their_ids(name):
    """`check` needs episodes that follow from their seeds alone: MinAtar's own do not."""
    report = check(name, steps=300)
    assert report.ok, report
    assert "time limit of 5000 steps" in str(report)
    source = resolve(name)
    assert source.name == name and source.spec.observation.dtype == "bool"


def test_both_ways_to_the_game_agree():
    assert resolve("MinAtar/Breakout-v1").spec == resolve("jax:MinAtar-Breakout-v1").spec
