"""SAC over discrete actions: gradients against NumPy in float64, and the protocol."""

import math
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms import by_hand
from tests.algorithms.algorithm_cases import (
    KEY,
    SMALL,
    changed,
    close,
    compiled,
    distinct_targets,
    gaps_and_steps,
    mapped,
    same,
    shards_of,
)
from tests.algorithms.algorithm_cases import SPEC as CONTINUOUS
from understudy.algorithms.aux_losses import kl_to_reference
from understudy.algorithms.gradients import mean_of_shards
from understudy.algorithms.sac import SAC, SACConfig, losses
from understudy.buffers import ReplayBuffer
from understudy.networks import CategoricalActor, QValues
from understudy.types import (
    ArraySpec,
    Batch,
    Chunk,
    Discrete,
    EnvironmentError,
    MultiDiscrete,
    Spec,
    Step,
)

CHOICES = 3
SPEC = Spec(ArraySpec((3,)), Discrete(CHOICES))


def make_batch(size=8, seed=0) -> Batch:
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return Batch(
        observation=normal(size, 3),
        action=jnp.asarray(rng.integers(CHOICES, size=size), jnp.int32),
        reward=normal(size),
        discount=jnp.asarray(rng.choice([0.0, 0.9, 0.81], size=size), jnp.float32),
        next_observation=normal(size, 3),
        weight=jnp.asarray(rng.uniform(0.5, 1.5, size=size), jnp.float32),
        row=jnp.asarray(np.arange(size), jnp.int32),
    )


@cache
def made(**settings) -> tuple[Any, Any]:
    """A small agent, and its state as after some training."""
    algorithm: Any = SAC(SACConfig(**{**SMALL, "num_critics": 3, **settings}))
    return algorithm, distinct_targets(algorithm.init(SPEC, KEY))


@cache
def program(algorithm, what):
    function = getattr(algorithm, what)
    return jax.jit(lambda s, b, k, i: function(s, b, k, algorithm.update_mask(i)))


def gradients_of(algorithm, state, batch=None, key=KEY, index=0):
    batch = make_batch() if batch is None else batch
    return program(algorithm, "gradients")(state, batch, key, jnp.int32(index))


def updated(algorithm, state, batch=None, key=KEY, index=0):
    batch = make_batch() if batch is None else batch
    return program(algorithm, "update")(state, batch, key, jnp.int32(index))


# -- whole gradients against NumPy in float64 -------------------------------------------------


def policy_by_hand(actor, observation):
    logits = by_hand.network(actor, observation)
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


def all_q(critics, observation):
    members = range(len(critics[0]))
    return np.stack([by_hand.network([w[i] for w in critics], observation) for i in members])


def target_by_hand(actor, target_critics, batch, alpha):
    p = policy_by_hand(actor, batch.next_observation)
    soft_q = all_q(target_critics, batch.next_observation).min(0) - alpha * np.log(p)
    return batch.reward + batch.discount * (p * soft_q).sum(-1)


def actor_loss_by_hand(actor, critics, batch, alpha, opinion=np.min):
    p = policy_by_hand(actor, batch.observation)
    inner = alpha * np.log(p) - opinion(all_q(critics, batch.observation), axis=0)
    return np.mean(batch.weight * (p * inner).sum(-1))


def taken_by_hand(critics, batch):
    rows = np.arange(len(batch.action))
    return all_q(critics, batch.observation)[:, rows, batch.action.astype(int)]


def agree(got, want):
    for x, y in zip(by_hand.numbers(got), want, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-5)


KINDS = {
    "learned in log space": dict(initial_temperature=0.3),
    "learned as it is": dict(initial_temperature=0.3, use_log_temperature=False),
    "fixed": dict(temperature=0.3),
}
LEARNED: dict[str, Any] = KINDS["learned in log space"]
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_critic(kind):
    algorithm, state = made(**KINDS[kind])
    gradients, aux = gradients_of(algorithm, state)
    batch = by_hand.wide(make_batch())
    actor, critics, targets = map(
        by_hand.numbers, (state.params.actor, state.params.critic, state.targets.critic)
    )
    target = target_by_hand(actor, targets, batch, 0.3)

    def loss(weights):
        error = taken_by_hand(weights, batch) - target
        return 0.5 * np.sum(np.mean(batch.weight * error**2, axis=1))

    assert float(aux.metrics["critic_loss"]) == pytest.approx(loss(critics), rel=1e-4)
    agree(gradients.params.critic, by_hand.derivative(loss, critics))
    q = taken_by_hand(critics, batch)
    np.testing.assert_allclose(aux.priorities, np.abs(q - target).mean(0), rtol=1e-4, atol=1e-6)
    assert float(aux.metrics["q_mean"]) == pytest.approx(q.mean(), rel=1e-3)
    other = target_by_hand(actor, critics, batch, 0.3)  # the online critic in the target
    assert np.max(np.abs(np.abs(q - other).mean(0) - aux.priorities)) > 1e-2


@kinds
def test_actor(kind):
    algorithm, state = made(**KINDS[kind])
    gradients, aux = gradients_of(algorithm, state)
    batch, critics = by_hand.wide(make_batch()), by_hand.numbers(state.params.critic)

    def loss(weights):
        return actor_loss_by_hand(weights, critics, batch, 0.3)

    actor = by_hand.numbers(state.params.actor)
    assert float(aux.metrics["actor_loss"]) == pytest.approx(loss(actor), rel=1e-4)
    agree(gradients.params.actor, by_hand.derivative(loss, actor))
    assert all(np.all(np.abs(leaf) > 1e-9) for leaf in by_hand.numbers(gradients.params.actor))


@kinds
def test_temperature(kind):
    algorithm, state = made(**KINDS[kind])
    gradients, aux = gradients_of(algorithm, state)
    batch = by_hand.wide(make_batch())
    p = policy_by_hand(by_hand.numbers(state.params.actor), batch.observation)
    entropy = -(p * np.log(p)).sum(-1)
    assert float(aux.metrics["ent_coef"]) == pytest.approx(0.3, rel=1e-6)
    assert float(aux.metrics["entropy"]) == pytest.approx(entropy.mean(), rel=1e-4)
    if kind == "fixed":
        assert "ent_coef_loss" not in aux.metrics
        assert same(updated(algorithm, state)[0].params.temperature, state.params.temperature)
        return
    slope = np.mean(batch.weight * (entropy - 0.5 * np.log(CHOICES)))
    parameter = np.log(0.3) if kind == "learned in log space" else 0.3
    assert float(gradients.params.temperature) == pytest.approx(slope, rel=1e-4)
    assert float(aux.metrics["ent_coef_loss"]) == pytest.approx(parameter * slope, rel=1e-4)


@pytest.mark.parametrize("use_log", [True, False])
@pytest.mark.parametrize("target, direction", [(0.1, -1), (1.09, 1)])
def test_the_temperature_moves_towards_the_target_entropy(use_log, target, direction):
    """A nearly uniform policy over three has an entropy just under log 3 ≈ 1.099."""
    algorithm, state = made(**KINDS["learned in log space" if use_log else "learned as it is"])
    state = state._replace(hyper={**state.hyper, "target_entropy": jnp.float32(target)})
    if direction > 0:  # surer of itself: below the target
        weights = jnp.asarray(np.asarray(state.params.actor.head.weight) * 10)
        state = changed(
            state, actor=eqx.tree_at(lambda actor: actor.head.weight, state.params.actor, weights)
        )
    new, aux = updated(algorithm, state)
    assert np.sign(target - float(aux.metrics["entropy"])) == direction
    coefficient = compiled(algorithm, "temperature")
    moved = float(coefficient(new)) - float(coefficient(state))
    assert np.sign(moved) == direction


@pytest.mark.parametrize("choices", [2, 6])
def test_default_target_entropies(choices):
    algorithm, _ = made(**LEARNED)

    def target_of(spec):  # the rest of the state is not compiled
        return float(jax.jit(lambda key: algorithm.init(spec, key).hyper["target_entropy"])(KEY))

    want = 0.5 * math.log(choices)  # half of what a uniform choice has
    assert target_of(Spec(SPEC.observation, Discrete(choices))) == pytest.approx(want, rel=1e-6)
    assert target_of(CONTINUOUS) == -2.0
    _, given = made(target_entropy=0.1)
    assert float(given.hyper["target_entropy"]) == pytest.approx(0.1)


def test_a_drawn_critic_speaks_for_all():
    algorithm, state = made(critic_subset=1, temperature=0.3)
    batch = by_hand.wide(make_batch())
    q = taken_by_hand(by_hand.numbers(state.params.critic), batch)
    actor, critics = by_hand.numbers(state.params.actor), by_hand.numbers(state.targets.critic)
    alone = [target_by_hand(actor, [w[i : i + 1] for w in critics], batch, 0.3) for i in range(3)]
    expected = np.stack([np.abs(q - target).mean(0) for target in alone])
    seen = set()
    for seed in range(20):
        got = gradients_of(algorithm, state, key=jax.random.PRNGKey(seed))[1].priorities
        distance = np.abs(expected - np.asarray(got)).max(axis=1)
        assert distance.min() < 1e-4
        seen.add(int(distance.argmin()))
    assert seen == {0, 1, 2}


def test_the_actor_follows_the_mean_of_critics_that_are_drawn_from():
    """REDQ's algorithm 1: all critics' mean, where the target has a subset's minimum."""
    algorithm, state = made(critic_subset=1, temperature=0.3)
    gradients, aux = gradients_of(algorithm, state)
    batch, critics = by_hand.wide(make_batch()), by_hand.numbers(state.params.critic)

    def loss(weights):
        return actor_loss_by_hand(weights, critics, batch, 0.3, np.mean)

    actor = by_hand.numbers(state.params.actor)
    assert float(aux.metrics["actor_loss"]) == pytest.approx(loss(actor), rel=1e-4)
    agree(gradients.params.actor, by_hand.derivative(loss, actor))


# -- the protocol -----------------------------------------------------------------------------


def test_rows_that_are_no_steps_count_nowhere():
    algorithm, state = made(**LEARNED)
    answers = [gradients_of(algorithm, state, batch) for batch in gaps_and_steps(make_batch())]
    (with_gaps, gaps_aux), (alone, alone_aux) = answers
    close(with_gaps._replace(mask=None), alone._replace(mask=None), 1e-5)
    close(gaps_aux.metrics, alone_aux.metrics, 1e-5)


def test_the_networks_are_those_of_discrete_actions():
    _, state = made(**LEARNED)
    assert isinstance(state.params.actor, CategoricalActor) and isinstance(
        state.params.critic, QValues
    )
    assert state.params.critic.head.bias.shape == (3, CHOICES) and SACConfig().num_critics == 2
    weight = np.asarray(state.params.critic.head.weight)
    assert not np.array_equal(weight[0], weight[1])


def test_update_is_apply_after_gradients():
    algorithm, state = made(**LEARNED)
    gradients, aux = gradients_of(algorithm, state)
    new, update_aux = updated(algorithm, state)
    close(compiled(algorithm, "apply")(state, gradients), new, 1e-5)
    close(aux, update_aux, 1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(dict(critic_subset=1, temperature=0.3), id="subset"),
        pytest.param(LEARNED, id="all", marks=pytest.mark.slow),
    ],
)
def test_mean_of_the_shards_is_the_whole(settings):
    algorithm, state = made(**settings)
    batch = make_batch()
    whole, whole_aux = gradients_of(algorithm, state)
    shards = [gradients_of(algorithm, state, shard) for shard in shards_of(batch)]
    mean = mean_of_shards([jax.device_get(gradients) for gradients, _ in shards])
    close(mean._replace(mask=None), whole._replace(mask=None), 1e-5)
    priorities = np.concatenate([aux.priorities for _, aux in shards])
    np.testing.assert_allclose(priorities, whole_aux.priorities, rtol=1e-4, atol=1e-5)


def test_nothing_is_drawn_for_an_update():
    """Expectations are exact: another key, the same gradients."""
    algorithm, state = made(**LEARNED)
    one, two = (gradients_of(algorithm, state, key=jax.random.PRNGKey(s))[0] for s in (0, 1))
    assert same(one._replace(mask=None), two._replace(mask=None))


def test_everything_in_the_state_changes():
    algorithm, state = made(**LEARNED)
    new = state
    for index in range(3):
        new, _ = updated(algorithm, new, make_batch(seed=index), index=index)
    pairs = zip(jax.tree.leaves_with_path(state), jax.tree.leaves_with_path(new), strict=True)
    for (path, before), (_, after) in pairs:
        constant = str(path[0]) in (".hyper", ".key")
        assert np.array_equal(before, after) == constant, jax.tree_util.keystr(path)
        assert np.all(np.isfinite(after))


def test_targets_wait_for_their_turn():
    algorithm, state = made(target_update_interval=2, tau=0.2)
    first, _ = updated(algorithm, state, index=0)
    second, _ = updated(algorithm, state, index=1)
    want = mapped(lambda t, n: 0.8 * t + 0.2 * n, state.targets.critic, first.params.critic)
    close(first.targets.critic, want, 1e-5)
    assert same(second.targets.critic, state.targets.critic)


def test_acting_samples_when_exploring_and_takes_the_likeliest_otherwise():
    algorithm, state = made(**LEARNED)
    policy, act = algorithm.policy(state), compiled(algorithm, "act")
    row = np.array([1.0, -0.5, 2.0])
    rows, first = jnp.asarray(np.tile(row, (6_000, 1)), jnp.float32), jnp.ones(6_000, bool)
    probabilities = policy_by_hand(by_hand.numbers(state.params.actor), row)
    calm, memory, _ = act(policy, (), rows, first, KEY, False)
    assert memory == () and calm.dtype == jnp.int32 and calm.shape == (6_000,)
    assert np.all(calm == probabilities.argmax())
    action, _, extras = act(policy, (), rows, first, KEY, True)
    assert action.dtype == jnp.int32
    shares = np.bincount(action, minlength=CHOICES) / 6_000
    np.testing.assert_allclose(shares, probabilities, atol=0.025)
    np.testing.assert_allclose(extras["log_prob"], np.log(probabilities)[action], rtol=1e-5)
    asked = compiled(algorithm, "log_prob")(state, rows, action)
    np.testing.assert_allclose(asked, extras["log_prob"], rtol=1e-6)


def test_q_values_are_those_of_the_action():
    algorithm, state = made(**LEARNED)
    batch = make_batch()
    got = compiled(algorithm, "q_values")(state, batch.observation, batch.action)
    want = taken_by_hand(by_hand.numbers(state.params.critic), by_hand.wide(batch))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert got.shape == (3, 8)


def test_truncation_bootstraps_and_termination_does_not():
    algorithm, state = made(**KINDS["fixed"])

    @jax.jit
    def batch_and_target(state):
        buffer = ReplayBuffer(SPEC, 4, 1, batch_size=64)
        steps = buffer.init()
        for kind in (0.0, 1.0, 2.0):  # an ordinary step, a truncated one, a terminated one
            row = jnp.full((1, 3), kind)
            step = Step(
                observation=row,
                action=jnp.array([int(kind)], jnp.int32),
                reward=jnp.full(1, 10.0 + kind),
                terminated=jnp.array([kind == 2.0]),
                last=jnp.array([kind > 0.0]),
                next_observation=row + 0.25,
            )
            steps = buffer.add(steps, Chunk.of_one_step(step, jnp.array([True])))
        hyper = {"gamma": jnp.float32(0.9), "reward_scale": jnp.float32(1.0)}
        batch, _ = buffer.sample(steps, KEY, hyper)
        return batch, losses.discrete_critic_target(
            state.params.actor, state.targets.critic, batch, algorithm.temperature(state)
        )

    batch, got = batch_and_target(state)
    wide = by_hand.wide(batch)
    bootstrapping = wide._replace(reward=np.zeros(64), discount=np.ones(64))
    numbers = by_hand.numbers(state.params.actor), by_hand.numbers(state.targets.critic)
    value = target_by_hand(*numbers, bootstrapping, 0.3)
    kinds_seen = wide.observation[:, 0]
    assert set(kinds_seen) == {0.0, 1.0, 2.0} and np.all(np.abs(value) > 1e-3)
    assert np.all(wide.action == kinds_seen)
    want = 10.0 + kinds_seen + np.where(kinds_seen == 2.0, 0.0, 0.9 * value)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_loss_addons_see_the_distribution():
    """The KL to one's own policy is zero and has no slope; to another one it has both."""
    _, state = made(**LEARNED)
    other = mapped(lambda x: np.float32(2.0) * x, state.params.actor)
    plain, _ = gradients_of(*made(**LEARNED))
    for reference, none in ((state.params.actor, True), (other, False)):
        algorithm: Any = SAC(
            SACConfig(**SMALL, num_critics=3, **LEARNED),
            loss_addons=(kl_to_reference(reference, coefficient=1.0),),
        )
        gradients, aux = gradients_of(algorithm, state)
        assert (abs(float(aux.metrics["addon/reference_kl"])) < 1e-6) == none
        change = mapped(lambda x, y: x - y, gradients.params.actor, plain.params.actor)
        assert (max(float(np.max(np.abs(x))) for x in jax.tree.leaves(change)) < 1e-5) == none


def test_several_choices_at_once_are_refused():
    algorithm, _ = made(**LEARNED)
    algorithm.check(SPEC)
    algorithm.check(CONTINUOUS)
    with pytest.raises(EnvironmentError, match=r"continuous .* or Discrete"):
        algorithm.check(Spec(SPEC.observation, MultiDiscrete((2, 3), (0, 0), (2,))))
