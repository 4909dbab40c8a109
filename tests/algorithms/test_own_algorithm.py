"""An algorithm outside the library needs no change in it: one folder, handed in as a class."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from tests.algorithms.clipped_policy import ClippedAgent, ClippedPolicyConfig
from tests.algorithms.clipped_policy.losses import Rows, clipped_loss
from understudy.runs import checkpoint

pytestmark = pytest.mark.agents
SMALL = ClippedPolicyConfig(hidden_sizes=(8,), horizon=8, minibatches=2, epochs=3)
RUN = us.RunConfig(log_every=64, evaluate_every=0, evaluation_episodes=1)


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_clipped_loss_by_hand():
    """Two rows: one that has moved beyond the clip, one that has not."""
    zeros = jnp.zeros(2)
    rows = Rows(
        observation=jnp.zeros((2, 1)),
        action=jnp.zeros(2, jnp.int32),
        log_prob=jnp.log(jnp.array([0.5, 0.5])),
        advantage=jnp.array([2.0, -1.0]),
        value_target=zeros,
        weight=jnp.ones(2),
        row=jnp.arange(2, dtype=jnp.int32),
    )
    now = jnp.log(jnp.array([0.75, 0.55]))  # ratios 1.5 and 1.1
    assert np.isclose(clipped_loss(now, rows, jnp.float32(0.2)), -(1.2 * 2.0 - 1.1) / 2)


@pytest.mark.parametrize("env", ["CartPole-v1", "jax:CartPole-v1"])
@pytest.mark.parametrize("num_seeds", [1, 2])
def test_it_trains_and_goes_on_to_the_bit(env, num_seeds, tmp_path):
    def train(agent, steps):
        agent.train(steps, run=RUN, progress=False)
        return agent

    whole = train(ClippedAgent(env, SMALL, num_seeds=num_seeds), 256)
    parts = train(ClippedAgent(env, SMALL, num_seeds=num_seeds), 128)
    resumed = train(ClippedAgent.load(parts.save(tmp_path / "parts")), 128)
    one, other = (checkpoint.read(agent.save(tmp_path / name)).groups
                  for name, agent in (("whole", whole), ("resumed", resumed)))  # fmt: skip
    for group in ("learner", "world"):
        assert one[group].keys() == other[group].keys()
        for name, array in one[group].items():
            assert array.tobytes() == other[group][name].tobytes(), name
    # 8 rollouts of 8 steps of 4 environments, each learned from 3 times in 2 minibatches. The last
    # one of the host loop is learned from when the run goes on.
    rollouts = 8 if env.startswith("jax:") else 7
    assert int(one["learner"]["state.updates"][0]) == rollouts * 6
    assert len(whole) == num_seeds and np.isfinite(whole.evaluate(2)["mean"])


def test_the_stored_log_probability_is_that_of_the_acting_policy():
    """Before the first update of a rollout, every ratio is 1."""
    agent = ClippedAgent("jax:CartPole-v1", SMALL)
    trainer = agent.trainer
    trainer.advance(7)  # one step before the first update
    stored = jax.tree.map(lambda x: x[0], trainer.experience)
    state = jax.tree.map(lambda x: x[0], trainer.learner.state)
    seen = stored.storage.observation[:7].reshape(-1, 4)
    taken = stored.storage.action[:7].reshape(-1)
    wanted = jax.jit(lambda state: state.params.actor(seen).log_prob(taken))(state)
    np.testing.assert_allclose(stored.extras["log_prob"][:7].reshape(-1), wanted, rtol=1e-5)


def test_what_is_not_the_librarys_is_loaded_by_its_class(tmp_path):
    path = ClippedAgent("CartPole-v1", SMALL).save(tmp_path / "saved")
    with pytest.raises(us.UnderstudyError, match=r"no algorithm 'clipped_policy'.*MyAgent\.load"):
        us.load(path)
    with pytest.raises(us.UnderstudyError, match="not of SAC"):
        us.SAC.load(path)


@pytest.mark.slow
def test_it_learns():
    agent = ClippedAgent("jax:CartPole-v1", ClippedPolicyConfig(), num_seeds=3, num_envs=8)
    agent.train(100_000, run=RUN, progress=False)
    returns = np.array(agent.evaluate(20)["returns"]).mean(axis=1)
    assert np.median(returns) >= 400, returns
