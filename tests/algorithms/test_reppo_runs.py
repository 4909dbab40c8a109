"""REPPO: acting, settings, and whole runs."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from tests.algorithms.algorithm_cases import KEY, SPEC, close, compiled, mapped, observed, query
from tests.algorithms.by_hand import gaussian, network
from tests.algorithms.reppo_cases import (
    CHOOSING,
    ENVS,
    TIME,
    actor_weights,
    critic_weights,
    made,
    make_rollout,
    q_of,
)
from understudy.algorithms.gradients import mean_of_shards
from understudy.algorithms.on_policy import RolloutNeeds
from understudy.algorithms.reppo import REPPO, REPPOConfig, losses
from understudy.ops.densities import row_normals
from understudy.types import ArraySpec, ConfigError, Continuous, EnvironmentError, Spec

pytestmark = pytest.mark.agents

PENDULUM, CART = "jax:Pendulum-v1", "jax:CartPole-v1"
RUN = us.RunConfig(log_every=16, evaluate_every=0, evaluation_episodes=1)
TINY: dict[str, Any] = dict(hidden_sizes=(8,), horizon=8, minibatches=2, epochs=2, num_atoms=11)


# -- acting -----------------------------------------------------------------------------------


def act(algorithm, policy, observation, explore):
    first = jnp.zeros(len(observation), bool)
    return compiled(algorithm, "act")(policy, (), observation, first, KEY, explore)


def test_exploring_samples_the_squashed_gaussian():
    """Standardized before tanh, the actions have mean 0 and deviation 1 in each dimension."""
    one, rows = made(), np.random.default_rng(0).normal(size=(4_000, 3))
    policy, seen = one.algorithm.policy(one.state), jnp.asarray(rows, jnp.float32)
    calm, memory, extras = act(one.algorithm, policy, seen, False)
    assert (memory, extras) == ((), {})
    mean, log_std = np.split(network(actor_weights(one.state), rows), 2, -1)
    np.testing.assert_allclose(calm, np.tanh(mean), rtol=1e-4, atol=1e-5)
    action = np.asarray(act(one.algorithm, policy, seen, True)[0], np.float64)
    inner = (np.abs(action) < 1 - 1e-5).all(-1)
    assert inner.mean() > 0.95 and np.abs(action).max() <= 1.0
    normal = ((np.arctanh(action[inner]) - mean[inner]) * np.exp(-log_std[inner])).T
    np.testing.assert_allclose(normal.mean(-1), 0.0, atol=0.06)
    np.testing.assert_allclose(normal.std(-1), 1.0, atol=0.06)


def test_exploring_samples_the_choices():
    one, rows = made(discrete=True), np.zeros((6_000, 3)) + np.array([0.5, -1.0, 0.2])
    policy, seen = one.algorithm.policy(one.state), jnp.asarray(rows, jnp.float32)
    logits = network(actor_weights(one.state), rows[:1])[0]
    p = np.exp(logits) / np.exp(logits).sum()
    action = np.asarray(act(one.algorithm, policy, seen, True)[0])
    np.testing.assert_allclose(np.bincount(action, minlength=3) / 6_000, p, atol=0.03)
    assert (np.asarray(act(one.algorithm, policy, seen, False)[0]) == p.argmax()).all()


def test_questions_are_answered_by_hand():
    """Of observations as the networks see them. The value of a discrete policy is exact."""
    rng = np.random.default_rng(0)
    rows, action = rng.normal(size=(8, 3)) * 30 + 50, np.tanh(rng.normal(size=(8, 2)))
    calm = (rows - rows.mean(0)) / rows.std(0)
    rows = jnp.asarray(rows, jnp.float32)
    one = made(normalize_observations=True)
    seen = observed(one.state, rows)
    networks = actor_weights(seen), critic_weights(seen)
    q = query(one.algorithm, SPEC, "q_values", seen, rows, action)
    np.testing.assert_allclose(q, [q_of(networks[1], calm, action)], rtol=1e-3, atol=1e-4)
    noise = np.arctanh(action)
    sampled, want = gaussian(networks[0], calm, noise)
    log_prob = query(one.algorithm, SPEC, "log_prob", seen, rows, sampled)
    inner = (np.abs(sampled) < 0.999).all(-1)
    assert inner.sum() >= 4
    np.testing.assert_allclose(log_prob[inner], want[inner], rtol=1e-2, atol=1e-2)
    value = query(one.algorithm, SPEC, "value", seen, rows)
    assert value.shape == (8,) and np.all(np.abs(value) <= 3.0)

    other = made(discrete=True, normalize_observations=True)
    seen = observed(other.state, rows)
    logits = network(actor_weights(seen), calm)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    value = query(other.algorithm, CHOOSING, "value", seen, rows)
    want = (p * q_of(critic_weights(seen), calm)).sum(-1)
    np.testing.assert_allclose(value, want, rtol=1e-3, atol=1e-4)
    chosen = np.arange(8) % 3
    log_prob = query(other.algorithm, CHOOSING, "log_prob", seen, rows, chosen)
    np.testing.assert_allclose(log_prob, np.log(p[np.arange(8), chosen]), rtol=1e-3, atol=1e-4)


# -- memory -----------------------------------------------------------------------------------


MEMORY: dict[str, Any] = dict(memory="gru", memory_size=4, q_lambda=0.0)


def remembering():
    """A rollout whose next observations are the following observations, with recurrent states."""
    rollout = make_rollout(discrete=True)
    following = np.concatenate([rollout.observation[1:], rollout.next_observation[-1:]])
    before = np.random.default_rng(1).normal(size=(ENVS, 4))
    return rollout._replace(
        next_observation=jnp.asarray(following), memory=jnp.asarray(before, jnp.float32)
    )


def test_with_memory_values_are_those_of_the_states_along_the_rollout():
    """Without traces a target is r + d·(E[Q] + α·H) of the following row, unless an episode ends.
    π_old is the policy along the same states."""
    one, rollout = made(discrete=True, **MEMORY), remembering()
    batch = one.batch(rollout)

    @jax.jit
    def compute(state):
        critic = state.params.critic
        policy = losses.policy_of(one.algorithm.policy(state).actor, batch.observation)
        return policy, losses.evaluate(policy, critic, batch.observation, None)

    policy, (q, log_prob) = compute(one.state)
    value = np.asarray(q - 0.3 * log_prob).reshape(ENVS, TIME)
    reward, discount = (np.asarray(x).T[:, :-1] for x in (rollout.reward, rollout.discount))
    want = reward + discount * value[:, 1:]
    goes_on = ~np.asarray(rollout.last).T[:, :-1]
    got = np.asarray(batch.target)[:, :-1]
    np.testing.assert_allclose(got[goes_on], want[goes_on], rtol=1e-4, atol=1e-5)
    # After an end the recurrent state is new, but the last value is that of the old one.
    assert not np.isclose(got[0, 3], want[0, 3])
    np.testing.assert_array_equal(batch.action, np.asarray(rollout.action).T)
    logits = np.asarray(batch.old_policy.logits)
    np.testing.assert_allclose(logits.reshape(ENVS * TIME, 3), policy.logits, rtol=1e-4, atol=1e-5)


def entropy_of(one, batch):
    """The mean of −log π of the actions that an update draws."""
    row = jnp.arange(ENVS * TIME, dtype=jnp.int32)
    noise = None if one.discrete else row_normals(jax.random.split(KEY)[0], row, 2)

    @jax.jit
    def log_prob(state):
        policy = losses.policy_of(one.algorithm.policy(state).actor, batch.observation)
        return losses.evaluate(policy, state.params.critic, batch.observation, noise)[1]

    return -float(np.mean(log_prob(one.state)))


@pytest.mark.parametrize("discrete", [True, False])
def test_with_memory_minibatches_are_environments_and_everything_learns(discrete):
    """The mean over two shards, of one environment each, is the gradient of the whole. Each step of
    each environment draws noise of its own, ordered by environment."""
    one, rollout = made(discrete, **MEMORY), remembering()
    if not discrete:
        rollout = rollout._replace(action=make_rollout().action)
    batch = one.batch(rollout)
    whole, aux = one.gradients(batch, one.state)
    entropy = entropy_of(one, batch)
    assert float(aux.metrics["entropy"]) == pytest.approx(entropy, rel=1e-4)
    whole = one.gradients(batch)[0]
    shards = [one.gradients(mapped(lambda x, s=s: x[s : s + 1], batch))[0] for s in (0, 1)]
    close(mean_of_shards([jax.device_get(shard) for shard in shards]), whole, 1e-5)
    assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(whole.params))
    assert one.algorithm.needs.parts(8) == 8


# -- settings ---------------------------------------------------------------------------------


def test_what_it_needs_and_what_moves():
    config = REPPOConfig(horizon=8, epochs=3, minibatches=4)
    assert config.needs == RolloutNeeds(8, 4, epochs=3, keeps_policy=True)
    assert config.needs.updates == 12 and config.needs.observed_last
    assert not RolloutNeeds(8, 4).observed_last and RolloutNeeds(8, 4, extras=("x",)).observed_last
    moving = {"learning_rate", "gamma", "q_lambda", "reward_scale", "kl_bound"}
    assert set(config.moving()) == moving
    for spec, entropy in ((SPEC, -1.0), (CHOOSING, 0.5 * np.log(3))):
        state = jax.eval_shape(lambda key, spec=spec: REPPO(config).init(spec, key), KEY)
        assert set(state.hyper) == moving | {"target_entropy"}
        assert REPPO(config).init_hyper(spec)["target_entropy"] == pytest.approx(entropy)
    own = REPPO(REPPOConfig(target_entropy=-3.0)).init_hyper(SPEC)
    assert own["target_entropy"] == -3.0


def test_both_networks_have_layer_norm_or_none():
    def made_with(**settings):
        return jax.eval_shape(
            lambda key: REPPO(REPPOConfig(**settings)).init(SPEC, key), KEY
        ).params

    for wanted in (True, False):
        params = made_with(layer_norm=wanted)
        norms = len(params.actor.encoder.norms), len(params.critic.encoder.norms)
        assert norms == ((2, 2) if wanted else (0, 0))
        assert params.critic.head.weight.shape == (1, 256, 151)
    params = made_with(critic_head="scalar")
    assert params.critic.head.weight.shape == (1, 256, 1)


@pytest.mark.parametrize("discrete", [False, True])
def test_the_critic_starts_near_a_return_of_zero(discrete):
    """Also if zero is at an end of its range."""
    rng, spec = np.random.default_rng(0), CHOOSING if discrete else SPEC
    seen = jnp.asarray(rng.normal(size=(64, 3)), jnp.float32)
    action = rng.integers(0, 3, 64) if discrete else np.tanh(rng.normal(size=(64, 2)))
    action = jnp.asarray(action, jnp.int32 if discrete else jnp.float32)
    config = REPPOConfig(hidden_sizes=(16,), min_return=0.0, max_return=150.0)
    algorithm = REPPO(config)
    q = jax.jit(
        lambda key: algorithm.q_values(algorithm.init(spec, key), seen, action)  # pyright: ignore
    )(KEY)
    assert q.shape == (1, 64) and 0.0 <= float(q.min()) <= float(q.max()) < 2.0


def test_what_reppo_refuses():
    with pytest.raises(ConfigError, match="min_return 3 must be below max_return 3"):
        REPPOConfig(min_return=3.0, max_return=3.0)
    with pytest.raises(ConfigError, match="return_limit bounds normalized rewards"):
        REPPOConfig(normalize_rewards=False)
    for name, why in (
        ("buffer_size", "keeps no replay"),
        ("tau", "no target networks"),
        ("gae_lambda", "q_lambda is the λ"),
        ("kl_constraint", "the bound of REPPO's KL is kl_bound"),
    ):
        with pytest.raises(ConfigError, match=f"there is no '{name}' here: .*{why}"):
            REPPOConfig(**{name: 1})  # pyright: ignore[reportArgumentType]
    unbounded = Continuous((-np.inf,), (np.inf,), (1,))
    with pytest.raises(EnvironmentError, match="REPPO needs a bounded action Box"):
        made().algorithm.check(Spec(ArraySpec((3,)), unbounded))


# -- runs -------------------------------------------------------------------------------------


@pytest.mark.agents
@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (PENDULUM, {}),
        pytest.param(CART, dict(memory="gru", memory_size=4), marks=pytest.mark.slow),
        pytest.param("Pendulum-v1", {}, marks=pytest.mark.slow),
    ],
)
def test_it_trains_and_each_seed_is_a_run_of_its_own(env, settings):
    config = REPPOConfig(**TINY, **settings)
    both = us.REPPO(env, config, num_seeds=2, num_envs=2, seed=4)
    before = both.get_weights()
    summary = both.train(96, progress=False, run=RUN)
    trainer: Any = both.trainer
    # Six rollouts of 8 steps of 2 environments; the host learns one step later.
    assert trainer.position.updates == 4 * (6 if env.startswith("jax:") else 5)
    metrics = {"critic_loss", "actor_loss", "kl", "kl_fraction", "entropy", "ent_coef"}
    assert {f"train/{name}" for name in metrics} <= summary.history[-1].keys()
    after = both.get_weights()
    assert set(after) == {"actor", "critic"}
    for x, y in zip(*map(jax.tree.leaves, (before, after)), strict=True):
        assert np.all(np.isfinite(y)) and not np.array_equal(x, y)
    alone = us.REPPO(env, config, num_envs=2, seed=5)
    alone.train(96, progress=False, run=RUN)
    second = jax.tree.map(lambda x: np.asarray(x)[1], after)
    first = jax.tree.map(lambda x: np.asarray(x)[0], alone.get_weights())
    close(jax.tree.leaves(second), jax.tree.leaves(first), 1e-3)
    both.close()
    alone.close()


@pytest.mark.agents
@pytest.mark.parametrize("env", [PENDULUM, pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_the_old_policy_sees_what_acting_saw(env):
    """While a rollout is learned from, the statistics are those of the rollouts before it."""
    agent, seen = us.REPPO(env, REPPOConfig(**TINY, learning_rate=0.01), num_envs=2), []
    prepare = agent.algorithm.prepare

    def watched(state, batch):
        mean = state.normalizer.observation.mean
        rows = jnp.mean(batch.observation.reshape(-1, 3), 0)
        jax.debug.callback(lambda *x: seen.append([np.asarray(y) for y in x]), mean, rows)
        return prepare(state, batch)

    agent.algorithm.prepare = watched
    agent.train(96, progress=False, run=RUN)
    jax.effects_barrier()
    agent.close()
    assert len(seen) >= 5
    rows, total = [x for _, x in seen], np.zeros(3)
    for place, (mean, own) in enumerate(seen):
        np.testing.assert_allclose(mean, total / max(place, 1), rtol=1e-3, atol=1e-4)
        total = total + own
    assert all(np.abs(a - b).max() > 1e-3 for a, b in itertools.pairwise(rows))
