"""Agents that remember and agents that see: seeds as an axis, evaluation, and acting by hand."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import understudy as us
from understudy.envs import EpisodeSeeds

pytestmark = pytest.mark.agents

TINY = dict(hidden_sizes=(8,), batch_size=8, buffer_size=128, start_steps=10, min_buffer_size=20)
MEMORY = dict(memory="gru", memory_size=4, sequence_length=4, burn_in=2)
QUIET = dict(progress=False, run=us.RunConfig(evaluation_episodes=2))


class Corridor(gymnasium.Env):
    """Shows a sign once, then the dark; 6 to 9 steps later, going its way pays."""

    observation_space = spaces.Box(0, 255, (6, 6), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sign, self.left = int(self.np_random.integers(2)), int(self.np_random.integers(6, 10))
        picture = self.np_random.integers(0, 99, (6, 6), np.uint8)
        picture[:, 3 * self.sign :][:, :3] = 255
        return picture, {}

    def step(self, action):
        self.left -= 1
        reward = 0.1 * float(action) + (1.0 if action == self.sign else -1.0) * (self.left == 0)
        dark = self.np_random.integers(0, 99, (6, 6), np.uint8)
        return dark, reward, self.left == 0, False, {}


PICTURES = MEMORY | dict(encoder_features=4, learning_rate=1e-2)  # seen and remembered
STEPS = 80
KINDS = {
    "remembering": ("SAC", "jax:Pendulum-P-v1", MEMORY),
    "seeing": ("DDQN", Corridor, dict(encoder_features=4, frame_stack=2)),
}


def make(kind, env, settings, **own):
    return getattr(us, kind)(env, getattr(us, f"{kind}Config")(**(TINY | settings)), **own)


def flat(agent, member):
    networks = jax.tree.map(lambda leaf: leaf[member].ravel(), agent.get_weights())
    return np.concatenate(jax.tree.leaves(networks))


@pytest.fixture(scope="module")
def walker():
    agent = make("DDQN", Corridor, PICTURES, seed=6)
    agent.train(STEPS, **QUIET)
    yield agent
    agent.close()


@pytest.mark.slow
def test_a_member_is_the_single_run_of_its_seed(walker):
    both = make("DDQN", Corridor, PICTURES, seed=5, num_seeds=2)
    both.train(STEPS, **QUIET)
    assert_second_is(both, walker)
    both.close()


@pytest.mark.slow
@pytest.mark.parametrize("case", KINDS)
def test_a_member_of_another_kind_is_the_single_run_of_its_seed(case):
    both, second = make(*KINDS[case], seed=5, num_seeds=2), make(*KINDS[case], seed=6)
    for agent in (both, second):
        agent.train(STEPS, **QUIET)
    assert_second_is(both, second)
    both.close()
    second.close()


def assert_second_is(both, second):
    np.testing.assert_allclose(flat(both, 1), flat(second, 0), rtol=2e-3, atol=2e-4)
    assert not np.allclose(flat(both, 0), flat(both, 1), atol=1e-3)
    np.testing.assert_allclose(both.evaluate(2)["returns"][1], second.evaluate(2)["returns"], 1e-3)


def played(agent, seed, remembers=True):
    """The return of an episode by `act`, and its actions."""
    env, memory, total, actions = Corridor(), None, 0.0, []
    observation, over = env.reset(seed=seed)[0], False
    while not over:
        action, memory = agent.act(observation, memory)
        memory = memory if remembers else None
        observation, reward, over, _, _ = env.step(action)
        total += reward
        actions.append(int(action))
    return total, actions


def test_evaluation_begins_every_episode_without_memory(walker):
    """It repeats itself, and is what `act` does that is given its memory back."""
    result = walker.evaluate(5)
    assert walker.evaluate(5) == result
    seeds = EpisodeSeeds(walker.seed, envs_per_seed=5).for_evaluation()
    by_hand = [played(walker, seeds(row, 0))[0] for row in range(5)]
    np.testing.assert_allclose(result["returns"], by_hand, atol=1e-5)


def test_memory_matters_and_restarts_with_an_episode(walker):
    algorithm, policy = walker.algorithm, walker.algorithm.policy(walker[0].state)
    policy = jax.tree.map(lambda leaf: leaf[0], jax.device_get(policy))
    seen = jnp.asarray(np.random.default_rng(0).integers(0, 256, (3, 6, 6), np.uint8))
    nothing = algorithm.memory(policy, 3)
    full = nothing._replace(recurrent_state=nothing.recurrent_state + 0.9)

    @jax.jit
    def hidden(memory, first):
        key = jax.random.PRNGKey(0)
        return algorithm.act(policy, memory, seen, first, key, False)[1].recurrent_state

    def after(memory, *first):
        return np.asarray(hidden(memory, np.array(first)))

    fresh, going_on = after(nothing, False, False, False), after(full, False, False, False)
    assert np.abs(going_on - fresh).max(axis=1).min() > 0.1
    mixed = after(full, True, False, True)
    np.testing.assert_array_equal(mixed[[0, 2]], fresh[[0, 2]])
    np.testing.assert_array_equal(mixed[1], going_on[1])


def test_act_in_a_batch_is_act_one_by_one(walker):
    seen = np.random.default_rng(1).integers(0, 256, (3, 6, 6), np.uint8)
    memory = np.random.default_rng(2).uniform(-1, 1, (3, 4)).astype(np.float32)
    actions, after = walker.act(seen, memory)
    for row in range(3):
        action, alone = walker.act(seen[row], memory[row])
        assert action == actions[row]
        np.testing.assert_allclose(alone, after[row], atol=1e-6)
    np.testing.assert_allclose(
        walker.act(seen)[1], walker.act(seen, np.zeros((3, 4)))[1], atol=1e-7
    )
