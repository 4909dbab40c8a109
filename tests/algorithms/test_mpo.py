"""What the protocol promises, of MPO with continuous and with discrete actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.algorithms import by_hand
from tests.algorithms.algorithm_cases import (
    SPEC,
    close,
    compiled,
    copies_of,
    gaps_and_steps,
    mapped,
    observed,
    query,
    same,
    shards_of,
)
from tests.algorithms.mpo_cases import (
    DISCRETE,
    KEY,
    RICH,
    SAMPLES,
    SMALL,
    SPECS,
    batch_of,
    both,
    case,
    chances,
    choices_q,
    normal,
    smallest_q,
)
from understudy.algorithms.base import Algorithm
from understudy.algorithms.gradients import mean_of_shards
from understudy.algorithms.mpo import MPO, MPOConfig, mpo
from understudy.networks import CategoricalActor
from understudy.types import (
    ArraySpec,
    ConfigError,
    Continuous,
    EnvironmentError,
    MultiDiscrete,
    Spec,
)


@both
def test_update_is_apply_after_gradients(kind):
    made = case(kind, **RICH)
    assert MPO.update is Algorithm.update
    gradients, aux = made.gradients()
    new, update_aux = made.update()
    close(made.ask("apply", gradients), new, 1e-5)
    close(aux, update_aux, 1e-5)


@both
def test_mean_of_the_shards_is_the_whole(kind):
    """With critics drawn at random: every shard must ask the same ones."""
    made, batch = case(kind, **RICH), batch_of(kind)
    whole, whole_aux = made.gradients()
    shards = [made.gradients(batch=shard) for shard in shards_of(batch)]
    mean = mean_of_shards([jax.device_get(gradients) for gradients, _ in shards])
    close(mean._replace(mask=None), whole._replace(mask=None), 2e-5)
    priorities = np.concatenate([aux.priorities for _, aux in shards])
    np.testing.assert_allclose(priorities, whole_aux.priorities, rtol=1e-4, atol=1e-5)


@both
def test_a_row_of_weight_two_is_two_rows(kind):
    """Means of prepared batches are Σ w·x / Σ w, whatever the largest weight is. So every bound is
    one of a weighted mean: the temperatures' and that of each KL. Shards keep to it. (A row's noise
    goes with its number, and so its copies have the same.)"""
    made, batch = case(kind, **RICH), batch_of(kind)
    counts = np.array([3, 1, 0, 0, 2, 1, 1, 0])
    weighted = batch._replace(weight=jnp.asarray(0.25 * counts, jnp.float32))
    copies = mapped(lambda x: np.repeat(x, counts, axis=0), batch)._replace(weight=jnp.ones(8))
    prepared = made.ask("prepare", weighted)
    (got, aux), (want, want_aux) = (made.gradients(batch=b) for b in (prepared, copies))
    close(got._replace(mask=None), want._replace(mask=None), 2e-5)
    for name in ("kl", "kl_mean", "kl_var", "dual_loss", "actor_loss", "critic_loss"):
        if name in aux.metrics:
            close(aux.metrics[name], want_aux.metrics[name], 2e-5)
    shards = [jax.device_get(made.gradients(batch=shard)[0]) for shard in shards_of(prepared)]
    close(mean_of_shards(shards)._replace(mask=None), want._replace(mask=None), 2e-5)


@both
def test_rows_that_are_no_steps_count_nowhere(kind):
    made = case(kind, **RICH)
    gaps, steps = gaps_and_steps(batch_of(kind))
    (with_gaps, gaps_aux), (alone, alone_aux) = (made.gradients(batch=b) for b in (gaps, steps))
    close(with_gaps._replace(mask=None), alone._replace(mask=None), 2e-5)
    close(gaps_aux.metrics, alone_aux.metrics, 2e-5)


def test_noise_differs_by_row_by_key_and_by_state():
    made = case("continuous", **RICH)
    copies = copies_of(batch_of("continuous"))
    one = made.gradients(batch=copies)[1].priorities
    assert len(np.unique(one)) == 8
    two = made.gradients(batch=copies, key=jax.random.PRNGKey(1))[1].priorities
    assert not np.any(np.asarray(one) == np.asarray(two))

    def drawn_noise(state):
        drawn = []
        with pytest.MonkeyPatch.context() as patch:
            real = mpo.row_normals
            patch.setattr(mpo, "row_normals", lambda *a: drawn.append(real(*a)) or drawn[-1])
            made.algorithm.gradients(state, copies, KEY, made.algorithm.update_mask(0))
        return drawn

    drawn = jax.jit(drawn_noise)(made.state)  # the gradients themselves are not compiled
    assert len(drawn) == 2 and drawn[0].shape == (8, SAMPLES * 2)
    assert not np.any(np.asarray(drawn[0]) == np.asarray(drawn[1]))


@both
def test_everything_in_the_state_changes(kind):
    made = case(kind, **RICH)
    state = made.state
    for index in range(3):
        state, _ = made.update(state, batch_of(kind, seed=index), jax.random.PRNGKey(index), index)
    pairs = zip(
        jax.tree.leaves_with_path(made.state), jax.tree.leaves_with_path(state), strict=True
    )
    for (path, before), (_, after) in pairs:
        constant = str(path[0]) in (".hyper", ".key")
        assert np.array_equal(before, after) == constant, jax.tree_util.keystr(path)
        assert np.all(np.isfinite(after))
    fresh = made.algorithm.init(SPECS[kind], KEY)
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(fresh)]
    assert len(set(pointers)) == len(pointers)  # donated buffers must not be shared


@both
def test_both_targets_are_copied_at_their_interval(kind):
    made = case(kind, **RICH)
    assert made.algorithm.delays.period == 3
    state = made.state
    for index in range(1, 5):
        new, _ = made.update(state, index=index)
        for name in ("actor", "critic"):
            target = getattr(new.targets, name)
            copied = same(target, getattr(new.params, name))
            stayed = same(target, getattr(state.targets, name))
            assert (copied, stayed) == ((True, False) if index == 3 else (False, True))
        state = new


@both
def test_acting(kind):
    """Deterministic: the mode. Exploring: a draw, in its bounds, which may be on them."""
    made = case(kind, initial_std=0.9)
    policy, act = made.algorithm.policy(made.state), compiled(made.algorithm, "act")
    rows = 3 * np.random.default_rng(0).normal(size=(400, 3))
    observation, first = jnp.asarray(rows, jnp.float32), jnp.ones(400, bool)
    keys = [jax.random.PRNGKey(seed) for seed in (0, 1)]
    calm, memory, _ = act(policy, (), observation, first, keys[0], False)
    assert memory == () and same(calm, act(policy, (), observation, first, keys[1], False)[0])
    answer = made.policy_at(observation)
    one, two = (np.asarray(act(policy, (), observation, first, key, True)[0]) for key in keys)
    if kind == "discrete":
        assert calm.dtype == one.dtype == jnp.int32 and calm.shape == (400,)
        np.testing.assert_array_equal(calm, np.argmax(answer.logits, -1))
        assert set(one) == {0, 1, 2, 3} and np.mean(one == two) < 0.6
        often = [np.mean(one == choice) for choice in range(4)]
        odds = np.exp(np.asarray(answer.logits))
        chance = np.mean(odds / odds.sum(-1, keepdims=True), 0)
        np.testing.assert_allclose(often, chance, atol=0.08)
    else:
        np.testing.assert_allclose(calm, answer.mean, rtol=1e-5)
        assert np.all(np.abs(one) <= 1) and 0.05 < np.mean(np.abs(one) == 1) < 0.6
        free = (np.abs(one) < 1) & (np.abs(two) < 1)
        assert not np.any((one == two)[free])


@both
def test_questions(kind):
    made = case(kind, **RICH)
    observation = jnp.asarray(np.random.default_rng(2).normal(size=(6, 3)), jnp.float32)
    action = batch_of(kind, 6).action
    actor, critics = (
        by_hand.numbers(made.state.params.actor),
        by_hand.numbers(made.state.params.critic),
    )
    wide, taken = np.asarray(observation, np.float64), np.asarray(action)
    q = made.ask("q_values", observation, action)
    log_prob = made.ask("log_prob", observation, action)
    value = made.ask("value", observation)
    assert q.shape == (3, 6) and value.shape == (6,)
    if kind == "discrete":
        every = choices_q(critics, wide)
        np.testing.assert_allclose(q, every[:, np.arange(6), taken], rtol=1e-4, atol=1e-5)
        p = chances(actor, wide)
        np.testing.assert_allclose(log_prob, np.log(p[np.arange(6), taken]), rtol=1e-4)
        np.testing.assert_allclose(value, (p * every.min(0)).sum(1), rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_allclose(q, by_hand.all_q(critics, wide, taken), rtol=1e-4, atol=1e-5)
        want = stats.norm(*normal(actor, wide)).logpdf(taken).sum(-1)
        np.testing.assert_allclose(log_prob, want, rtol=1e-4)
        many = MPO(MPOConfig(**{**SMALL, **RICH, "sample_action_num": 4000}))
        mean, std = normal(actor, wide)
        noise = np.random.default_rng(0).normal(size=(6, 4000, 2))
        action = mean[:, None] + std[:, None] * noise
        want = smallest_q(critics, wide, action).mean(1)
        value = compiled(many, "value")(made.state, observation)
        np.testing.assert_allclose(value, want, atol=0.01)


def test_observations_are_normalized_where_that_is_on():
    made = case("discrete", normalize_observations=True)
    rows = (5.0 + 3.0 * np.random.default_rng(0).normal(size=(50, 3))).astype(np.float32)
    scaled = jnp.asarray((rows - np.mean(rows, 0)) / np.std(rows, 0))
    rows = jnp.asarray(rows)
    state = observed(made.state, rows)
    want = np.argmax(made.policy_at(scaled).logits, -1)
    policy = made.algorithm.policy(state)
    act = compiled(made.algorithm, "act")
    got = act(policy, (), rows, jnp.ones(50, bool), KEY, False)[0]
    assert np.mean(np.asarray(got) == want) > 0.95
    log_prob = query(made.algorithm, DISCRETE, "log_prob", state, rows, got)
    want = jax.jit(lambda actor: actor(scaled).log_prob(got))(made.state.params.actor)
    np.testing.assert_allclose(log_prob, want, rtol=1e-3, atol=1e-4)


def test_actors_and_specs():
    assert isinstance(case("discrete", **RICH).state.params.actor, CategoricalActor)
    algorithm = case("continuous", **RICH).algorithm
    algorithm.check(SPEC)
    algorithm.check(DISCRETE)
    several = Spec(ArraySpec((3,)), MultiDiscrete((2, 3), (0, 0), (2,)))
    with pytest.raises(EnvironmentError, match=r"continuous .* or Discrete"):
        algorithm.check(several)
    unbounded = Spec(ArraySpec((3,)), Continuous((-np.inf,), (np.inf,), (1,)))
    with pytest.raises(EnvironmentError, match="bounded"):
        algorithm.check(unbounded)


def test_all_problems_of_a_config_are_told():
    with pytest.raises(ConfigError) as told:
        MPOConfig(initial_std=1.0, max_multiplier=0.5, max_var_multiplier=2, critic_subset=4)
    for part in (
        "initial_std must be below 1",
        "initial_multiplier 1 is above max_multiplier 0.5",
        "initial_var_multiplier 10 is above max_var_multiplier 2",
        "critic_subset 4",
    ):
        assert part in str(told.value)
    moving = MPOConfig().moving()
    assert {"dual_constraint", "kl_mean_constraint", "dual_learning_rate"} <= set(moving)


@both
def test_add_ons(kind):
    def quiet(actor, batch, key):
        spread = jnp.mean(actor(batch.observation).entropy())
        return -0.1 * spread, {"spread": spread}

    plain, added = case(kind, **RICH), MPO(MPOConfig(**{**SMALL, **RICH}), loss_addons=(quiet,))

    @jax.jit
    def with_term(state, batch):  # only its metrics are compiled
        return added.gradients(state, batch, KEY, added.update_mask(0))[1].metrics

    aux = plain.gradients()[1].metrics, with_term(plain.state, batch_of(kind))
    difference = float(aux[1]["actor_loss"] - aux[0]["actor_loss"])
    assert difference == pytest.approx(-0.1 * float(aux[1]["addon/spread"]), rel=1e-3)
    assert float(aux[0]["entropy"]) == pytest.approx(float(aux[1]["addon/spread"]), rel=1e-5)
