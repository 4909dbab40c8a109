"""Options of algorithms with replay: targets, learning rates, target entropy, noise, resets.

What the losses of SAC and TD3 do with them is in test_gradients_by_hand.py."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import understudy as us
from tests.algorithms.algorithm_cases import (
    KEY,
    SPEC,
    case,
    changed,
    compiled,
    make_batch,
    mapped,
    same,
)
from tests.algorithms.test_losses_by_hand import BATCH, CRITICS, Fixed
from tests.algorithms.test_sac_discrete_losses import ACTOR, ENTROPY, NAPKIN
from tests.algorithms.test_sac_discrete_losses import CRITICS as CHOOSING
from understudy.algorithms import find
from understudy.algorithms.ddpg import losses as ddpg
from understudy.algorithms.ddqn import losses as ddqn
from understudy.algorithms.mpo import losses as mpo
from understudy.algorithms.optim import Delays
from understudy.algorithms.sac import losses as sac
from understudy.ops.schedules import evaluate
from understudy.ops.targets import average
from understudy.training.transport import places
from understudy.types import ArraySpec, ConfigError, Discrete, Spec

CHOICES = Spec(ArraySpec((3,)), Discrete(3))


def made(name, spec=SPEC, **settings) -> tuple[Any, Any]:
    algorithm = find(name)
    instance: Any = algorithm(algorithm.config_class(hidden_sizes=(4,), **settings))
    return instance, instance.init(spec, KEY)


# -- targets ----------------------------------------------------------------------------------


def test_the_mean_of_continuous_critics_on_a_napkin():
    # At (.5, −.9): Q₁ = −.3 and Q₂ = .9, so the mean is .3; the last row terminated.
    actor = Fixed(jnp.array([0.5, -0.9]))
    got = jax.jit(lambda batch: ddpg.critic_target(actor, CRITICS, batch, average))(BATCH)
    np.testing.assert_allclose(got, [1 + 0.9 * 0.3, 2 + 0.5 * 0.3, 5.0], rtol=1e-6)


def test_the_mean_of_discrete_critics_on_a_napkin():
    """The critics say (1, 4) and (2, −2), so the means are 1½ and 1; probabilities are ¼ and ¾."""

    @jax.jit
    def targets(batch):
        policy = ACTOR(batch.next_observation)
        candidates = mpo.all_candidates(policy, CHOOSING, batch.next_observation, average)
        return (
            sac.discrete_critic_target(ACTOR, CHOOSING, batch, jnp.float32(0.2), average),
            mpo.critic_target(batch, candidates),
            ddqn.critic_target(CHOOSING, CHOOSING, batch, average),
        )

    value = 0.25 * 1.5 + 0.75 * 1.0
    for got, want in zip(targets(NAPKIN), (value + 0.2 * ENTROPY, value, 1.5), strict=True):
        np.testing.assert_allclose(got, [1 + 0.9 * want, 2 + 0.5 * want, 5.0], rtol=1e-5)


@pytest.mark.parametrize("name", ["ddpg", "ddqn", "mpo"])
def test_the_setting_reaches_the_target(name, monkeypatch):
    used = []
    monkeypatch.setattr(
        f"understudy.algorithms.{name}.{name}.REDUCTIONS",
        {"mean": lambda q: used.append(q) or average(q)},
    )
    spec = CHOICES if name == "ddqn" else SPEC
    algorithm, state = made(name, spec, target_critics="mean", num_critics=2)
    batch = make_batch()
    if isinstance(spec.action, Discrete):
        batch = batch._replace(action=jnp.zeros(len(batch.row), jnp.int32))
    jax.eval_shape(lambda s: algorithm.gradients(s, batch, KEY, algorithm.update_mask(0)), state)
    assert used and all(q.shape[0] == 2 for q in used)


@pytest.mark.parametrize("name", ["td3", "sac", "ddpg", "ddqn"])
@pytest.mark.parametrize("networks", ["critics", "off"])
def test_targets_that_do_not_exist_have_no_arrays(name, networks):
    algorithm, state = made(name, CHOICES if name == "ddqn" else SPEC, target_networks=networks)
    assert getattr(state.targets, "actor", None) is None
    assert (state.targets.critic is None) == (networks == "off")
    other = made(name, CHOICES if name == "ddqn" else SPEC)[1]
    assert same(state.params, other.params) and same(state.key, other.key)
    weights = algorithm.get_weights(mapped(lambda x: 0.5 * x, state))
    moved = algorithm.set_weights(state, weights)
    assert same(moved.params.critic, weights["critic"])
    assert networks == "off" or same(moved.targets.critic, weights["critic"])


def test_td3s_target_critics_alone_move_with_every_update():
    alone, both = us.TD3Config(target_networks="critics"), us.TD3Config()
    assert (alone.delays.policy, alone.delays.targets) == (2, 1)
    assert (both.delays.policy, both.delays.targets) == (2, 2)
    one = case("td3", target_networks="critics")
    new, _ = one.update(index=1)  # the actor is delayed
    assert same(new.params.actor, one.state.params.actor)
    assert not same(new.targets.critic, one.state.targets.critic)


def test_mpo_needs_its_target_policy():
    with pytest.raises(ConfigError, match="target_networks must be all, got 'off'"):
        us.MPOConfig(target_networks="off")


# -- learning rates ---------------------------------------------------------------------------


def rates(at, **settings):
    schedules = us.SACConfig(anneal_learning_rate=True, **settings).schedules()
    return {name: evaluate(schedule, at, 1_000) for name, schedule in schedules.items()}


def test_learning_rates_end_where_they_should():
    linear = dict(learning_rate=1e-4, learning_rate_end=0.5, temperature_learning_rate=1e-2)
    for at, share in ((0, 1.0), (500, 0.75), (1_000, 0.5), (2_000, 0.5)):
        want = {"learning_rate": 1e-4 * share, "temperature_learning_rate": 1e-2 * share}
        assert rates(at, **linear) == pytest.approx(want)
    cosine = dict(learning_rate_end=0.5, learning_rate_schedule="cosine")
    for at, want in ((0, 3e-4), (250, 2.78033e-4), (500, 2.25e-4), (1_000, 1.5e-4)):
        # 1.5e-4·(1 + ½·(1 + cos(π·at/1000)))
        assert rates(at, **cosine)["learning_rate"] == pytest.approx(want, rel=1e-5)
    assert rates(1_000)["learning_rate"] == 0.0
    assert us.SACConfig(learning_rate_end=0.5).schedules() == {}  # anneal_learning_rate is off


# -- the target entropy -----------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.15, 1.0])
def test_the_target_entropy_of_a_deviation_is_that_of_the_gaussian(sigma):
    density = scipy.stats.norm(scale=sigma).pdf
    entropy, _ = scipy.integrate.quad(
        lambda x: -density(x) * np.log(density(x)), -8 * sigma, 8 * sigma
    )
    hyper = find("sac")(us.SACConfig(target_entropy_sigma=sigma)).init_hyper(SPEC)
    assert float(hyper["target_entropy"]) == pytest.approx(2 * entropy, rel=1e-5)


def test_the_documented_deviation_gives_half_the_dimensions():
    hyper = find("sac")(us.SACConfig(target_entropy_sigma=0.147)).init_hyper(SPEC)
    assert float(hyper["target_entropy"]) == pytest.approx(-1.0, abs=0.005)


def test_target_entropies_are_alternatives():
    with pytest.raises(ConfigError, match="alternatives: give one"):
        us.SACConfig(target_entropy=-1.0, target_entropy_sigma=0.15)


@pytest.mark.parametrize("settings", [dict(target_entropy_sigma=0.15), dict(max_noise_hold=2)])
def test_settings_of_continuous_actions_are_refused_for_discrete_ones(settings):
    algorithm = find("sac")(us.SACConfig(**settings))
    algorithm.check(SPEC)
    with pytest.raises(ConfigError, match="for continuous actions only"):
        algorithm.check(CHOICES)


# -- noise ------------------------------------------------------------------------------------


def still(algorithm, state):
    """The policy of an actor that answers 0 everywhere."""
    return algorithm.policy(changed(state, actor=mapped(np.zeros_like, state.params.actor)))


def walk(algorithm, policy, envs, steps, begins=()):
    """Actions [steps, envs, 2] of exploring, and the noise states after them; all episodes begin at
    step 0 and at those of `begins`."""
    act, actions, states = compiled(algorithm, "act"), [], []
    memory = compiled(algorithm, "memory")(policy, envs)
    for step in range(steps):
        first = jnp.full(envs, step == 0 or step in begins)
        key = jax.random.PRNGKey(step)
        action, memory, _ = act(policy, memory, jnp.zeros((envs, 3)), first, key, True)
        actions.append(np.asarray(action))
        states.append(memory)
    return np.stack(actions), states


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_held_noise_repeats_actions_until_the_episode_ends(name):
    algorithm, state = made(name, max_noise_hold=16)
    envs = 2_000
    actions, _ = walk(algorithm, still(algorithm, state), envs, 6, begins=(3,))
    kept = (actions[1:] == actions[:-1]).all(axis=-1)
    # P(k > 1) = 1 − 1/Σ k⁻² up to 16
    longer = 1 - 1 / np.sum(np.arange(1, 17) ** -2.0)
    assert kept[0].mean() == pytest.approx(longer, abs=0.04)
    assert not kept[2].any()  # step 3 begins an episode
    deviation = actions.std(axis=(1, 2))
    np.testing.assert_allclose(deviation, deviation[0], rtol=0.08)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_without_the_option_there_is_no_state_of_noise(name):
    algorithm, state = made(name)
    assert algorithm.memory(algorithm.policy(state), 5) == ()


def test_each_environment_has_a_deviation_of_its_own():
    algorithm, state = made("td3", min_exploration_noise=0.1, exploration_noise=0.3)
    policy, envs = still(algorithm, state), 4_000
    actions, states = walk(algorithm, policy, envs, 4, begins=(2,))
    shares = np.stack([np.asarray(one.share) for one in states])
    assert np.array_equal(shares[0], shares[1]) and np.array_equal(shares[2], shares[3])
    assert not np.any(shares[1] == shares[2])
    assert scipy.stats.kstest(shares[0], "uniform").pvalue > 1e-3
    # Dividing by (.1 + .2·u) leaves standard normals. (Clipped ones are rare: 1 is over 3 σ.)
    normals = actions / (0.1 + 0.2 * shares)[..., None]
    assert normals.std() == pytest.approx(1.0, abs=0.02)
    assert scipy.stats.kstest(normals[0].ravel(), "norm").pvalue > 1e-3


def test_a_deviation_is_drawn_also_where_random_actions_came_first():
    """Random actions change no state, so the policy may act first in the middle of an episode."""
    algorithm, state = made("td3", min_exploration_noise=0.1)
    policy, first = still(algorithm, state), jnp.zeros(64, bool)
    memory = algorithm.memory(policy, 64)
    _, memory, _ = compiled(algorithm, "act")(policy, memory, jnp.zeros((64, 3)), first, KEY, True)
    assert np.all(np.asarray(memory.share) >= 0) and len(np.unique(memory.share)) == 64


def test_a_least_deviation_above_the_largest_is_refused():
    with pytest.raises(ConfigError, match=r"min_exploration_noise 0\.5 is larger than"):
        us.TD3Config(min_exploration_noise=0.5, exploration_noise=0.4)


# -- resets -----------------------------------------------------------------------------------


def test_resets_follow_the_numbers_of_updates():
    every, at = Delays(2, 1, reset_every=3), Delays(reset_at=(2, 7))
    for delays, want in ((every, {2, 5, 8}), (at, {1, 6}), (Delays(2), set())):
        assert {index for index in range(9) if delays.mask(index).reset} == want
        traced = jax.jit(lambda index, delays=delays: jnp.asarray(delays.mask(index).reset))
        assert {index for index in range(9) if traced(index)} == want
    assert every.period == 6 and at.period > 10**9 and Delays(2, 3).period == 6
    assert Delays(2).mask(1).reset is False  # then a program has no conditional for it


def test_runs_are_updates_with_equal_masks():
    assert Delays().runs(5, 3) == [(5, 3)]
    assert Delays(2).runs(1, 2) == [(1, 1), (2, 1)]
    assert Delays(20).runs(0, 20) == [(0, 1), (1, 19)]
    assert Delays(20).runs(18, 20) == [(18, 2), (20, 1), (21, 17)]
    assert Delays(20).runs(18, 1) == [(18, 1)] and Delays(20).runs(18, 0) == []
    assert Delays(2, 3).runs(0, 6) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]
    assert Delays(reset_at=(2,)).runs(0, 4) == [(0, 1), (1, 1), (2, 2)]


def test_programs_stand_for_the_updates_of_a_run():
    assert places(Delays()) == (0,)
    assert places(Delays(3)) == (0, 1, 1)
    assert places(Delays(20)) == (0, *[1] * 19)
    assert places(Delays(2, 3)) == ()  # six runs
    assert places(Delays(1, 500)) == places(Delays(reset_at=(9,))) == ()


@pytest.mark.parametrize("kind", [us.SACConfig, us.TD3Config])
def test_the_config_passes_resets_on(kind):
    delays = kind(reset_every=5, reset_at=(7,)).delays
    assert (delays.reset_every, delays.reset_at) == (5, (7,))
