"""PPO's losses and their gradients by hand, its first update beside A2C's, and the end of updates
at `target_kl`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.a2c_cases import SPECS, case, every_kind
from tests.algorithms.algorithm_cases import close, mapped, same
from understudy.algorithms.gradients import mean_of_shards
from understudy.algorithms.ppo import PPO, PPOConfig, losses
from understudy.algorithms.ppo.losses import Prepared
from understudy.ops.distributions import Categorical
from understudy.types import ConfigError, History

# -- losses -----------------------------------------------------------------------------------


def prepared(**columns):
    """A batch of these columns; weights are 1 and the rest is 0 unless given."""
    columns = {name: jnp.asarray(column, jnp.float32) for name, column in columns.items()}
    count = len(next(iter(columns.values())))
    zeros = dict.fromkeys(Prepared._fields, jnp.zeros(count))
    return Prepared(**{**zeros, "weight": jnp.ones(count), **columns})


def log_ratio(log_prob, batch):
    return losses.log_ratio(jnp.asarray(log_prob, jnp.float32), batch)


def test_the_clipped_objective_and_its_gradient_by_hand():
    """ε = 0.2. Beyond the clip there is no gain where the advantage asks for more, and all of the
    loss where it asks to come back."""
    ratio = np.array([1.1, 1.5, 0.5, 0.9, 0.5, 1.5, 9.0])
    advantage = np.array([2.0, 2.0, 2.0, -1.0, -1.0, -1.0, 5.0])
    weight = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 0.0])  # the last row is no step
    gain = np.array([1.1 * 2, 1.2 * 2, 0.5 * 2, -0.9, -0.8, -1.5, 0.0])
    slope = np.array([1.1 * 2, 0.0, 0.5 * 2, -0.9, 0.0, -1.5, 0.0])  # of the gain by log π
    batch = prepared(log_prob=np.full(7, -1.3), advantage=advantage, weight=weight)

    def loss(log_prob):
        return losses.actor_loss(log_ratio(log_prob, batch), batch, jnp.float32(0.2))

    got, gradient = jax.jit(jax.value_and_grad(loss))(jnp.float32(np.log(ratio) - 1.3))
    assert float(got) == pytest.approx(-np.sum(weight * gain) / 7, rel=1e-5)
    np.testing.assert_allclose(gradient, -weight * slope / 7, rtol=1e-5, atol=1e-7)


def test_the_clipped_value_loss_and_its_gradient_by_hand():
    """The range is 0.2. V was 0 and its target is 1, in the last row −1."""
    value = np.array([0.1, 0.5, -0.5, 0.5])
    target = np.array([1.0, 1.0, 1.0, -1.0])
    error = np.array([0.9**2, (1 - 0.2) ** 2, 1.5**2, 1.5**2])  # the larger of two
    slope = np.array([-2 * 0.9, 0.0, -2 * 1.5, 2 * 1.5])
    batch = prepared(value=np.zeros(4), value_target=target)

    def loss(value, clip_range):
        return losses.value_loss(value, batch, clip_range)

    differentiate = jax.jit(jax.value_and_grad(loss))
    got, gradient = differentiate(jnp.float32(value), jnp.float32(0.2))
    assert float(got) == pytest.approx(error.mean(), rel=1e-5)
    np.testing.assert_allclose(gradient, slope / 4, rtol=1e-5, atol=1e-7)
    got, gradient = differentiate(jnp.float32(value), None)
    assert float(got) == pytest.approx(np.mean((value - target) ** 2), rel=1e-5)
    np.testing.assert_allclose(gradient, 2 * (value - target) / 4, rtol=1e-5)


def test_the_kl_estimator_by_hand():
    """Over all choices, weighted by how often they were taken, it is the KL itself."""
    old, new = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    batch = prepared(log_prob=np.log(old), weight=3 * old)
    ratio = log_ratio(np.log(new), batch)
    want = np.sum(old * np.log(old / new))
    assert float(losses.approx_kl(ratio, batch)) == pytest.approx(want, rel=1e-5)
    single = prepared(log_prob=[0.0, 0.0])
    ratio = log_ratio(np.log([2.0, 0.5]), single)
    want = ((2 - 1 - np.log(2)) + (0.5 - 1 + np.log(2))) / 2
    assert float(losses.approx_kl(ratio, single)) == pytest.approx(want, rel=1e-5)
    fraction = [float(losses.clip_fraction(ratio, single, jnp.float32(e))) for e in (0.4, 0.6, 1.1)]
    assert fraction == [1.0, 0.5, 0.0]


# -- updates ----------------------------------------------------------------------------------


def ppo(kind="discrete", **settings):
    return case(kind, algorithm=PPO, normalize_advantages=False, gae_lambda=1.0, **settings)


@every_kind
def test_the_first_gradient_is_that_of_a2c(kind):
    """On the same rollout, as long as the ratio is 1 and the coefficients are equal."""
    made, a2c = ppo(kind), case(kind)
    assert same(made.state.params, a2c.state.params)
    batch = made.batch()
    (gradients, aux), (want, a2c_aux) = made.gradients(batch), a2c.gradients(a2c.batch())
    close(gradients.params, want.params, 1e-5)
    for name in ("value_loss", "entropy_loss", "explained_variance"):
        assert float(aux.metrics[name]) == pytest.approx(float(a2c_aux.metrics[name]), rel=1e-4)
    assert float(aux.metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-6)
    assert float(aux.metrics["clip_fraction"]) == 0.0
    mean = -np.mean(np.asarray(batch.advantage))
    assert float(aux.metrics["actor_loss"]) == pytest.approx(mean, rel=1e-4, abs=1e-6)


def test_rows_without_a_step_leave_no_trace():
    made, mask = ppo("gaussian", value_clip_range=0.1), np.ones((6, 2), bool)
    mask[[2, 5], 0] = mask[[0, 1, 4, 5], 1] = False
    rollout = made.rollout()._replace(valid=jnp.asarray(mask))
    far = np.where(mask, rollout.extras["log_prob"], -1e6)
    batch = made.prepare(made.state, rollout._replace(extras={"log_prob": jnp.float32(far)}))
    gradients, aux = made.gradients(batch)
    kept = mapped(lambda x: x[np.flatnonzero(mask)], batch)._replace(weight=jnp.ones(6))
    alone, alone_aux = made.gradients(kept)
    close((gradients, aux.metrics), (alone, alone_aux.metrics), 1e-5)


@every_kind
def test_mean_of_the_shards_is_the_whole(kind):
    made = ppo(kind, value_clip_range=0.1, target_kl=0.01)
    batch = made.batch()._replace(log_prob=made.batch().log_prob - 0.3)
    whole, aux = made.gradients(batch)
    shards = [made.gradients(mapped(lambda x, s=s: x[s::2], batch)) for s in (0, 1)]
    close(mean_of_shards([jax.device_get(gradients) for gradients, _ in shards]), whole, 1e-4)
    mean = np.mean([float(part.metrics["approx_kl"]) for _, part in shards])
    assert (
        float(whole.params.kl) == pytest.approx(mean, rel=1e-4) == float(aux.metrics["approx_kl"])
    )


# -- target_kl --------------------------------------------------------------------------------


def parts(state):
    """What the end of updates keeps: networks and optimizers."""
    return state.params.actor, state.params.critic, state.opt_state


def moved(batch, shift):
    """The batch of a policy that has moved: all ratios are exp(shift)."""
    return batch._replace(log_prob=batch.log_prob - shift)


def test_updates_end_where_the_policy_has_moved_too_far_and_begin_again_with_the_next_rollout():
    """KL of ratios e^0.2 is e^0.2 − 1 − 0.2 = 0.0214: above 1.5 · 0.014, not above 1.5 · 0.0145."""
    made = ppo(target_kl=0.014)
    batch = made.batch()
    first, aux = made.update(batch)
    assert not same(parts(first), parts(made.state))
    assert abs(float(first.params.kl)) < 1e-6 and np.isfinite(aux.metrics["loss"])

    far = moved(made.prepare(made.state, made.rollout()), 0.2)
    plain = ppo(target_kl=0.0145).update(far)[0]
    assert not same(parts(plain), parts(made.state))
    ended, aux = made.update(far)
    assert same(parts(ended), parts(made.state))
    assert float(ended.params.kl) == pytest.approx(np.exp(0.2) - 1.2, rel=1e-4)
    assert int(ended.updates) == 1 and np.isfinite(aux.metrics["loss"])

    # A minibatch on which the policy has not moved changes nothing in this rollout.
    still, aux = made.update(batch, ended)
    assert same(parts(still), parts(ended)) and same(still.params.kl, ended.params.kl)
    assert int(still.updates) == 2 and all(np.isnan(x) for x in aux.metrics.values())

    fresh, aux = made.update(made.prepare(still, made.rollout()), still)
    assert not same(parts(fresh), parts(still))
    assert abs(float(fresh.params.kl)) < 1e-6 and np.isfinite(aux.metrics["loss"])


def test_an_update_that_does_not_end_is_the_update_without_a_target():
    made, plain = ppo(target_kl=1.0), ppo()
    close(parts(made.update()[0]), parts(plain.update()[0]), 1e-6)
    assert "kl" not in plain.state.params._fields


def test_each_seed_ends_its_own_updates():
    made = ppo(target_kl=0.014)
    mask, near = made.algorithm.update_mask(0), made.batch()
    batches = jax.tree.map(lambda *x: jnp.stack(x), near, moved(near, 0.2))
    states = jax.tree.map(lambda x: jnp.stack([x, x]), made.state)

    @jax.jit
    def update(states, batches):
        key = jnp.zeros(2, jnp.uint32)
        return jax.vmap(lambda s, b: made.algorithm.update(s, b, key, mask)[0])(states, batches)

    after = update(states, batches)
    one, other = (jax.tree.map(lambda x, i=i: x[i], after) for i in (0, 1))
    close(parts(one), parts(made.update(near)[0]), 1e-6)
    assert same(parts(other), parts(made.state))


# -- memory -----------------------------------------------------------------------------------


def test_minibatches_of_a_recurrent_policy_are_whole_environments():
    made = ppo("discrete", memory="gru", memory_size=3, minibatches=2)
    steps = made.rollout()._replace(memory=jnp.full((2, 3), 0.1))
    batch = made.prepare(made.state, steps)
    assert isinstance(batch.observation, History)
    assert batch.row.shape == (2,) and batch.action.shape == batch.advantage.shape == (2, 6)
    np.testing.assert_array_equal(batch.action, np.asarray(steps.action).T)
    whole, aux = made.gradients(batch)
    assert aux.priorities.shape == (12,)
    halves = [made.gradients(mapped(lambda x, e=e: x[e : e + 1], batch))[0] for e in (0, 1)]
    close(mean_of_shards([jax.device_get(half) for half in halves]), whole, 1e-5)


# -- settings ---------------------------------------------------------------------------------


def test_settings():
    assert PPOConfig().needs.extras == ("log_prob",) and PPOConfig().needs.updates == 320
    assert {"clip_range"} < set(PPOConfig().moving())
    assert {"target_kl", "value_clip_range"} & set(PPOConfig().moving()) == set()
    assert {"target_kl"} < set(PPOConfig(target_kl=0.02).moving())
    curves: Any = PPOConfig(anneal_learning_rate=True, anneal_clip_range=True).schedules()
    assert [curves["clip_range"](step, 100) for step in (0, 50, 100)] == [0.2, 0.1, 0.0]
    assert set(curves) == {"learning_rate", "clip_range"}
    with pytest.raises(ConfigError, match="batch_size' here: a minibatch has horizon × num_envs"):
        PPOConfig(batch_size=64)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="noise_reset_interval has no use"):
        PPOConfig(noise_reset_interval=3)
    noisy = PPO(PPOConfig(state_dependent_exploration=True))
    with pytest.raises(ConfigError, match="PPO: state_dependent_exploration is for continuous"):
        noisy.check(SPECS["discrete"])


def test_entropy_is_a_bonus():
    """A larger coefficient moves the policy towards equal odds."""
    batch = ppo().batch()._replace(advantage=jnp.zeros(12))
    made = ppo()
    new = made.update(batch)[0]

    def odds(state):
        policy = made.ask("evaluate_actions", batch.observation, batch.action, state=state)
        return np.asarray(policy[2]).mean()

    assert odds(new) > odds(made.state)
    assert isinstance(made.state.params.actor(batch.observation), Categorical)
