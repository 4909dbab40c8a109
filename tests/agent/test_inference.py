"""Acting keeps the policy between calls: never an old one, and the bits stay the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from tests.export.policy_cases import case
from understudy.agent.inference import Inference
from understudy.algorithms.base import Memory
from understudy.envs.spaces import to_real
from understudy.observation_packing import Packer

TINY = dict(hidden_sizes=(8,), batch_size=8, buffer_size=256, start_steps=10, min_buffer_size=20)
QUIET = dict(progress=False, run=us.RunConfig(evaluation_episodes=1))
SEED = 2**32 - 1
KINDS = [
    "SAC",
    "DDQN",
    "DDPG, lingering noise",
    "A2C gSDE",
    "MPO of a dict with images",
    "SAC, GRU",
]


def act_directly(told, policies, index, observation, memory, draw, explore):
    """Acting as the definitions say: nothing is kept, and a seed is chosen inside the program."""

    def program(policies, index, rows, before, key):
        policy = jax.tree.map(lambda leaf: leaf[index], policies)
        state = told.algorithm.memory(policy, len(rows))
        if before is not None:
            state = state._replace(recurrent_state=before)
        first = jnp.full(len(rows), before is None)
        action, after, _ = told.algorithm.act(policy, state, rows, first, key, explore)
        return action, after.recurrent_state if isinstance(after, Memory) else None

    rows, single = Packer(told.spec.observation).pack(observation)
    before = None
    if told.remembers:
        before = np.zeros((len(rows), told.algorithm.config.memory_width), np.float32)
        before = before if memory is None else np.reshape(memory, before.shape)
    key = jax.random.fold_in(jax.random.PRNGKey(SEED), draw)
    action, after = jax.jit(program)(policies, index, rows, before, key)
    action = to_real(np.asarray(action), told.spec)
    action, after = (x[0] if single and x is not None else x for x in (action, after))
    return (action, np.asarray(after)) if told.remembers else action


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_those_of_acting_without_a_kept_policy(kind):
    told = case(kind)
    policies = jax.tree.map(lambda leaf: jnp.stack([leaf + 1, leaf]), told.policy)
    inference = Inference(told.algorithm, told.spec, SEED)
    inference.use_policies(object(), lambda: policies)
    many = told.observations(3)
    entries = many.items() if isinstance(many, dict) else None
    one = {name: rows[0] for name, rows in entries} if entries else many[0]
    for observation in (one, many):
        memory = None
        for draw in (None, 7) if not told.remembers else (None, None, 7):
            ours = inference.act(1, observation, memory, draw)
            explore = draw is not None
            theirs = act_directly(told, policies, 1, observation, memory, draw or 0, explore)
            for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
                np.testing.assert_array_equal(mine, other)
                assert mine.dtype == other.dtype
            memory = ours[1] if told.remembers else None


def test_the_policy_is_read_only_when_it_may_have_changed():
    told, reads, version = case("SAC"), [], object()
    inference = Inference(told.algorithm, told.spec)

    def policies():
        reads.append(1)
        return jax.tree.map(lambda leaf: jnp.stack([leaf + 1, leaf]), told.policy)

    seen = told.observations(2)
    actions = []
    for shown, index in ((version, 0), (version, 0), (version, 1), (object(), 1)):
        inference.use_policies(shown, policies)
        actions.append(inference.act(index, seen, None, None))
    assert len(reads) == 2 and inference.act(1, seen, None, 0).shape == (2, 2)
    assert (actions[1] != actions[2]).any()  # another seed


@pytest.fixture(scope="module", params=["Pendulum-v1", "jax:Pendulum-v1"])
def agent(request):
    """On the host and on the device: two trainers, which keep their states differently."""
    agent = us.SAC(request.param, us.SACConfig(**TINY))
    agent.train(30, **QUIET)
    yield agent
    agent.close()


SEEN = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def noisy(agent):
    return agent.act(SEEN, deterministic=False)


@pytest.mark.agents
def test_no_policy_of_the_past_acts(agent, tmp_path):
    before = agent.act(SEEN)
    np.testing.assert_array_equal(agent.act(SEEN), before)
    agent.save(tmp_path / "then")
    agent.train(10, **QUIET)  # donates the arrays that the policy was read from
    trained = agent.act(SEEN)
    assert (trained != before).all()
    weights = agent.get_weights()
    agent.set_weights(jax.tree.map(lambda leaf: leaf * 0.5, weights))
    assert (agent.act(SEEN) != trained).all()
    agent.set_weights(weights)
    np.testing.assert_array_equal(agent.act(SEEN), trained)
    during = []
    agent.train(10, callbacks=lambda row: during.append(agent.act(SEEN)), **QUIET)
    assert (during[-1] != trained).all()
    np.testing.assert_array_equal(agent.act(SEEN), during[-1])
    loaded = us.load(tmp_path / "then")
    np.testing.assert_array_equal(loaded.act(SEEN), before)
    loaded.train(10, **QUIET)
    np.testing.assert_array_equal(loaded.act(SEEN), trained)
    loaded.close()


@pytest.mark.agents
def test_a_setting_of_the_policy_takes_effect():
    agent = us.DDQN("jax:CartPole-v1", us.DDQNConfig(**TINY))
    agent.set(epsilon=0.0)
    seen = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    greedy = agent.act(seen)
    np.testing.assert_array_equal(agent.act(seen, deterministic=False), greedy)
    agent.set(epsilon=1.0)
    assert (agent.act(seen, deterministic=False) != greedy).any()
    np.testing.assert_array_equal(agent.act(seen), greedy)
    agent.set(epsilon=0.0)
    np.testing.assert_array_equal(agent.act(seen, deterministic=False), greedy)


@pytest.mark.agents
def test_draws_of_a_loaded_agent_go_on(agent, tmp_path):
    noisy(agent)
    loaded = us.load(agent.save(tmp_path / "saved"))
    np.testing.assert_array_equal(noisy(loaded), noisy(agent))
    loaded.close()


@pytest.mark.agents
def test_the_best_seed_acts_once_there_is_another_best():
    agent = us.SAC("jax:Pendulum-v1", us.SACConfig(**TINY), num_seeds=2)
    for best in (0, 1, 0):
        agent.evaluator.scores = np.array([1.0, 0.0])[:: 1 - 2 * best]
        np.testing.assert_array_equal(agent.act(SEEN), agent[best].act(SEEN))
    assert (agent[0].act(SEEN) != agent[1].act(SEEN)).all()
