"""PPO in whole runs: the first ratio is 1 in both loops, minibatches with memory, early ends."""

import itertools

import jax
import numpy as np
import pytest

import understudy as us
from understudy.algorithms.rollout_actor_critic import distribution_and_value
from understudy.types import ConfigError

pytestmark = pytest.mark.agents
CART, PENDULUM = "CartPole-v1", "jax:Pendulum-v1"
RUN = us.RunConfig(log_every=12, evaluate_every=0, evaluation_episodes=1)
NORMALIZED = dict(normalize_observations=True, normalize_rewards=True)
MEMORY = dict(memory="gru", memory_size=4)


def slow(*parameters):
    return pytest.param(*parameters, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (CART, {}),
        (f"jax:{CART}", {}),
        (f"jax:{CART}", MEMORY),
        slow(CART, MEMORY),
        slow(PENDULUM, dict(state_dependent_exploration=True)),
        slow("Pendulum-v1", {}),
    ],
)
def test_the_first_ratio_of_every_rollout_is_1(env, settings):
    """The observations are normalized by the statistics that acting used, although these change
    with every step that is seen."""
    config = us.PPOConfig(
        hidden_sizes=(8,), horizon=6, minibatches=2, epochs=2, learning_rate=0.1,
        **NORMALIZED, **settings,
    )  # fmt: skip
    agent, seen = us.PPO(env, config, num_envs=2), []
    prepare = agent.algorithm.prepare

    def watched(state, batch):
        prepared = prepare(state, batch)
        policy, _ = distribution_and_value(config, state.params, prepared.observation)
        action = prepared.action.reshape(12, *prepared.action.shape[prepared.advantage.ndim :])
        now, before = policy.log_prob(action), prepared.log_prob.reshape(12)
        mean = state.normalizer.observation.mean
        jax.debug.callback(lambda *x: seen.append([np.asarray(y) for y in x]), now, before, mean)
        return prepared

    agent.algorithm.prepare = watched
    agent.train(72, progress=False, run=RUN)
    jax.effects_barrier()
    agent.close()
    assert len(seen) >= 5
    for now, before, _ in seen:
        np.testing.assert_allclose(now, before, rtol=1e-4, atol=1e-5)
    means = [mean for *_, mean in seen]
    assert not means[0].any()
    assert all(np.abs(a - b).max() > 1e-4 for a, b in itertools.pairwise(means))
    assert max(np.abs(now).max() for now, *_ in seen) > 0.1


def test_with_memory_minibatches_are_made_of_environments():
    config = us.PPOConfig(hidden_sizes=(8,), horizon=4, minibatches=2, epochs=3, **MEMORY)
    agent = us.PPO(f"jax:{CART}", config, num_envs=4)
    summary = agent.train(64, progress=False, run=RUN)
    assert agent.trainer.position.updates == 4 * 6 and not summary.diverged
    with pytest.raises(ConfigError, match="all steps of 3 environments cannot be split into 2"):
        us.PPO(f"jax:{CART}", config, num_envs=3).train(1, progress=False)


def test_the_end_of_updates_is_in_the_checkpoint(tmp_path):
    """With a tiny target the second update of each rollout ends the updates; a loaded agent goes
    on to the same bits, and the log leaves out what came after the end."""
    config = us.PPOConfig(
        hidden_sizes=(8,), horizon=6, minibatches=1, epochs=4, learning_rate=0.1, target_kl=1e-4
    )

    def made():
        return us.PPO(CART, config, num_envs=2, num_seeds=2)

    whole = made()
    row = whole.train(96, progress=False, run=RUN).history[-1]
    state = jax.device_get(whole.trainer.learner.state)
    assert (state.params.kl > 1.5e-4).all() and (state.updates == 4 * 7).all()
    assert row["train/approx_kl"] > 0.0 and np.isfinite(row["train/loss"])
    counts = state.opt_state["actor"].count
    assert (counts < state.updates).all() and (counts >= 7).all()

    part = made()
    part.train(48, progress=False, run=RUN)
    part.save(tmp_path / "part")
    resumed = us.load(tmp_path / "part")
    resumed.train(48, progress=False, run=RUN)
    again = jax.device_get(resumed.trainer.learner.state)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_it_learns_several_choices_and_continuous_actions():
    agent = us.PPO(PENDULUM, num_seeds=3)
    agent.train(150_000, progress=False, run=us.RunConfig(evaluate_every=0))
    assert np.median(np.array(agent.evaluate(20)["returns"]).mean(axis=1)) > -300
