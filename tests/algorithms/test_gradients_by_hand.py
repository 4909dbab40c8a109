"""Whole `gradients` of both algorithms against NumPy in float64 and central differences."""

import importlib
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms import by_hand
from tests.algorithms.algorithm_cases import Case, make_batch, parts_of

# rows with more than one clipped draw: 0.2·4 > 0.5
NOISE = np.random.default_rng(5).normal(size=(8, 2)) * 2.5


@cache
def computed(name, use_log=True, critic_subset=None, **more):
    """Gradients, metrics and priorities with known noise in place of the drawn one."""
    learner = importlib.import_module(f"understudy.algorithms.{name}.{name}")
    settings: dict[str, Any] = dict(num_critics=3, **more)
    if name == "sac":
        settings |= dict(use_log_temperature=use_log, initial_temperature=0.3)
        settings |= dict(critic_subset=critic_subset)
    made = Case(name, **settings)

    def known(key, row, size):
        return jnp.tile(jnp.asarray(NOISE, jnp.float32), (1, size // 2))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner, "row_normals", known)
        gradients, aux = made.gradients()
    return made.state, gradients, aux


def agree(got, want):
    got = by_hand.numbers(got)
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-5)


def agree_critic(state, gradients, aux, target, factor):
    batch, critics = by_hand.wide(make_batch()), by_hand.numbers(state.params.critic)

    def loss(weights):
        return factor * by_hand.squared_error(weights, batch, target)

    assert float(aux.metrics["critic_loss"]) == pytest.approx(loss(critics), rel=1e-4)
    agree(gradients.params.critic, by_hand.derivative(loss, critics))
    q = by_hand.all_q(critics, batch.observation, batch.action)
    np.testing.assert_allclose(aux.priorities, np.abs(q - target).mean(0), rtol=1e-4)
    assert float(aux.metrics["q_mean"]) == pytest.approx(q.mean(), rel=1e-3)


def td3_target(state, actor="target_actor", critic="target_critic", opinion=np.min):
    parts = (by_hand.numbers(parts_of(state)[name]) for name in (actor, critic))
    return by_hand.td3_target(*parts, by_hand.wide(make_batch()), 0.2, 0.5, NOISE, opinion)


def test_td3_critic():
    state, gradients, aux = computed("td3")
    agree_critic(state, gradients, aux, td3_target(state), 1.0)


@pytest.mark.parametrize("wrong", [{"actor": "actor"}, {"critic": "critic"}])
def test_td3_takes_both_targets(wrong):
    """The online actor or critic in the target would give visibly other priorities."""
    state, _, aux = computed("td3")
    batch = by_hand.wide(make_batch())
    q = by_hand.all_q(by_hand.numbers(state.params.critic), batch.observation, batch.action)
    other = np.abs(q - td3_target(state, **wrong)).mean(0)
    assert np.max(np.abs(np.asarray(aux.priorities) - other)) > 1e-2


def test_td3_actor():
    state, gradients, aux = computed("td3")
    batch, critics = by_hand.wide(make_batch()), by_hand.numbers(state.params.critic)

    def loss(weights):
        return by_hand.td3_actor_loss(weights, critics, batch)

    actor = by_hand.numbers(state.params.actor)
    assert float(aux.metrics["actor_loss"]) == pytest.approx(loss(actor), rel=1e-4)
    agree(gradients.params.actor, by_hand.derivative(loss, actor))


@pytest.mark.parametrize("use_log", [True, False])
def test_sac_critic(use_log):
    state, gradients, aux = computed("sac", use_log)
    target = by_hand.sac_target(
        by_hand.numbers(state.params.actor),
        by_hand.numbers(state.targets.critic),
        by_hand.wide(make_batch()),
        0.3,
        NOISE,
    )
    agree_critic(state, gradients, aux, target, 0.5)


@pytest.mark.parametrize(
    "use_log, critic_subset, opinion",
    [(True, None, np.min), (False, None, np.min), (True, 2, np.mean)],
)
def test_sac_actor(use_log, critic_subset, opinion):
    """Against the smallest opinion; with a subset in the target against the mean of all critics
    (REDQ's algorithm 1)."""
    state, gradients, aux = computed("sac", use_log, critic_subset)
    batch, critics = by_hand.wide(make_batch()), by_hand.numbers(state.params.critic)

    def loss(weights):
        return by_hand.sac_actor_loss(weights, critics, batch, 0.3, NOISE, opinion)

    actor = by_hand.numbers(state.params.actor)
    assert float(aux.metrics["actor_loss"]) == pytest.approx(loss(actor), rel=1e-4)
    agree(gradients.params.actor, by_hand.derivative(loss, actor))


@pytest.mark.parametrize("use_log", [True, False])
def test_sac_temperature(use_log):
    state, gradients, aux = computed("sac", use_log)
    batch = by_hand.wide(make_batch())
    _, log_prob = by_hand.gaussian(by_hand.numbers(state.params.actor), batch.observation, NOISE)
    parameter = np.log(0.3) if use_log else 0.3
    slope = -np.mean(batch.weight * (log_prob - 2.0))  # the target is minus two dimensions
    assert float(aux.metrics["ent_coef"]) == pytest.approx(0.3, rel=1e-6)
    assert float(aux.metrics["entropy"]) == pytest.approx(-log_prob.mean(), rel=1e-4)
    assert float(gradients.params.temperature) == pytest.approx(slope, rel=1e-4)
    assert float(aux.metrics["ent_coef_loss"]) == pytest.approx(parameter * slope, rel=1e-4)


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_every_weight_has_a_gradient(name):
    """Above all the actor's: the trap is a draw or a Q with no path back to it."""
    _, gradients, _ = computed(name)
    for part in (gradients.params.actor, gradients.params.critic):
        for leaf in by_hand.numbers(part):
            assert np.all(np.abs(leaf) > 1e-9)


MEAN = dict(target_critics="mean", actor_critics="mean")
SMALLEST = dict(critic_subset=2, actor_critics="minimum")


def test_td3_by_the_mean_of_its_critics():
    state, gradients, aux = computed("td3", **MEAN)
    agree_critic(state, gradients, aux, td3_target(state, opinion=np.mean), 1.0)
    batch, critics = by_hand.wide(make_batch()), by_hand.numbers(state.params.critic)

    def loss(weights):
        return by_hand.td3_actor_loss(weights, critics, batch, np.mean)

    agree(gradients.params.actor, by_hand.derivative(loss, by_hand.numbers(state.params.actor)))


def test_td3s_actor_by_the_minimum_of_its_critics():
    state, _, aux = computed("td3", actor_critics="minimum")
    batch, critics = by_hand.wide(make_batch()), by_hand.numbers(state.params.critic)
    actor = by_hand.numbers(state.params.actor)
    want = by_hand.td3_actor_loss(actor, critics, batch, np.min)
    assert float(aux.metrics["actor_loss"]) == pytest.approx(want, rel=1e-4)
    assert want != pytest.approx(by_hand.td3_actor_loss(actor, critics, batch), rel=1e-2)


def test_sac_by_the_mean_of_its_critics():
    state, gradients, aux = computed("sac", **MEAN)
    batch, actor = by_hand.wide(make_batch()), by_hand.numbers(state.params.actor)
    critics, targets = map(by_hand.numbers, (state.params.critic, state.targets.critic))
    target = by_hand.sac_target(actor, targets, batch, 0.3, NOISE, np.mean)
    agree_critic(state, gradients, aux, target, 0.5)
    want = by_hand.sac_actor_loss(actor, critics, batch, 0.3, NOISE, np.mean)
    assert float(aux.metrics["actor_loss"]) == pytest.approx(want, rel=1e-4)


def test_the_actor_may_use_the_minimum_beside_a_subset_in_the_target():
    state, _, aux = computed("sac", **SMALLEST)
    batch, actor = by_hand.wide(make_batch()), by_hand.numbers(state.params.actor)
    critics = by_hand.numbers(state.params.critic)
    want = by_hand.sac_actor_loss(actor, critics, batch, 0.3, NOISE)
    assert float(aux.metrics["actor_loss"]) == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize(
    ("networks", "actor", "critic"),
    [("critics", "actor", "target_critic"), ("off", "actor", "critic")],
)
def test_td3_without_targets(networks, actor, critic):
    """The networks themselves value the next state, and no gradient goes through them."""
    state, gradients, aux = computed("td3", target_networks=networks)
    assert state.targets.actor is None and (state.targets.critic is None) == (networks == "off")
    agree_critic(state, gradients, aux, td3_target(state, actor, critic), 1.0)


def test_sac_without_targets():
    state, gradients, aux = computed("sac", target_networks="off")
    batch, actor = by_hand.wide(make_batch()), by_hand.numbers(state.params.actor)
    critics = by_hand.numbers(state.params.critic)
    target = by_hand.sac_target(actor, critics, batch, 0.3, NOISE)
    agree_critic(state, gradients, aux, target, 0.5)
