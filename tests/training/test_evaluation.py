"""Evaluation counts every episode once, whatever its length, and repeats itself exactly."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.algorithms import find
from understudy.algorithms.base import Algorithm
from understudy.envs.base import NativeEnv, NativeStep
from understudy.envs.make import resolve
from understudy.envs.seeds import SELECTION, EpisodeSeeds
from understudy.training.factory import make_episode_runner, plan_selection
from understudy.training.trainer import TrainingSetup
from understudy.types import ArraySpec, Continuous, Spec

SPEC = Spec(ArraySpec((2,)), Continuous((-1.0,), (3.0,), (1,)))
LONGEST = 17


class Same(Algorithm):
    """Always does what its policy says, plus a hundredth per step since the episode began."""

    name, supported_actions = "same", (Continuous,)
    config_class = find("sac").config_class

    needs = property(lambda self: self.config.needs)

    def act(self, policy, memory, observation, first, key, explore):
        assert explore is False, "evaluation is deterministic"
        memory = jnp.where(first, 0, memory + 1)
        action = jnp.broadcast_to(policy, (len(observation), 1)) + 0.01 * memory[:, None]
        return action, memory, {}

    def memory(self, policy, num_envs):
        return jnp.full(num_envs, 50, jnp.int32)  # never read: every episode begins with `first`

    def _unused(self, *arguments):
        raise AssertionError("evaluation only acts")

    init_params = optimizers = policy = gradients = explore = _unused


class Evaluator:
    """Evaluates `members` policies on the episodes that select the best one."""

    def __init__(self, source, members, episodes, seed=0):
        setup = TrainingSetup(Same(), source.spec, seed, members, 1)
        self.plan = plan_selection(setup, source, episodes)
        self.runner = make_episode_runner(self.plan, source)

    def __call__(self, *values):
        """Returns [members, episodes] of these policies."""
        results = self.runner.run(jnp.array(values, jnp.float32))
        return self.plan.by_policy(results).returns


def seeds_of(members, episodes, seed=0):
    return EpisodeSeeds(seed, episodes, members, SELECTION)


class Seeded(gymnasium.Env):
    """An episode's length is its seed's; the reward is 1 a step, or the action it was given."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 3.0, (1,), np.float32)

    def __init__(self, pays_action: bool = False):
        self.pays_action = pays_action

    def reset(self, *, seed=None, options=None):
        self.time, self.length = 0, length_of(seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        over = self.time >= self.length
        reward = float(action[0]) if self.pays_action else 1.0
        # By turns a true end and a time limit: both end an episode.
        return np.zeros(2, np.float32), reward, over and self.length % 2 == 0, over, {}


def length_of(seed):
    return 1 + seed % LONGEST


def on_host(members, episodes, seed=0, **settings):
    return Evaluator(resolve(lambda: Seeded(**settings)), members, episodes, seed)


class Walk(NamedTuple):
    time: Any
    length: Any


@dataclass(frozen=True)
class RandomLength(NativeEnv):
    """1 a step; 1000 × length with the last; a fortune for every step after it."""

    pays_action: bool = False
    max_steps: int = LONGEST
    spec: Spec = SPEC

    def reset(self, key):
        return Walk(jnp.int32(0), jax.random.randint(key, (), 1, LONGEST + 1)), jnp.zeros(2)

    def step(self, state, action, key):
        time = state.time + 1
        last, beyond = time == state.length, time > state.length
        reward = action[0] if self.pays_action else 1.0 + 1000.0 * last * state.length
        reward = jnp.where(beyond, 1e9, reward)
        over = last | beyond
        return NativeStep(Walk(time, state.length), jnp.zeros(2), reward, over, over & (time > 4))


def in_real_units(start, steps):
    """The sum of what `Same` does in an episode, from [-1, 1] to the bounds -1 … 3."""
    return sum(2 * (start + 0.01 * time) + 1 for time in range(steps))


@pytest.mark.parametrize("members", [1, 3])
def test_host_returns_are_the_lengths(members):
    episodes, seeds = 6, seeds_of(members, 6)
    lengths = [length_of(seeds(row, 0)) for row in range(members * episodes)]
    assert len(set(lengths)) > 2  # the longest must not push out the shortest
    returns = on_host(members, episodes)(*[0.0] * members)
    np.testing.assert_array_equal(returns, np.reshape(lengths, (members, episodes)))


def test_host_evaluation_repeats_itself():
    evaluate = on_host(2, 4, pays_action=True)
    first, other = evaluate(0.1, 0.2), evaluate(-0.5, 0.2)
    np.testing.assert_array_equal(evaluate(0.1, 0.2), first)
    assert (other[0] != first[0]).all() and (other[1] == first[1]).all()


def test_host_members_play_their_own_policies():
    returns, seeds = on_host(2, 3, pays_action=True)(-0.4, 0.6), seeds_of(2, 3)
    for row, value in enumerate([-0.4] * 3 + [0.6] * 3):
        expected = in_real_units(value, length_of(seeds(row, 0)))
        assert returns[row // 3, row % 3] == pytest.approx(expected, abs=1e-4)


def test_another_seed_is_another_evaluation():
    one, other = (on_host(1, 8, seed)(0.0) for seed in (0, 1))
    assert (one != other).any()


def test_a_members_episodes_are_those_of_the_single_run():
    several, single = on_host(3, 4, 5)(0.0, 0.0, 0.0), on_host(1, 4, 7)(0.0)
    np.testing.assert_array_equal(several[2], single[0])


@pytest.mark.parametrize("members", [1, 3])
def test_native_episodes_are_counted_whole_and_once(members):
    returns = Evaluator(RandomLength(), members, 8)(*[0.0] * members)
    assert returns.shape == (members, 8) and returns.dtype == np.float64
    length, steps = np.divmod(returns, 1000)
    np.testing.assert_array_equal(steps, length)
    assert len(np.unique(length)) > 2 and length.max() <= LONGEST
    assert members == 1 or len({tuple(row) for row in length}) == members


def test_native_evaluation_repeats_itself_and_members_differ():
    evaluate = Evaluator(RandomLength(pays_action=True), 2, 5, 3)
    lengths = Evaluator(RandomLength(), 2, 5, 3)(0, 0) % 1000
    returns = evaluate(-0.4, 0.6)
    np.testing.assert_array_equal(evaluate(-0.4, 0.6), returns)
    for member, value in enumerate([-0.4, 0.6]):
        expected = [in_real_units(value, int(length)) for length in lengths[member]]
        np.testing.assert_allclose(returns[member], expected, atol=1e-4)


def test_a_native_members_episodes_are_those_of_the_single_run():
    several = Evaluator(RandomLength(), 3, 6, 5)(0, 0, 0)
    single = Evaluator(RandomLength(), 1, 6, 7)(0)
    np.testing.assert_array_equal(several[2], single[0])


class Fragile(Seeded):
    """Breaks once, at the first step of all."""

    broken = False

    def step(self, action):
        if self.time == 0 and not Fragile.broken:
            Fragile.broken = True
            raise RuntimeError("cable")
        return super().step(action)


def test_an_episode_that_was_cut_by_a_fault_is_played_again():
    Fragile.broken = False
    returns, seeds = Evaluator(resolve(Fragile), 1, 2)(0.0), seeds_of(1, 2)
    assert returns.tolist() == [[length_of(seeds(0, 1)), length_of(seeds(1, 0))]]


def test_environments_that_have_finished_are_not_stepped_further():
    class Counted(Seeded):
        stepped = 0

        def step(self, action):
            Counted.stepped += 1
            return super().step(action)

    returns, seeds = Evaluator(resolve(Counted), 1, 5)(0.0), seeds_of(1, 5)
    assert Counted.stepped == returns.sum() == sum(length_of(seeds(row, 0)) for row in range(5))
