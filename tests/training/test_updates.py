"""Priorities and running statistics in both loops."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.buffers import sum_tree

pytestmark = pytest.mark.agents

LOOPS = pytest.mark.parametrize("env", ["Pendulum-v1", "jax:Pendulum-v1"])


def leaves(trainer, member=0):
    """Priorities of what a member has stored."""
    experience = jax.tree.map(lambda x: x[member], jax.device_get(trainer.experience))
    stored = int(experience.stored.sum())
    return np.asarray(jax.jit(sum_tree.read)(experience.priorities.tree, np.arange(stored)))


@LOOPS
def test_priorities_follow_the_errors_and_importance_weights_become_complete(make_trainer, env):
    trainer = make_trainer("td3", env, prioritized=True, num_seeds=2, priority_exponent=1.0)
    trainer.position.horizon = 40
    trainer.schedule({})

    def exponents():
        return np.asarray(trainer.learner.state.hyper["importance_exponent"])

    trainer.advance(11)
    np.testing.assert_allclose(exponents(), 0.55, rtol=0, atol=0.01)
    trainer.advance(8)
    assert (leaves(trainer) == 1.0).all()  # nothing learned yet: all are new
    trainer.advance(31)
    assert (exponents() == 1.0).all()
    for member in (0, 1):
        values = leaves(trainer, member)
        assert len(np.unique(values)) > 20  # errors of their own
    assert not np.array_equal(leaves(trainer, 0), leaves(trainer, 1))


def test_prioritized_replay_is_updated_in_place(make_trainer):
    """No instruction of the steady program copies an array of the storage's or the tree's size."""
    trainer = make_trainer("sac", "jax:Pendulum-v1", prioritized=True, buffer_size=54_320)
    held = (trainer.learner, trainer.experience, trainer.world)
    lines = trainer.steady_program.lower(held, np.int32(0), {}).compile().as_text().splitlines()
    assert any("54321" in line for line in lines)
    assert not [line for line in lines if "54321" in line.split(" copy(")[0] and " copy(" in line]


@pytest.fixture(scope="module")
def normalizing(make_shared_trainer):
    """A trainer on that environment that has seen 60 steps of three lanes, and not learned."""

    @cache
    def made(env):
        trainer = make_shared_trainer(
            "td3", env, num_envs=3, normalize_observations=True, normalize_rewards=True,
            min_buffer_size=512,
        )  # fmt: skip
        trainer.advance(60)
        return trainer

    return made


@LOOPS
def test_running_statistics_are_those_of_what_was_seen(normalizing, env):
    trainer = normalizing(env)
    running = jax.tree.map(lambda x: np.asarray(x[0]), trainer.learner.state.normalizer)
    steps = jax.tree.map(lambda x: np.asarray(x[0]), trainer.experience.storage)
    stored = int(trainer.experience.stored[0, 0])  # a lane; the host loop is one step behind
    observation = steps.observation[:, :stored].reshape(-1, 3)
    assert int(running.observation.count) == 3 * stored == int(running.returns.count)
    np.testing.assert_allclose(running.observation.mean, observation.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(running.observation.variance, observation.var(0), rtol=1e-4)
    returns, open_return = [], np.zeros(3)
    for t in range(stored):
        open_return = 0.99 * open_return + steps.reward[:, t]
        returns.append(open_return.copy())
        open_return[steps.last[:, t]] = 0.0
    np.testing.assert_allclose(running.returns.variance, np.var(returns), rtol=1e-3)


def test_normalized_observations_reach_the_policy(normalizing):
    """An observation half a standard deviation above the mean is 0.5 to the actor."""
    trainer = normalizing("jax:Pendulum-v1")
    algorithm, state = trainer.setup.algorithm, trainer.learner.state
    state = jax.tree.map(lambda x: x[0], jax.device_get(state))
    seen = state.normalizer.observation
    raw = seen.mean[None] + 0.5 * np.sqrt(seen.variance)

    @jax.jit
    def both(state, raw):
        policy, first = algorithm.policy(state), jnp.ones(1, bool)
        action = algorithm.act(policy, (), raw, first, state.key, False)[0]
        return action, state.params.actor(jnp.full((1, 3), 0.5))

    action, want = both(state, raw)
    np.testing.assert_allclose(action, want, rtol=1e-3, atol=1e-4)
