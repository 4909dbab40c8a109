"""A2C's loss and gradients worked anew in NumPy, advantages by hand, and the optimizer's step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.a2c_cases import SPECS, Case, by_hand_loss, case, every_kind
from tests.algorithms.algorithm_cases import changed, close, mapped, observed, query, same
from tests.algorithms.by_hand import derivative, network, numbers
from understudy.algorithms.aux_losses import action_penalty
from understudy.algorithms.base import Algorithm
from understudy.algorithms.gradients import mean_of_shards
from understudy.types import Trajectory


@pytest.mark.parametrize(
    "kind, shared",
    [
        *((kind, False) for kind in SPECS),
        ("discrete", True),
        ("gsde", True),
        pytest.param("multi", True, marks=pytest.mark.slow),
        pytest.param("gaussian", True, marks=pytest.mark.slow),
    ],
)
def test_the_gradient_is_that_of_the_loss_by_hand(kind, shared):
    made = case(kind, share_encoder=True) if shared else case(kind)
    batch = made.batch()
    batch = batch._replace(weight=jnp.asarray(np.where(np.arange(12) == 4, 0.0, batch.weight)))
    actor, critic = numbers(made.state.params.actor), numbers(made.state.params.critic)
    frozen = numbers(made.state.params.actor)
    gradients, aux = made.gradients(batch)

    parts = by_hand_loss(kind, actor, critic, frozen, batch, shared)
    for name, part in zip(("actor_loss", "value_loss", "entropy_loss"), parts, strict=True):
        assert float(aux.metrics[name]) == pytest.approx(part, rel=1e-4, abs=1e-6)

    def total(_):
        policy, error, entropy = by_hand_loss(kind, actor, critic, frozen, batch, shared)
        return policy + 0.7 * error + 0.3 * entropy

    assert float(aux.metrics["loss"]) == pytest.approx(total(None), rel=1e-4)
    close(jax.tree.leaves(gradients.params.actor), derivative(total, actor), 2e-4)
    close(jax.tree.leaves(gradients.params.critic), derivative(total, critic), 2e-4)
    np.testing.assert_allclose(aux.priorities, np.abs(batch.advantage))


@every_kind
def test_a2c_is_ppo_with_one_epoch_of_the_whole_rollout(kind):
    """arXiv 2205.09123: where no step has been taken yet the ratio is 1, nothing is clipped, and
    the surrogate's gradient is the policy gradient."""
    made = case(kind)
    batch = made.batch()
    old = made.ask("log_prob", batch.observation, batch.action)

    @jax.jit
    @jax.grad
    def ppo(networks):
        actor, critic = networks
        state = changed(made.state, actor=actor, critic=critic)
        value, log_prob, entropy = made.algorithm.evaluate_actions(
            state, batch.observation, batch.action
        )
        ratio = jnp.exp(log_prob - old)
        clipped = jnp.clip(ratio, 0.8, 1.2)
        surrogate = jnp.minimum(ratio * batch.advantage, clipped * batch.advantage)
        error = (value - batch.value_target) ** 2
        return jnp.mean(-surrogate + 0.7 * error - 0.3 * entropy)

    gradients, _ = made.gradients(batch)
    want = ppo((made.state.params.actor, made.state.params.critic))
    close((gradients.params.actor, gradients.params.critic), want, 1e-5)


# -- advantages -----------------------------------------------------------------------------


def by_hand_advantages(made, rollout, gae_lambda):
    """A plain loop for each environment, forwards from every step."""
    critic, steps = numbers(made.state.params.critic), jax.tree.map(np.asarray, rollout)
    value = network(critic, steps.observation)[..., 0]
    next_value = network(critic, steps.next_observation)[..., 0]
    advantage = np.zeros(value.shape)
    for start in range(len(value)):
        for env in range(value.shape[1]):
            factor = 1.0
            for t in range(start, len(value)):
                ahead = steps.discount[t, env] * next_value[t, env]
                surprise = steps.reward[t, env] + ahead - value[t, env]
                advantage[start, env] += factor * surprise
                factor *= 0.9 * gae_lambda
                if steps.last[t, env]:
                    break
    return advantage, advantage + value


@pytest.mark.parametrize("gae_lambda", [1.0, 0.8, 0.0])
def test_advantages_stop_at_the_end_of_an_episode(gae_lambda):
    made = case("discrete")
    rollout = made.rollout()
    advantage, target = by_hand_advantages(made, rollout, gae_lambda)
    batch = made.prepare(made.with_hyper(gae_lambda=gae_lambda), rollout)
    np.testing.assert_allclose(batch.advantage, advantage.reshape(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.value_target, target.reshape(-1), rtol=1e-4, atol=1e-5)
    assert same(batch.observation, np.asarray(rollout.observation).reshape(12, 3))
    assert same(batch.action, np.asarray(rollout.action).reshape(12))
    assert same((batch.weight, batch.row), (np.ones(12), np.arange(12)))


def test_truncation_bootstraps_from_the_true_last_observation_and_termination_does_not():
    """γ = 0.5 and V by hand: an episode of two rewards 1 that then ends, seen in one env as a
    truncation and in the other as a termination. Its successor's rewards of 100 are not heard."""
    made = case("discrete")
    state = made.with_hyper(gamma=0.5, gae_lambda=1.0)
    ends = jnp.array([[False, False], [True, True], [False, False]])
    terminated = np.array([[False, False], [False, True], [False, False]])
    final = np.full((3, 2, 3), 0.7, np.float32)
    final[0] = 0.0
    rollout = Trajectory(
        observation=jnp.zeros((3, 2, 3)),
        action=jnp.zeros((3, 2), jnp.int32),
        reward=jnp.array([[1.0, 1.0], [1.0, 1.0], [100.0, 100.0]]),
        discount=jnp.asarray(0.5 * (1.0 - terminated), jnp.float32),
        last=ends,
        next_observation=jnp.asarray(final),
        valid=jnp.ones((3, 2), bool),
    )
    ahead = float(made.ask("value", jnp.asarray(final[1, :1]))[0])
    assert abs(ahead) > 0.05
    target = np.asarray(made.prepare(state, rollout).value_target).reshape(3, 2)
    want = [[1 + 0.5 + 0.25 * ahead, 1 + 0.5], [1 + 0.5 * ahead, 1.0], [100 + 0.5 * ahead] * 2]
    np.testing.assert_allclose(target, want, rtol=1e-5)


@pytest.mark.parametrize(
    "kind, normalize",
    [
        ("discrete", False),
        ("gaussian", False),
        ("multi", True),
        ("gsde", True),
        pytest.param("discrete", True, marks=pytest.mark.slow),
        pytest.param("gaussian", True, marks=pytest.mark.slow),
        pytest.param("multi", False, marks=pytest.mark.slow),
        pytest.param("gsde", False, marks=pytest.mark.slow),
    ],
)
def test_rows_without_a_step_leave_no_trace(kind, normalize):
    """Whatever lies in them, NaN too; and their neighbors in time know nothing of them."""
    made = case(kind, normalize_advantages=True) if normalize else case(kind)
    state = made.with_hyper(gae_lambda=0.8)
    whole = made.rollout()
    mask = np.ones((6, 2), bool)
    mask[[2, 5], 0] = mask[[0, 1, 4, 5], 1] = False
    gap = whole._replace(valid=jnp.asarray(mask))

    def spoiled(x):
        rubbish = np.nan if jnp.issubdtype(x.dtype, jnp.floating) else 1
        where = mask.reshape(6, 2, *(1,) * (x.ndim - 2))
        return jnp.asarray(np.where(where, x, np.array(rubbish, x.dtype)))

    spoilt = Trajectory(*map(spoiled, gap[:6]), valid=gap.valid)
    batch = made.prepare(state, spoilt)
    assert same(batch, made.prepare(state, gap))
    np.testing.assert_array_equal(batch.weight, 2.0 * mask.reshape(-1))  # half of them are steps
    gradients, aux = made.gradients(batch)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((gradients, aux)))

    # Some rows are followed by nothing; the rest is as ever.
    last = np.array(whole.last)
    last[[1, 4, 3], [0, 0, 1]] = True
    cut = whole._replace(last=jnp.asarray(last))
    alone = by_hand_advantages(made, cut, 0.8)[0] if kind != "gsde" else None
    if not normalize and alone is not None:
        got = np.asarray(batch.advantage).reshape(6, 2)
        np.testing.assert_allclose(got[mask], alone[mask], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(got[~mask], 0.0)

    # Gradient and metrics are those of the valid rows, over their number.
    kept = mapped(lambda x: x[np.flatnonzero(mask)], batch)._replace(weight=jnp.ones(6))
    alone = made.gradients(kept)
    close((gradients, aux.metrics), (alone[0], alone[1].metrics), 1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_rollout_without_steps_teaches_nothing(normalize):
    made = case("discrete", normalize_advantages=True) if normalize else case("discrete")
    batch = made.prepare(made.state, made.rollout()._replace(valid=jnp.zeros((6, 2), bool)))
    assert same(batch.weight, np.zeros(12))
    gradients, aux = made.gradients(batch)
    assert not any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradients.params))
    assert float(aux.metrics["loss"]) == 0.0


def test_advantages_are_normalized_over_the_steps_that_were():
    made = case("discrete", normalize_advantages=True)
    rollout = made.rollout()
    rollout = rollout._replace(valid=jnp.asarray(np.arange(6)[:, None] > [0, 0]))
    batch = made.prepare(made.state, rollout)
    plain = case("discrete").prepare(made.state, rollout)
    valid = np.asarray(batch.weight) > 0
    raw = np.asarray(plain.advantage, np.float64)[valid]
    want = (raw - raw.mean()) / raw.std()
    np.testing.assert_allclose(np.asarray(batch.advantage)[valid], want, rtol=1e-4, atol=1e-6)
    close(batch.value_target, plain.value_target, 1e-6)  # two programs round differently


def test_observations_and_rewards_are_normalized_where_asked():
    made = case("discrete", normalize_observations=True, normalize_rewards=True)
    rollout, rng = made.rollout(), np.random.default_rng(1)
    seen = (3.0 + 2.0 * rng.normal(size=(64, 3))).astype(np.float32)
    returns = (5.0 * rng.normal(size=64)).astype(np.float32)
    state = observed(made.state, jnp.asarray(seen), jnp.asarray(returns))
    batch = made.prepare(state, rollout)
    mean, std = np.mean(seen, axis=0), np.std(seen, axis=0)
    usual = (np.asarray(rollout.observation) - mean) / std
    np.testing.assert_allclose(batch.observation, usual.reshape(-1, 3), rtol=1e-4, atol=1e-5)
    done = case("discrete").prepare(
        state._replace(normalizer=case("discrete").state.normalizer),
        rollout._replace(
            observation=jnp.asarray(usual),
            next_observation=jnp.asarray((np.asarray(rollout.next_observation) - mean) / std),
            reward=jnp.asarray(np.asarray(rollout.reward) / np.std(returns)),
        ),
    )
    np.testing.assert_allclose(batch.advantage, done.advantage, rtol=1e-4, atol=1e-5)
    value = network(numbers(state.params.critic), usual[0])[:, 0]
    first = np.asarray(rollout.observation)[0]
    got = query(made.algorithm, made.spec, "value", state, first)
    np.testing.assert_allclose(got, value, 1e-4)


# -- the step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
def test_rmsprop_by_hand(inside, max_grad_norm):
    """Two steps, one gradient norm for both networks, ε inside or outside the root."""
    epsilon, decay = 1e-3, 0.9
    made = case(
        "discrete",
        epsilon_inside_root=inside,
        optimizer_epsilon=epsilon,
        rmsprop_decay=decay,
        max_grad_norm=max_grad_norm,
    )
    state, plain = made.state, case("discrete")  # whose gradients do not depend on all this
    weights = numbers((state.params.actor, state.params.critic))
    square = [np.zeros_like(w) for w in weights]
    for _ in range(2):
        moved = plain.state._replace(params=state.params)
        gradients, _ = plain.gradients(state=moved)
        g = numbers((gradients.params.actor, gradients.params.critic))
        norm = np.sqrt(sum((x**2).sum() for x in g))
        assert norm > 0.05
        g = [x * (min(1.0, max_grad_norm / norm) if max_grad_norm else 1.0) for x in g]
        square = [decay * v + (1 - decay) * x**2 for v, x in zip(square, g, strict=True)]
        root = [np.sqrt(v + epsilon) if inside else np.sqrt(v) + epsilon for v in square]
        weights = [w - 1e-2 * x / r for w, x, r in zip(weights, g, root, strict=True)]
        state = made.apply(state, gradients)
        close(numbers((state.params.actor, state.params.critic)), weights, 1e-4)


def test_each_network_may_have_a_step_size_of_its_own():
    made, plain = case("discrete", actor_learning_rate=3e-2), case("discrete")
    gradients, _ = plain.gradients()
    own, common = (one.apply(one.state, gradients).params for one in (made, plain))
    assert same(own.critic, common.critic)
    trees = (made.state.params.actor, own.actor, common.actor)
    for before, moved, usual in zip(*map(numbers, trees), strict=True):
        np.testing.assert_allclose(moved - before, 3 * (usual - before), rtol=1e-3, atol=1e-6)


def test_adam_is_another_optimizer():
    """Its first step is the step size, in the gradient's direction."""
    made = case("discrete", optimizer="adam", max_grad_norm=None)
    gradients, _ = case("discrete").gradients()
    new = made.apply(made.state, gradients)
    every = (gradients.params, made.state.params, new.params)
    trees = [(one.actor, one.critic) for one in every]
    for gradient, before, after in zip(*map(numbers, trees), strict=True):
        large = np.abs(gradient) > 1e-4
        np.testing.assert_allclose((before - after)[large], 1e-2 * np.sign(gradient[large]), 1e-2)


@every_kind
def test_update_is_apply_after_gradients_and_changes_everything(kind):
    made = case(kind)
    assert type(made.algorithm).update is Algorithm.update
    gradients, aux = made.gradients()
    new, update_aux = made.update()
    close(made.apply(made.state, gradients), new, 1e-5)
    close(aux, update_aux, 1e-5)
    before, after = map(jax.tree.leaves_with_path, (made.state, new))
    for (path, old), (_, now) in zip(before, after, strict=True):
        constant = str(path[0]) in (".hyper", ".key")
        assert np.array_equal(old, now) == constant, jax.tree_util.keystr(path)


@every_kind
def test_mean_of_the_shards_is_the_whole(kind):
    """The same holds for minibatches, on average over ways to divide the rows. Three rows are no
    steps, and not as many of one shard as of the other."""
    made, valid = case(kind, normalize_advantages=True), np.ones((6, 2), bool)
    valid[[1, 3, 4], [0, 0, 1]] = False
    batch = made.prepare(made.state, made.rollout()._replace(valid=jnp.asarray(valid)))
    shards = [mapped(lambda x, s=s: x[s::2], batch) for s in (0, 1)]
    whole, aux = made.gradients(batch)
    parts = [made.gradients(shard) for shard in shards]
    close(mean_of_shards([jax.device_get(gradients) for gradients, _ in parts]), whole, 1e-5)
    losses = [float(part.metrics["loss"]) for _, part in parts]
    assert np.mean(losses) == pytest.approx(float(aux.metrics["loss"]), rel=1e-4)


def test_explained_variance_is_the_foreseen_share():
    made = case("discrete")
    batch = made.batch()
    _, aux = made.gradients(batch)
    value = network(numbers(made.state.params.critic), np.asarray(batch.observation))[:, 0]
    target = np.asarray(batch.value_target, np.float64)
    want = 1 - np.var(target - value) / np.var(target)
    assert float(aux.metrics["explained_variance"]) == pytest.approx(want, rel=1e-3)
    constant = batch._replace(value_target=jnp.ones(12))
    assert np.isnan(made.gradients(constant)[1].metrics["explained_variance"])


def test_addons_are_given_the_actor():
    plain, made = case("gaussian"), Case("gaussian", loss_addons=(action_penalty(2.0),))
    batch = plain.batch()
    square = np.mean(np.sum(np.square(plain.mode(batch.observation)), axis=-1))
    (_, before), (_, after) = plain.gradients(batch), made.gradients(batch)
    difference = after.metrics["actor_loss"] - before.metrics["actor_loss"]
    assert float(difference) == pytest.approx(2.0 * square, rel=1e-4)
    assert float(after.metrics["addon/action_square"]) == pytest.approx(square, rel=1e-4)


def test_a_shared_encoder_lives_once_and_hears_both_losses():
    made = case("discrete", share_encoder=True)
    assert len(jax.tree.leaves(made.state.params.critic)) == 2  # a weight and a bias
    batch = made.batch()
    silent = batch._replace(advantage=jnp.zeros(12))
    policy_only = made.gradients(batch, made.with_hyper(value_coeff=0.0, entropy_coeff=0.0))[0]
    value_only = made.gradients(silent, made.with_hyper(entropy_coeff=0.0))[0]
    for gradients in (policy_only, value_only):
        assert all(np.abs(x).max() > 1e-6 for x in jax.tree.leaves(gradients.params.actor.encoder))
    plain = case("discrete")
    separate = plain.gradients(silent, plain.with_hyper(entropy_coeff=0.0))[0]
    assert all(np.array_equal(x, 0 * np.asarray(x)) for x in jax.tree.leaves(separate.params.actor))
