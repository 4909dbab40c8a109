"""REPPO: its targets, losses and gradients by hand, and rows without a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from tests.algorithms.algorithm_cases import KEY, changed, close, compiled, mapped, same
from tests.algorithms.by_hand import derivative, network
from tests.algorithms.reppo_cases import (
    ENVS,
    TIME,
    actor_weights,
    critic_weights,
    histogram,
    kl,
    made,
    make_rollout,
    outputs,
    q_of,
    worth,
)
from understudy.algorithms.base import Algorithm
from understudy.algorithms.gradients import mean_of_shards
from understudy.algorithms.mpo import losses as mpo_losses
from understudy.algorithms.reppo import REPPO, losses
from understudy.algorithms.reppo.reppo import TARGETS
from understudy.ops.densities import row_normals
from understudy.types import Trajectory

KINDS = [
    pytest.param(False, "categorical", id="continuous"),
    pytest.param(True, "categorical", id="discrete"),
    pytest.param(False, "scalar", id="continuous, scalar"),
    pytest.param(True, "scalar", id="discrete, scalar", marks=pytest.mark.slow),
]
ROWS = TIME * ENVS
GAPS = np.ones((TIME, ENVS), bool)
GAPS[[1, 5], 0] = GAPS[3, 1] = False
noise_of = jax.jit(row_normals, static_argnums=2)


def noise_by_row(key, discrete):
    row = jnp.arange(ROWS, dtype=jnp.int32)
    return None if discrete else np.asarray(noise_of(key, row, 2), np.float64)


# -- targets ----------------------------------------------------------------------------------

target_of = jax.jit(losses.critic_target)


def targets(reward, discount, last, q, log_prob, temperature=0.5, trace_decay=0.25):
    """Of a rollout [time, 1], of which targets need nothing else."""
    reward, discount, q, log_prob = (
        jnp.asarray(np.array(x)[:, None], jnp.float32) for x in (reward, discount, q, log_prob)
    )
    last = jnp.asarray(np.array(last)[:, None], bool)
    seen = jnp.zeros((len(last), 1, 1))
    steps = Trajectory(seen, seen, reward, discount, last, seen, jnp.ones_like(last))
    numbers = jnp.float32(temperature), jnp.float32(trace_decay)
    return np.asarray(target_of(steps, q, log_prob, *numbers))[:, 0]


def test_a_target_on_a_napkin():
    """γ = λ = α = ½. The entropy bonus −½·½·log π is 1, 2 and −1. So G₂ = 3 − 1 + ½·30,
    G₁ = 2 + 2 + ½·20 + ¼·(17 − 20) and G₀ = 1 + 1 + ½·10 + ¼·(13.25 − 10)."""
    got = targets([1, 2, 3], [0.5] * 3, [False] * 3, [10, 20, 30], [-4, -8, 4])
    np.testing.assert_allclose(got, [7 + 0.25 * 3.25, 13.25, 17.0])


def test_nothing_follows_a_termination_and_a_truncation_bootstraps():
    """No entropy either. The values of 1,000 are those of another episode."""
    last, q, log_prob = [False, True, False], [10, 20, 1000], [-4, -8, -1000]
    terminated = targets([1, 2, 0], [0.5, 0.0, 0.5], last, q, log_prob)
    np.testing.assert_allclose(terminated[:2], [7 + 0.25 * (2 - 10), 2.0])
    truncated = targets([1, 2, 0], [0.5, 0.5, 0.5], last, q, log_prob)
    np.testing.assert_allclose(truncated[:2], [7 + 0.25 * (14 - 10), 14.0])


@pytest.mark.parametrize("valid", [None, GAPS], ids=["all", "gaps"])
@pytest.mark.parametrize(("discrete", "head"), KINDS)
def test_the_targets_are_those_by_hand(discrete, head, valid):
    """Gₜ = r + d·(−α·log π' + (1 − λ)·Q' + λ·Gₜ₊₁); at an end the bracket has Q' alone."""
    one = made(discrete, critic_head=head)
    batch = one.batch(make_rollout(discrete, valid))
    steps = jax.tree.map(np.asarray, make_rollout(discrete, valid))
    noise = noise_by_row(jax.random.fold_in(one.state.key, TARGETS), discrete)
    networks = actor_weights(one.state), critic_weights(one.state)
    observation = np.asarray(steps.next_observation, np.float64).reshape(ROWS, 3)
    q, log_prob = (x.reshape(TIME, ENVS) for x in worth(*networks, observation, noise))
    want = np.zeros((TIME, ENVS))
    for env in range(ENVS):
        for t in reversed(range(TIME)):
            end = t == TIME - 1 or steps.last[t, env] or not steps.valid[t + 1, env]
            share = 0.0 if end else 0.7
            following = 0.0 if end else want[t + 1, env]
            bracket = -0.3 * log_prob[t, env] + (1 - share) * q[t, env] + share * following
            want[t, env] = steps.reward[t, env] + steps.discount[t, env] * bracket
    happened = steps.valid.reshape(-1)
    np.testing.assert_allclose(
        batch.target[happened], want.reshape(-1)[happened], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(batch.weight > 0, happened)
    assert float(jnp.mean(batch.weight)) == pytest.approx(1.0)
    flat = [x.reshape(ROWS, *x.shape[2:])[happened] for x in (steps.observation, steps.action)]
    assert same((batch.observation[happened], batch.action[happened]), tuple(flat))


def test_the_old_policy_is_that_before_the_updates():
    for discrete in (False, True):
        one = made(discrete)
        batch = one.batch()
        want = network(actor_weights(one.state), np.asarray(batch.observation, np.float64))
        got = np.concatenate(batch.old_policy, -1)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# -- losses -----------------------------------------------------------------------------------


def test_the_actors_loss_switches_at_the_bound():
    """α = ½, β = 3: ½·4 − 1 and ½·2 − 3 below the bound, 3·KL at it and beyond. There is no
    gradient of Q beyond it, and none of the KL below."""
    values = {"temperature": jnp.float32(0.5), "multiplier": jnp.float32(3.0)}
    q, log_prob = jnp.array([1.0, 3.0, 5.0, 7.0]), jnp.array([4.0, 2.0, 0.0, 0.0])
    kls, weight = jnp.array([0.0, 0.09, 0.1, 0.7]), jnp.array([1.0, 2.0, 1.0, 0.0])
    loss = jax.jit(
        jax.value_and_grad(
            lambda q, log_prob, kls: losses.actor_loss(
                q, log_prob, kls, weight, values, jnp.float32(0.1)
            ),
            (0, 1, 2),
        )
    )
    value, slopes = loss(q, log_prob, kls)
    assert float(value) == pytest.approx((1.0 + 2 * -2.0 + 0.3) / 4)
    want = [[-0.25, -0.5, 0, 0], [0.125, 0.25, 0, 0], [0, 0, 0.75, 0]]
    np.testing.assert_allclose(np.stack(slopes), want, atol=1e-7)


def dual_slopes(log_prob, kls, target_entropy=-1.0, bound=0.1):
    duals = {"temperature": jnp.log(jnp.float32(0.5)), "multiplier": jnp.log(jnp.float32(3.0))}
    weight = jnp.array([1.0, 2.0, 0.0])
    numbers = (jnp.asarray(x, jnp.float32) for x in (log_prob, kls))
    ends = jnp.float32(target_entropy), jnp.float32(bound)
    return jax.grad(losses.dual_loss)(duals, *numbers, weight, *ends)


def test_the_temperature_rises_while_the_entropy_is_too_small():
    """The mean of −log π over steps is (−4 + 2·1)/3 = −⅔, against −1 and −0.6."""
    log_prob, kls = [4.0, -1.0, 50.0], [0.0, 0.0, 50.0]
    falls = dual_slopes(log_prob, kls)["temperature"]
    rises = dual_slopes(log_prob, kls, target_entropy=-0.6)["temperature"]
    assert float(falls) == pytest.approx(0.5 * (1 - 2 / 3), rel=1e-5)
    assert float(rises) == pytest.approx(0.5 * (0.6 - 2 / 3), rel=1e-4)


@pytest.mark.parametrize("kls", [[0.0, 0.05, 50.0], [0.1, 0.4, 50.0]])
def test_the_slope_of_the_multiplier_is_that_of_mpo(kls):
    """MPO's dual of the same bound, with the same mean KL; here the step is in log space."""
    got = dual_slopes([0.0, 0.0, 0.0], kls)["multiplier"]
    mean = (kls[0] + 2 * kls[1]) / 3
    of_mpo = jax.grad(
        lambda log: mpo_losses.multiplier_loss(
            {"kl": jnp.exp(log)}, {"kl": jnp.float32(mean)}, {"kl": jnp.float32(0.1)}
        )
    )(jnp.log(jnp.float32(3.0)))
    assert float(got) == pytest.approx(float(of_mpo), rel=1e-5)
    assert (float(got) < 0) == (mean > 0.1)  # descending raises it beyond the bound


# -- gradients --------------------------------------------------------------------------------


def uneven(batch):
    """The batch with one row that is no step."""
    weight = np.where(np.arange(ROWS) == 4, 0.0, np.linspace(0.5, 1.5, ROWS))
    return batch._replace(weight=jnp.asarray(weight, jnp.float32))


@pytest.mark.parametrize(("discrete", "head"), KINDS)
def test_the_critics_gradient_is_that_of_its_loss_by_hand(discrete, head):
    """The target is a number: no gradient goes through it."""
    one = made(discrete, critic_head=head)
    batch = uneven(one.batch())
    weights, steps = critic_weights(one.state), np.arange(ROWS) != 4
    observation, target, weight = (
        np.asarray(x, np.float64) for x in (batch.observation, batch.target, batch.weight)
    )
    action = None if discrete else np.asarray(batch.action, np.float64)

    def taken(answers):
        return answers[np.arange(ROWS), np.asarray(batch.action)] if discrete else answers

    def loss(_):
        if head == "scalar":
            return np.mean(weight * (taken(q_of(weights, observation, action)) - target) ** 2) / 2
        logits = outputs(weights, observation, action)
        logits = taken(logits.reshape(ROWS, -1, 7) if discrete else logits)
        return np.mean(weight * -(histogram(target) * log_softmax(logits, -1)).sum(-1))

    gradients, aux = one.gradients(batch, one.state)
    q = taken(q_of(weights, observation, action))
    assert float(aux.metrics["critic_loss"]) == pytest.approx(loss(None), rel=1e-4)
    assert float(aux.metrics["q_mean"]) == pytest.approx(q[steps].mean(), rel=1e-3, abs=1e-5)
    found = [leaf[0] for leaf in jax.tree.leaves(gradients.params.critic)]
    close(found, derivative(loss, weights), 5e-4)


@pytest.mark.parametrize(("discrete", "head"), KINDS)
def test_the_gradients_of_actor_and_duals_are_those_by_hand(discrete, head):
    """The KL is beyond the bound in half of the rows."""
    one = made(discrete, critic_head=head)
    state, batch = one.after_updates(), uneven(one.batch())
    critic, weights = critic_weights(state), actor_weights(state)
    observation, weight = (np.asarray(x, np.float64) for x in (batch.observation, batch.weight))
    old = np.concatenate([np.asarray(x, np.float64) for x in batch.old_policy], -1)
    noise = noise_by_row(jax.random.split(KEY)[0], discrete)

    def parts():
        q, log_prob = worth(weights, critic, observation, noise)
        return q, log_prob, kl(old, network(weights, observation))

    _, log_prob, kls = parts()
    bound = np.sort(kls)[ROWS // 2 - 1 : ROWS // 2 + 1].mean()
    assert np.abs(kls - bound).min() > 1e-4
    state = state._replace(hyper={**state.hyper, "kl_bound": jnp.float32(bound)})

    def loss(_):
        q, log_prob, kls = parts()
        return np.mean(weight * np.where(kls < bound, 0.3 * log_prob - q, 2.0 * kls))

    gradients, aux = one.gradients(batch, state)
    close(jax.tree.leaves(gradients.params.actor), derivative(loss, weights), 5e-4)
    target_entropy = 0.5 * np.log(3) if discrete else -1.0
    duals = gradients.params.duals
    want = 0.3 * np.mean(weight * (-log_prob - target_entropy))
    assert float(duals["temperature"]) == pytest.approx(want, rel=1e-3)
    want = 2.0 * np.mean(weight * (bound - kls))
    assert float(duals["multiplier"]) == pytest.approx(want, rel=1e-3)
    steps = np.arange(ROWS) != 4
    metrics = {name: float(x) for name, x in aux.metrics.items()}
    assert metrics["actor_loss"] == pytest.approx(loss(None), rel=1e-4)
    assert metrics["kl"] == pytest.approx(kls[steps].mean(), rel=1e-3)
    assert metrics["kl_fraction"] == pytest.approx(np.mean(weight * (kls >= bound)), rel=1e-4)
    assert metrics["entropy"] == pytest.approx(-log_prob[steps].mean(), rel=1e-3)
    assert metrics["ent_coef"] == pytest.approx(0.3) and metrics["multiplier"] == pytest.approx(2)


@pytest.mark.parametrize("discrete", [False, True])
def test_update_is_apply_after_gradients_and_changes_everything(discrete):
    one = made(discrete, layer_norm=True)
    assert REPPO.update is Algorithm.update
    state, batch = one.after_updates(), one.batch()
    gradients, aux = one.gradients(batch, state)
    new, update_aux = one.update(state, batch)
    close(compiled(one.algorithm, "apply")(state, gradients), new, 1e-5)
    close(aux, update_aux, 1e-5)
    before, after = map(jax.tree.leaves_with_path, (state, new))
    for (path, old), (_, now) in zip(before, after, strict=True):
        constant = str(path[0]) in (".hyper", ".key")
        assert np.array_equal(old, now) == constant, jax.tree_util.keystr(path)


@pytest.mark.parametrize("discrete", [False, True])
def test_rows_without_a_step_count_nowhere(discrete):
    """Whatever lies in them, NaN too. Gradients and metrics are those of the steps alone."""
    one, gap = made(discrete), make_rollout(discrete, GAPS)

    def spoiled(x):
        rubbish = np.nan if jnp.issubdtype(x.dtype, jnp.floating) else 1
        where = GAPS.reshape(TIME, ENVS, *(1,) * (x.ndim - 2))
        return jnp.asarray(np.where(where, x, np.array(rubbish, x.dtype)))

    batch = one.batch(Trajectory(*map(spoiled, gap[:6]), valid=gap.valid))
    assert same(batch, one.batch(gap))
    steps = np.flatnonzero(GAPS)
    np.testing.assert_array_equal(np.flatnonzero(batch.weight), steps)
    kept = mapped(lambda x: x[steps], batch)._replace(weight=jnp.ones(len(steps)))
    (with_gaps, gaps_aux), (alone, alone_aux) = one.gradients(batch), one.gradients(kept)
    close((with_gaps, gaps_aux.metrics), (alone, alone_aux.metrics), 1e-5)


@pytest.mark.parametrize("discrete", [False, True])
def test_mean_of_the_shards_is_the_whole(discrete):
    """Also if the shards have not as many steps as one another: noise is drawn by row."""
    one = made(discrete)
    batch = one.batch(make_rollout(discrete, GAPS))
    whole, _ = one.gradients(batch)
    shards = [one.gradients(mapped(lambda x, s=s: x[s::2], batch))[0] for s in (0, 1)]
    close(mean_of_shards([jax.device_get(shard) for shard in shards]), whole, 1e-5)


def test_each_update_draws_other_actions_and_targets_draw_their_own():
    one = made()
    batch, other = one.batch(), changed(one.state, key=jax.random.PRNGKey(1))
    assert not np.allclose(one.prepare(other, make_rollout()).target, batch.target)
    mask = one.algorithm.update_mask(0)
    again = one.algorithm.gradients(one.state, batch, jax.random.PRNGKey(1), mask)[1]
    loss = one.gradients(batch, one.state)[1].metrics["actor_loss"]
    assert not np.isclose(again.metrics["actor_loss"], loss)
