"""SAC and TD3 with BatchNorm, BatchRenorm or the network of FlashSAC, against NumPy in float64: the
joint pass of critics, the actor, the running statistics, and what does not change them."""

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
    SPEC,
    Case,
    close,
    compiled,
    gaps_and_steps,
    make_batch,
    mapped,
    same,
    settled,
)
from tests.networks.batch_norm_cases import forward, like_trained, parts, residual_forward
from understudy.algorithms import find, joint_pass
from understudy.algorithms.a2c import A2CConfig
from understudy.algorithms.ddpg import DDPGConfig
from understudy.algorithms.ddqn import DDQNConfig
from understudy.algorithms.mpo import MPOConfig
from understudy.algorithms.sac import SAC, SACConfig
from understudy.algorithms.td3 import TD3Config
from understudy.networks.batch_norm import BatchNormalized, BatchStatistics, without_statistics
from understudy.networks.ensembles import hidden_layers
from understudy.networks.residual import FlashSAC
from understudy.ops.densities import row_normals
from understudy.types import ConfigError, Discrete, Spec

pytestmark = pytest.mark.agents

NEXT_ACTION = np.tanh(np.random.default_rng(5).normal(size=(8, 2)))
WEIGHT = np.array([1.5, 1.0, 0.0, 2.0, 0.5, 0.0, 1.0, 1.2], np.float32)
EACH = pytest.mark.parametrize("name", ["sac", "td3"])
SETTINGS: dict[str, dict[str, Any]] = {
    "batch": dict(normalization="batch"),
    "batch_renorm": dict(normalization="batch_renorm", renorm_warm_up=2),
    "flashsac": dict(network="flashsac"),
}
KINDS = pytest.mark.parametrize("kind", SETTINGS)
CRITICS = 2


def batch_with_gaps():
    return make_batch()._replace(weight=jnp.asarray(WEIGHT))


@cache
def made(name, kind) -> Any:
    case = Case(name, num_critics=CRITICS, **SETTINGS[kind])
    state, actor = case.state, like_trained(case.state.params.actor, seed=1)
    # Small outputs: by the textbook, the density of an action near a bound is inexact.
    actor = eqx.tree_at(lambda x: x.head, actor, mapped(lambda x: x / 3, actor.head))
    case.state = settled(
        state._replace(
            params=state.params._replace(
                actor=actor,
                critic=like_trained(state.params.critic, seed=2),
            ),
            targets=like_trained(state.targets, seed=3),
        )
    )
    return case


@cache
def computed(name, kind):
    """A state, and its gradients, metrics and priorities."""
    case = made(name, kind)
    return case.state, *case.gradients(batch=batch_with_gaps())


@cache
def noise_of(name):
    """The noise of the actor's action and of the target's, which the algorithm draws by row."""
    key, rows = jax.random.split(KEY, 3)[0], make_batch().row
    drawn = np.asarray(row_normals(key, rows, 4 if name == "sac" else 2), float)
    return np.split(drawn, 2, axis=-1) if name == "sac" else (None, drawn)


class Net:
    """A network in NumPy: its weights, and the statistics of its BatchNorms."""

    def __init__(self, network, index=None):
        if index is not None:
            network = mapped(lambda x: x[index], network)
        self.weights = by_hand.numbers(without_statistics(network))
        self.statistics = parts(network.encoder)[1]
        self.layers = network.encoder

    def __call__(self, x, counted=None, fixed=None, weights=None):
        """The outputs; `counted` rows have the statistics. Also the corrections and the moments."""
        *layers, weight, bias = self.weights if weights is None else weights
        if isinstance(self.layers, FlashSAC):
            features, moments = residual_forward(layers, self.statistics, x, counted)
            return features @ weight + bias, [], moments
        first = self.layers.normalizes_first
        features, used, moments = forward(layers, self.statistics, x, counted, first, fixed)
        return features @ weight + bias, used, moments


def critics_of(stacked):
    return [Net(stacked, index) for index in range(CRITICS)]


def joint_rows(batch, next_action):
    here = np.concatenate([batch.observation, batch.action], -1)
    there = np.concatenate([batch.next_observation, next_action], -1)
    return np.concatenate([here, there]), np.tile(WEIGHT > 0, 2)


def actor_rows(kind, batch):
    """What the actor of a loss sees, and which rows are steps. That of FlashSAC sees the next
    observations as well."""
    seen, counted = [batch.observation], WEIGHT > 0
    if kind == "flashsac":
        seen, counted = [*seen, batch.next_observation], np.tile(counted, 2)
    return np.concatenate(seen), counted


def target_of(name, state, batch):
    """The target, and the action that it judges: of an actor in evaluation."""
    noise = noise_of(name)[1]
    if name == "sac":
        outputs = Net(state.params.actor)(batch.next_observation)[0]
        action, log_prob = by_hand.squashed(outputs, noise)
        bonus = -np.exp(float(state.params.temperature)) * log_prob
    else:
        outputs = np.tanh(Net(state.targets.actor)(batch.next_observation)[0])
        action, bonus = np.clip(outputs + np.clip(0.2 * noise, -0.5, 0.5), -1, 1), 0.0
    rows = joint_rows(batch, action)
    next_q = [critic(*rows)[0][8:, 0] for critic in critics_of(state.targets.critic)]
    return batch.reward + batch.discount * (np.min(next_q, axis=0) + bonus), action


def agree(gradient, want):
    got = by_hand.numbers(without_statistics(gradient))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4 + 1e-3 * np.abs(y).max())


@KINDS
@EACH
def test_critics_see_both_observations_in_one_batch(name, kind):
    state, found, aux = computed(name, kind)
    batch, critics = by_hand.wide(batch_with_gaps()), critics_of(state.params.critic)
    target, next_action = target_of(name, state, batch)
    rows = joint_rows(batch, next_action)
    factor, total, errors = 0.5 if name == "sac" else 1.0, 0.0, []
    for place, critic in enumerate(critics):
        fixed = critic(*rows)[1] or None

        def loss(weights, critic=critic, fixed=fixed):
            q = critic(*rows, fixed, weights)[0][:8, 0]
            return factor * np.mean(WEIGHT * (q - target) ** 2)

        total += loss(critic.weights)
        errors.append(np.abs(critic(*rows)[0][:8, 0] - target))
        own = mapped(lambda x, place=place: x[place], found.params.critic)
        agree(own, by_hand.derivative(loss, critic.weights))
    assert float(aux.metrics["critic_loss"]) == pytest.approx(total, rel=1e-3)
    np.testing.assert_allclose(
        aux.priorities[WEIGHT > 0], np.mean(errors, 0)[WEIGHT > 0], rtol=2e-3, atol=1e-4
    )


@KINDS
@EACH
def test_the_actor_has_the_statistics_of_its_batch_and_critics_their_running_ones(name, kind):
    state, found, aux = computed(name, kind)
    batch, actor = by_hand.wide(batch_with_gaps()), Net(state.params.actor)
    critics, seen = critics_of(state.params.critic), actor_rows(kind, batch)
    fixed = actor(*seen)[1] or None

    def loss(weights):
        outputs = actor(*seen, fixed, weights)[0][:8]
        if name == "sac":
            action, log_prob = by_hand.squashed(outputs, noise_of(name)[0])
            cost = np.exp(float(state.params.temperature)) * log_prob
        else:
            action, cost = np.tanh(outputs), 0.0
        rows = np.concatenate([batch.observation, action], -1)
        judged = [critic(rows)[0][:, 0] for critic in critics]
        q = np.min(judged, axis=0) if name == "sac" else judged[0]
        return np.mean(WEIGHT * (cost - q))

    assert float(aux.metrics["actor_loss"]) == pytest.approx(loss(actor.weights), rel=1e-3)
    agree(found.params.actor, by_hand.derivative(loss, actor.weights))


def assert_changes(layers, net, moments):
    for norm, (mean, variance), (m, v) in zip(layers.norms, net.statistics, moments, strict=True):
        change = norm.statistics
        np.testing.assert_allclose(change.mean, 0.01 * (m - mean), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(change.variance, 0.01 * (v - variance), rtol=1e-3, atol=1e-5)


@KINDS
@EACH
def test_gradients_hold_the_changes_of_the_statistics(name, kind):
    state, found, _ = computed(name, kind)
    batch = by_hand.wide(batch_with_gaps())
    rows = joint_rows(batch, target_of(name, state, batch)[1])
    for place, critic in enumerate(critics_of(state.params.critic)):
        own = mapped(lambda x, place=place: x[place], found.params.critic)
        assert_changes(own.encoder, critic, critic(*rows)[2])
    actor = Net(state.params.actor)
    assert_changes(found.params.actor.encoder, actor, actor(*actor_rows(kind, batch))[2])


def statistics_of(tree):
    is_leaf = lambda node: isinstance(node, BatchStatistics)  # noqa: E731
    found = jax.tree.leaves(tree, is_leaf=is_leaf)
    return [node for node in found if is_leaf(node)]


@EACH
def test_apply_moves_the_statistics_without_an_optimizer(name):
    case = made(name, "batch_renorm")
    state, found = case.state, computed(name, "batch_renorm")[1]
    new = case.apply(state, found)
    both = zip(*map(statistics_of, (state.params, found.params, new.params)), strict=True)
    for before, change, after in both:
        close(after, mapped(np.add, before, change), 1e-6)
        assert (after.updates == before.updates + 1).all()
    assert not statistics_of(state.opt_state) and statistics_of(state.targets)
    tau = 0.005
    pairs = zip(
        *map(statistics_of, (state.targets.critic, new.params.critic, new.targets.critic)),
        strict=True,
    )
    for old, followed, target in pairs:
        close(target, mapped(lambda x, y: x + np.float32(tau) * (y - x), old, followed), 1e-5)


def test_clipping_and_weight_decay_leave_the_statistics_alone():
    state, found, _ = computed("td3", "batch")
    settings = dict(optimizer="adamw", weight_decay=1.0, max_grad_norm=1e-6)
    case = Case("td3", normalization="batch", num_critics=CRITICS, **settings)
    new = case.apply(case.state._replace(params=state.params, targets=state.targets), found)
    both = zip(*map(statistics_of, (state.params, found.params, new.params)), strict=True)
    for before, change, after in both:
        close(after, mapped(np.add, before, change), 1e-6)


def test_a_delayed_actor_keeps_its_statistics():
    case = made("td3", "batch_renorm")
    new, _ = case.update(index=1)
    assert same(new.params.actor, case.state.params.actor)
    pairs = zip(*map(statistics_of, (case.state.params.critic, new.params.critic)), strict=True)
    assert all((after.updates == before.updates + 1).all() for before, after in pairs)


@KINDS
@EACH
def test_update_is_apply_after_gradients_and_gaps_count_nowhere(name, kind):
    case = made(name, kind)
    gaps, steps = gaps_and_steps(make_batch())
    (with_gaps, gaps_aux), (alone, alone_aux) = (
        case.gradients(batch=batch) for batch in (gaps, steps)
    )
    close(with_gaps._replace(mask=None), alone._replace(mask=None), 1e-4)
    close(gaps_aux.metrics, alone_aux.metrics, 1e-4)
    close(case.apply(case.state, with_gaps), case.update(batch=gaps)[0], 1e-5)


@pytest.mark.parametrize("copied", [False, True])
def test_the_targets_may_be_the_critics_themselves(copied):
    """CrossQ has no target networks: the target is the other half of the same pass."""
    case, batch = made("sac", "batch"), batch_with_gaps()
    critics, next_action = case.state.params.critic, jnp.asarray(NEXT_ACTION, jnp.float32)

    @jax.jit
    def halves(critics, batch):
        targets = jax.tree.map(lambda x: x, critics) if copied else critics
        online, targets = joint_pass.normalize_jointly(
            joint_pass.encode_online(critics, batch), targets, batch, lambda: next_action
        )
        return hidden_layers(online.critic).features, hidden_layers(targets).features

    got = np.concatenate(halves(critics, batch), axis=1)
    rows = joint_rows(by_hand.wide(batch), NEXT_ACTION)
    for critic, features in zip(critics_of(critics), got, strict=True):
        *layers, _, _ = critic.weights
        want = forward(layers, critic.statistics, *rows, True)[0]
        np.testing.assert_allclose(features[rows[1]], want[rows[1]], rtol=1e-3, atol=1e-4)


@KINDS
def test_acting_takes_running_statistics_and_keeps_them(kind):
    case = made("sac", kind)
    policy, rows = case.algorithm.policy(case.state), make_batch().observation

    def act(rows):
        first = jnp.zeros(len(rows), bool)
        return compiled(case.algorithm, "act")(policy, (), rows, first, KEY, False)[0]

    np.testing.assert_allclose(act(rows)[2], act(rows[2:3])[0], rtol=1e-5)
    outputs = Net(case.state.params.actor)(np.asarray(rows, float))[0]
    np.testing.assert_allclose(act(rows), np.tanh(outputs[:, :2]), rtol=1e-3, atol=1e-4)


def test_a_loss_add_on_sees_the_actor_in_evaluation():
    def addon(actor, batch, key):
        return jnp.float32(0.0), {"answer": jnp.sum(actor.mode(batch.observation[:3]))}

    case = Case("td3", loss_addons=(addon,), normalization="batch", num_critics=CRITICS)
    case.state = made("td3", "batch").state
    _, aux = case.gradients()
    wanted = Net(case.state.params.actor)(np.asarray(make_batch().observation[:3], float))[0]
    assert float(aux.metrics["addon/answer"]) == pytest.approx(np.tanh(wanted).sum(), rel=1e-3)


def test_discrete_actions_are_no_inputs_of_the_joint_pass():
    algorithm = SAC(SACConfig(hidden_sizes=(4,), normalization="batch"))
    batch = make_batch()._replace(action=jnp.asarray(np.arange(8) % 3, jnp.int32))
    spec = Spec(SPEC.observation, Discrete(3))
    state = jax.jit(lambda key: algorithm.init(spec, key))(KEY)
    mask = algorithm.update_mask(0)
    found, aux = jax.jit(lambda s, b: algorithm.gradients(s, b, KEY, mask))(state, batch)
    seen = np.concatenate([batch.observation, batch.next_observation])
    change = found.params.critic.encoder.norms[0].statistics
    np.testing.assert_allclose(change.mean, 0.01 * np.tile(seen.mean(0), (2, 1)), rtol=1e-4)
    np.testing.assert_allclose(change.variance, 0.01 * np.tile(seen.var(0) - 1, (2, 1)), rtol=1e-3)
    assert np.isfinite(aux.metrics["actor_loss"])


def test_without_the_option_there_are_no_statistics():
    for name in ("sac", "td3"):
        algorithm = find(name)(find(name).config_class(hidden_sizes=(4,)))
        state = jax.eval_shape(lambda algorithm=algorithm: algorithm.init(SPEC, KEY))
        assert not statistics_of(state)
        assert not isinstance(state.params.actor.encoder, BatchNormalized)


def test_normalizations_exclude_each_other():
    for config in (SACConfig, TD3Config):
        with pytest.raises(ConfigError, match="layer_norm excludes normalization batch"):
            config(layer_norm=True, normalization="batch")
    with pytest.raises(ConfigError, match="normalization must be one of off, batch, batch_renorm"):
        SACConfig(normalization="layer")


def test_the_network_of_flashsac_is_for_algorithms_that_train_it_by_batches():
    with pytest.raises(ConfigError, match="normalization is for the network mlp, not flashsac"):
        SACConfig(network="flashsac", normalization="batch")
    for config in (DDPGConfig, DDQNConfig, MPOConfig):
        with pytest.raises(ConfigError, match="network must be one of mlp, simba, simbav2, got"):
            config(network="flashsac")
    assert SACConfig(network="flashsac").batch_setting == "network"
    assert TD3Config(normalization="batch").batch_setting == "normalization"
    assert SACConfig(network="simbav2").batch_setting is None is A2CConfig().batch_setting
