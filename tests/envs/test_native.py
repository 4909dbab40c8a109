"""Native environments equal Gymnasium's; our own equals numbers worked by hand.

Gymnasium plays whole episodes, its state rounded to float32 before each step; our step then runs
on all of those (state, action) pairs in one compiled call. Chaos cannot amplify rounding that way,
and a disagreement points at its step.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from understudy.envs.base import NativeEnv, NativeStep
from understudy.envs.native import NATIVE
from understudy.envs.native.classic_control import (
    AcrobotState,
    CartPoleState,
    MountainCarState,
    PendulumState,
    wrap_angle,
)
from understudy.envs.native.own_tasks import PointNavigation, PointNavigationState
from understudy.types import Continuous, Discrete

KEY = jnp.zeros(2, jnp.uint32)  # for steps, none of which draws


class Classic(NamedTuple):
    """How one of Gymnasium's environments is compared with ours."""

    state: Callable[..., Any]  # from the numbers of `unwrapped.state`, then the step counter
    clever: Callable[[np.ndarray], float]  # a controller that sees what random actions do not
    start: list[tuple[float, float]]  # Gymnasium's reset range of each of those numbers
    reach: list[tuple[float, float]]  # where they can be at all, and a little beyond
    final_push: tuple[list[float], float] | None  # state and action that terminate
    free_steps: int  # that float32 and float64 agree for, without synchronizing
    tolerance: float  # of one step


CLASSICS = {
    "Pendulum-v1": Classic(
        state=PendulumState,
        clever=lambda o: 2.0 * np.sign(o[2]),  # spins it: speed limit and many turns
        start=[(-math.pi, math.pi), (-1, 1)],
        reach=[(-math.pi, math.pi), (-8, 8)],
        final_push=None,
        free_steps=50,
        tolerance=2e-6,
    ),
    "CartPole-v1": Classic(
        state=CartPoleState,
        clever=lambda o: float(0.1 * o[0] + 0.3 * o[1] + 3 * o[2] + 0.8 * o[3] > 0),  # balances
        start=[(-0.05, 0.05)] * 4,
        reach=[(-2.5, 2.5), (-3, 3), (-0.25, 0.25), (-3, 3)],
        final_push=([0.0, 0.0, 0.2, 1.0], 1.0),
        free_steps=100,
        tolerance=1e-6,
    ),
    "MountainCarContinuous-v0": Classic(
        state=MountainCarState,
        clever=lambda o: np.sign(o[1]),  # pumps energy up to the goal
        start=[(-0.6, -0.4), (0, 0)],
        reach=[(-1.2, 0.6), (-0.07, 0.07)],
        final_push=([0.44, 0.06], 1.0),
        free_steps=999,
        tolerance=2e-7,
    ),
    "Acrobot-v1": Classic(
        state=AcrobotState,
        clever=lambda o: 2.0 if o[5] > 0 else 0.0,  # pumps energy
        start=[(-0.1, 0.1)] * 4,
        reach=[(-math.pi, math.pi)] * 2
        + [(-4 * math.pi, 4 * math.pi), (-9 * math.pi, 9 * math.pi)],
        final_push=([2.0, 0.0, 3.0, 0.0], 2.0),
        free_steps=30,
        tolerance=1e-5,
    ),
}


@functools.cache
def native(name: str) -> NativeEnv:
    return NATIVE[name]()


@functools.cache
def steps_of(name: str) -> Callable[..., NativeStep]:
    return jax.jit(jax.vmap(native(name).step, in_axes=(0, 0, None)))


@functools.cache
def episodes_of(name: str) -> Callable[..., NativeStep]:
    """(states, actions [time, episode]) -> steps [time, episode], whatever the flags say."""

    def advance(state: Any, action: jax.Array) -> tuple[Any, NativeStep]:
        step = jax.vmap(native(name).step, in_axes=(0, 0, None))(state, action, KEY)
        return step.state, step

    return jax.jit(lambda state, actions: jax.lax.scan(advance, state, actions)[1])


@functools.cache
def resets_of(name: str, count: int = 2000) -> tuple[Any, jax.Array]:
    keys = jax.random.split(jax.random.PRNGKey(7), count)
    return jax.jit(jax.vmap(native(name).reset))(keys)


def to_actions(name: str, actions: Any) -> jax.Array:
    """Numbers [...] as what our step receives."""
    if isinstance(native(name).spec.action, Discrete):
        return jnp.asarray(actions, jnp.int32)
    return jnp.asarray(actions, jnp.float32)[..., None]


def to_states(name: str, numbers: np.ndarray, steps: Any) -> Any:
    """Gymnasium states [batch, number] as ours."""
    columns = np.array(numbers, np.float64).T
    if name == "Pendulum-v1":  # theirs counts turns, up to 80 radians; ours keeps the digits
        columns[0] = np.angle(np.exp(1j * columns[0]))
    return CLASSICS[name].state(*jnp.float32(columns), jnp.asarray(steps, jnp.int32))


class Reference(gymnasium.Wrapper):
    """Gymnasium's environment with its state rounded to float32 before every step."""

    def __init__(self, name: str):
        super().__init__(gymnasium.make(name, disable_env_checker=True))
        self.discrete = isinstance(self.action_space, gymnasium.spaces.Discrete)

    def start(self, seed: int) -> np.ndarray:
        self.reset(seed=seed)
        return self.unwrapped.state

    def synchronize(self, numbers: Any) -> np.ndarray:
        rounded = np.asarray(numbers, np.float32)
        self.unwrapped.state = rounded.astype(np.asarray(self.unwrapped.state).dtype)
        return rounded

    def step(self, action: float) -> tuple:
        return self.env.step(int(action) if self.discrete else np.array([action], np.float32))

    def random_action(self, rng: np.random.Generator) -> float:
        if self.discrete:
            return float(rng.integers(self.action_space.n))
        # Somewhat beyond the bounds, to compare the clipping as well.
        return float(np.float32(rng.uniform(-1.2, 1.2) * self.action_space.high[0]))


class Played(NamedTuple):
    """Gymnasium's account of many steps."""

    numbers: np.ndarray  # [step, number] before the step
    count: np.ndarray  # [step] steps taken before
    action: np.ndarray
    observation: np.ndarray  # after the step
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


@functools.cache
def played(name: str) -> Played:
    """Six whole episodes: three random, three by the clever controller with a little noise."""
    rows, reference = [], Reference(name)
    for seed in range(6):
        observation, _ = reference.reset(seed=seed)
        rng, count, done = np.random.default_rng(seed), 0, False
        while not done:
            numbers = reference.synchronize(reference.unwrapped.state)
            clever = seed % 2 and rng.random() > 0.02
            action = CLASSICS[name].clever(observation) if clever else reference.random_action(rng)
            observation, reward, terminated, truncated, _ = reference.step(action)
            rows.append((numbers, count, action, observation, reward, terminated, truncated))
            count, done = count + 1, terminated or truncated
    return Played(*map(np.array, zip(*rows, strict=True)))


classic = pytest.mark.parametrize("name", CLASSICS)
every = pytest.mark.parametrize("name", NATIVE)


@classic
def test_every_step_equals_gymnasium(name: str):
    theirs = played(name)
    states = to_states(name, theirs.numbers, theirs.count)
    ours = steps_of(name)(states, to_actions(name, theirs.action), KEY)

    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    close(ours.observation, theirs.observation, atol=CLASSICS[name].tolerance)
    close(ours.reward, theirs.reward, atol=CLASSICS[name].tolerance)
    np.testing.assert_array_equal(ours.terminated, theirs.terminated)
    np.testing.assert_array_equal(ours.truncated, theirs.truncated)
    np.testing.assert_array_equal(ours.state.steps, theirs.count + 1)


@classic
def test_the_played_episodes_end_in_every_way(name: str):
    """Otherwise the comparison above would prove less than it says."""
    theirs = played(name)
    assert theirs.truncated.any()
    assert theirs.terminated.any() == (name != "Pendulum-v1")


@classic
def test_steps_from_anywhere_equal_gymnasium(name: str):
    """Also where episodes seldom go: speed limits, both ends of every track."""
    reference, rng = Reference(name), np.random.default_rng(5)
    low, high = np.array(CLASSICS[name].reach).T
    scattered = rng.uniform(low, high, (400, len(low))).astype(np.float32)
    actions = [reference.random_action(rng) for _ in scattered]
    steps = []
    for numbers, action in zip(scattered, actions, strict=True):
        reference.reset(seed=0)
        reference.synchronize(numbers)
        steps.append(reference.step(action)[:3])
    observation, reward, terminated = map(np.array, zip(*steps, strict=True))

    # In float64: at 28 rad/s one of Acrobot's steps magnifies float32 rounding a thousandfold,
    # and here it is the equations that are compared.
    states, actions = to_states(name, scattered, [0] * 400), to_actions(name, actions)
    with jax.enable_x64(True):
        double = jax.tree.map(lambda x: x.astype(float) if x.dtype == np.float32 else x, states)
        ours = jax.device_get(steps_of(name)(double, actions, KEY))
    np.testing.assert_allclose(ours.observation, observation, rtol=2e-7, atol=2e-7)
    np.testing.assert_allclose(ours.reward, reward, rtol=2e-7, atol=2e-7)
    np.testing.assert_array_equal(ours.terminated, terminated)


@classic
def test_free_running_episode_equals_gymnasium(name: str):
    """Our own state carries the episode: nothing is synchronized after the start."""
    reference, rng = Reference(name), np.random.default_rng(3)
    observation, _ = reference.reset(seed=11)
    numbers = reference.synchronize(reference.unwrapped.state)
    actions, observations = [], []
    for _ in range(CLASSICS[name].free_steps):
        # A controller near its switching point would answer to rounding: let chance act, but
        # for the one task in which chance fails at once.
        balance = name == "CartPole-v1"
        actions.append(
            CLASSICS[name].clever(observation) if balance else reference.random_action(rng)
        )
        observation, *_ = reference.step(actions[-1])
        observations.append(observation)
    ours = episodes_of(name)(
        to_states(name, numbers[None], [0]), to_actions(name, np.array(actions)[:, None])
    )
    np.testing.assert_allclose(ours.observation[:, 0], np.array(observations), atol=1e-3)


@pytest.mark.parametrize("name", [name for name in CLASSICS if CLASSICS[name].final_push])
def test_terminated_and_truncated_can_both_be_true(name: str):
    numbers, action = CLASSICS[name].final_push
    reference = Reference(name)
    reference.reset(seed=0)
    reference.synchronize(numbers)
    reference.env._elapsed_steps = native(name).max_steps - 1  # TimeLimit's own counter
    *_, terminated, truncated, _ = reference.step(action)
    assert terminated
    assert truncated

    last_but_one = native(name).max_steps - 2
    states = to_states(name, np.array([numbers, numbers]), [last_but_one, last_but_one + 1])
    ours = steps_of(name)(states, to_actions(name, [action, action]), KEY)
    np.testing.assert_array_equal(ours.terminated, [True, True])
    np.testing.assert_array_equal(ours.truncated, [False, True])


@classic
def test_spec_and_time_limit_are_those_registered(name: str):
    theirs, ours = gymnasium.make(name), native(name)
    assert theirs.spec.max_episode_steps == ours.max_steps
    assert theirs.observation_space.shape == ours.spec.observation.shape
    assert theirs.observation_space.dtype == ours.spec.observation.dtype
    if isinstance(ours.spec.action, Discrete):
        assert ours.spec.action == Discrete(int(theirs.action_space.n))
    else:
        low, high = theirs.action_space.low, theirs.action_space.high
        assert ours.spec.action == Continuous(
            tuple(low.tolist()), tuple(high.tolist()), theirs.action_space.shape
        )


@classic
def test_resets_are_distributed_as_gymnasium(name: str):
    states, _ = resets_of(name)
    reference = Reference(name)
    theirs = np.array([reference.start(seed) for seed in range(300)])
    ours = np.array(states[:-1]).T
    assert not np.array(states.steps).any()
    for column, (low, high) in enumerate(CLASSICS[name].start):
        # The bounds themselves are float32 numbers, one rounding away at most.
        assert (ours[:, column] >= np.float32(low)).all()
        assert (ours[:, column] <= np.float32(high)).all()
        if low == high:
            continue
        uniform = stats.uniform(low, high - low)
        assert stats.kstest(ours[:, column], uniform.cdf).pvalue > 0.01
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 0.01
    varying = [c for c, (low, high) in enumerate(CLASSICS[name].start) if low < high]
    correlation = np.atleast_2d(np.corrcoef(ours[:, varying].T))
    np.testing.assert_allclose(correlation, np.eye(len(varying)), atol=0.08)


@classic
def test_first_observation_equals_gymnasium(name: str):
    states, observations = resets_of(name)
    reference = Reference(name)
    reference.reset(seed=0)
    for row in range(5):
        numbers = reference.synchronize(np.array(states[:-1])[:, row])
        look = {"Pendulum-v1": "_get_obs", "Acrobot-v1": "_get_ob"}.get(name)
        expected = getattr(reference.unwrapped, look)() if look else numbers
        np.testing.assert_allclose(observations[row], expected, atol=1e-6)


@every
def test_states_keep_their_types_so_that_a_scan_can_carry_them(name: str):
    env = native(name)
    state, observation = jax.eval_shape(env.reset, KEY)
    if isinstance(env.spec.action, Discrete):
        action = jnp.zeros((), jnp.int32)
    else:
        action = jnp.zeros(env.spec.action.size, jnp.float32)
    step = jax.eval_shape(env.step, state, action, KEY)
    assert step.state == state  # shapes, dtypes and weak types
    for seen in (observation, step.observation):
        wanted = (env.spec.observation.shape, env.spec.observation.dtype)
        assert (seen.shape, seen.dtype) == wanted
    assert (step.reward.shape, step.reward.dtype) == ((), jnp.float32)
    assert (step.terminated.shape, step.terminated.dtype) == ((), bool)
    assert (step.truncated.shape, step.truncated.dtype) == ((), bool)


@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCarContinuous-v0", "PointNavigation-v0"])
def test_a_broken_action_cannot_outlive_its_episode(name: str):
    """NaN is not hidden, the clock runs on, and the neighbor in the batch never notices."""
    env = native(name)
    (state, _), last = resets_of(name), env.max_steps - 1
    state = jax.tree.map(lambda x: x[:2], state)._replace(steps=jnp.full(2, last, jnp.int32))
    actions = jnp.zeros((2, env.spec.action.size)).at[0].set(jnp.nan)
    step = steps_of(name)(state, actions, KEY)
    assert jnp.isnan(step.reward[0])
    assert step.truncated.all()
    assert jnp.isfinite(step.observation[1]).all()
    assert jnp.isfinite(step.reward[1])


@every
def test_environments_are_constants(name: str):
    """Equal settings are equal and hashable: a native environment may be a static argument."""
    assert NATIVE[name]() == native(name)
    assert hash(NATIVE[name]()) == hash(native(name))


def test_wrapped_angles():
    angles = jnp.array([0.5, -3.0, 3.5, -3.5, 7.0, 80.0])
    expected = [0.5, -3.0, 3.5 - 2 * math.pi, 2 * math.pi - 3.5, 7 - 2 * math.pi, 80 - 26 * math.pi]
    np.testing.assert_allclose(jax.vmap(wrap_angle)(angles), expected, atol=1e-5)


def walk(positions: list[list[float]], actions: list[list[float]]) -> NativeStep:
    state = PointNavigationState(jnp.array(positions), jnp.zeros(len(positions), jnp.int32))
    return steps_of("PointNavigation-v0")(state, jnp.array(actions), KEY)


def test_point_starts_in_the_same_place():
    state, observation = resets_of("PointNavigation-v0")
    np.testing.assert_array_equal(state.position, np.tile([0.5, 0.125], (2000, 1)))
    np.testing.assert_array_equal(observation, np.tile([0.0, -0.75], (2000, 1)))


def test_point_moves_by_hand_worked_steps():
    step = walk(
        [[0.5, 0.125], [0.5, 0.125], [0.2, 0.475], [0.47, 0.835]],
        [[1.0, 0.0], [-0.5, 3.0], [0.4, -1.0], [0.6, 0.8]],  # the 3 counts as 1
    )
    positions = [[0.55, 0.125], [0.475, 0.175], [0.22, 0.425], [0.5, 0.875]]
    np.testing.assert_allclose(step.state.position, positions, atol=1e-6)
    observations = [[0.1, -0.75], [-0.05, -0.65], [-0.56, -0.15], [0.0, 0.75]]
    np.testing.assert_allclose(step.observation, observations, atol=1e-6)
    # Distances to (0.5, 0.875): legs (0.05, 0.75), (0.025, 0.7), (0.28, 0.45), (0, 0).
    rewards = [-0.7516648, -0.7004463, -0.53, 0.0]
    np.testing.assert_allclose(step.reward, rewards, atol=2e-6)
    assert not step.terminated.any()
    place = PointNavigation().descriptors["position"]
    described = jax.vmap(place.of)(step.state, step.observation)
    np.testing.assert_array_equal(described, step.state.position)


def test_point_stays_in_the_square():
    step = walk(
        [[0.02, 0.3], [0.98, 0.99], [0.3, 0.01]],
        [[-1.0, 0.0], [1.0, 1.0], [0.0, -1.0]],
    )
    np.testing.assert_allclose(step.state.position, [[0.0, 0.3], [1.0, 1.0], [0.3, 0.0]], atol=1e-7)


def test_point_slides_along_the_wall_and_passes_its_ends():
    from_action_to = [
        ([0.5, 0.48], [0.0, 1.0], [0.5, 0.48]),  # straight up: blocked
        ([0.5, 0.48], [1.0, 1.0], [0.55, 0.48]),  # up and right: slides
        ([0.3, 0.52], [-1.0, -1.0], [0.25, 0.52]),  # from above: the same
        ([0.05, 0.48], [0.0, 1.0], [0.05, 0.53]),  # left gap
        ([0.9, 0.52], [0.0, -1.0], [0.9, 0.47]),  # right gap, downwards
        ([0.86, 0.48], [1.0, 1.0], [0.91, 0.53]),  # round the corner: sideways comes first
        ([0.1, 0.5], [1.0, 0.0], [0.15, 0.5]),  # at the wall's own height: counts as above,
        ([0.15, 0.5], [0.0, -1.0], [0.15, 0.5]),  # so that it cannot fall through
        ([0.15, 0.5], [0.0, 1.0], [0.15, 0.55]),  # but can rise
    ]
    positions, actions, expected = map(list, zip(*from_action_to, strict=True))
    np.testing.assert_allclose(walk(positions, actions).state.position, expected, atol=1e-6)


def test_point_is_deceived_by_the_straight_way():
    """Both walk at full speed and only one of them looks for a gap first."""
    straight = np.tile([0.0, 1.0], (100, 1))
    detour = straight.copy()
    detour[:8] = [1.0, 1.0]  # to x = 0.9, under the right gap
    detour[15:23] = [-1.0, 0.0]
    detour[23:] = [0.0, 0.0]
    actions = jnp.asarray(np.stack([straight, detour], axis=1), jnp.float32)
    state = jax.tree.map(lambda x: x[:2], resets_of("PointNavigation-v0")[0])
    steps = episodes_of("PointNavigation-v0")(state, actions)

    np.testing.assert_allclose(steps.state.position[-1], [[0.5, 0.475], [0.5, 0.875]], atol=1e-5)
    assert steps.reward[:, 0].sum() < -40
    assert steps.reward[:, 1].sum() > -12
    np.testing.assert_array_equal(steps.truncated[:, 0], np.arange(1, 101) == 100)


def test_point_at_the_goal_has_a_finite_gradient():
    def reward(action: jax.Array) -> jax.Array:
        at_goal = PointNavigationState(jnp.array([0.5, 0.875]), jnp.zeros((), jnp.int32))
        return PointNavigation().step(at_goal, action, KEY).reward

    assert jnp.isfinite(jax.grad(reward)(jnp.zeros(2))).all()
