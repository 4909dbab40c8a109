"""MPO's E-step and M-step: losses and whole gradients against NumPy in float64, the temperature
against scipy, the KLs against numerical integration."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

from tests.algorithms import by_hand
from tests.algorithms.algorithm_cases import changed, mapped
from tests.algorithms.mpo_cases import (
    KEY,
    NOISE,
    RICH,
    SAMPLES,
    SMALL,
    SPECS,
    Case,
    actor_loss,
    agree,
    batch_of,
    both,
    case,
    chances,
    choices_q,
    computed,
    considered,
    divergences,
    dual,
    known_noise,
    normal,
    outside,
    softplus,
    tilted,
)
from understudy.algorithms.mpo import MPO, MPOConfig, losses, mpo
from understudy.ops.distributions import Categorical, Gaussian


@both
def test_critic_gradient_by_hand(kind):
    """The target is the mean over the target policy's draws (or exact over the choices) of the
    smallest target critic; the draws of s' are not those of s."""
    state, gradients, aux = computed(kind)
    batch, critics = by_hand.wide(batch_of(kind)), by_hand.numbers(state.params.critic)
    prior, q, _ = considered(kind, state, batch.next_observation, NOISE[0])
    target = batch.reward + batch.discount * np.sum(prior * q, 1)

    def errors(critics):
        if kind == "continuous":
            return by_hand.all_q(critics, batch.observation, batch.action) - target
        taken = batch.action.astype(int)
        return choices_q(critics, batch.observation)[:, np.arange(8), taken] - target

    def loss(critics):
        return np.sum(np.mean(batch.weight * errors(critics) ** 2, 1))

    assert float(aux.metrics["critic_loss"]) == pytest.approx(loss(critics), rel=1e-4)
    agree(gradients.params.critic, by_hand.derivative(loss, critics))
    np.testing.assert_allclose(aux.priorities, np.abs(errors(critics)).mean(0), rtol=1e-3)
    mean = np.mean(errors(critics) + target)
    assert float(aux.metrics["q_mean"]) == pytest.approx(mean, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "penalize"), [("continuous", False), ("continuous", True), ("discrete", False)]
)
def test_actor_and_dual_gradients_by_hand(kind, penalize):
    state, gradients, aux = computed(kind, penalize)
    batch, actor = by_hand.wide(batch_of(kind)), by_hand.numbers(state.params.actor)
    prior, q, action = considered(kind, state, batch.observation, NOISE[1])
    names = sorted(state.params.duals)
    duals = [np.array(state.params.duals[name], np.float64) for name in names]
    start = dict(zip(names, map(softplus, duals), strict=True))
    improved = tilted(prior, q, start["temperature"])
    if penalize:
        assert np.sum(outside(action) < 0) > 5  # some of the draws do leave the bounds
        improved = improved + tilted(prior, outside(action), start["penalty_temperature"])

    def loss(actor):
        return actor_loss(kind, state, actor, batch, improved, action)

    assert float(aux.metrics["actor_loss"]) == pytest.approx(loss(actor), rel=1e-4)
    agree(gradients.params.actor, by_hand.derivative(loss, actor))
    kls = divergences(kind, state, actor, batch)
    bounds = {"kl": 1e-2, "kl_mean": 1e-3, "kl_var": 1e-6}

    def dual_loss(duals):
        value = dict(zip(names, map(softplus, duals), strict=True))
        total = dual(value["temperature"], prior, q, 0.1, batch.weight)
        if penalize:
            own = value["penalty_temperature"]
            total += dual(own, prior, outside(action), 1e-3, batch.weight)
        return total + sum(np.sum(value[k] * (bounds[k] - kl)) for k, kl in kls.items())

    assert float(aux.metrics["dual_loss"]) == pytest.approx(dual_loss(duals), rel=1e-3, abs=1e-5)
    want = dict(zip(names, by_hand.derivative(dual_loss, duals), strict=True))
    assert set(gradients.params.duals) == set(want)
    for name, gradient in gradients.params.duals.items():
        np.testing.assert_allclose(gradient, want[name], rtol=3e-3, atol=1e-5, err_msg=name)
    for name, kl in kls.items():
        assert float(aux.metrics[name]) == pytest.approx(np.mean(kl), rel=1e-3)


# -- E-step --------------------------------------------------------------------------------------


@both
def test_descending_the_dual_finds_scipys_temperature(kind):
    """2,000 updates of nothing but the duals, against a minimizer that knows no gradient."""
    frozen = dict(actor_learning_rate=0.0, critic_learning_rate=0.0, dual_learning_rate=0.02)
    made = Case(kind, **frozen, target_update_interval=2, dual_constraint=0.05)
    # values far enough apart that a bound of 0.05 is a bound, for both kinds
    larger = mapped(lambda x: np.float32(3.0) * x, made.state.targets.critic)
    state = changed(made.state, target_critic=larger)
    batch = batch_of(kind)

    def one(state, _):
        return made.algorithm.update(state, batch, KEY, made.algorithm.update_mask(1))[0], None

    with pytest.MonkeyPatch.context() as patch:
        known_noise(patch)
        found, _ = jax.jit(lambda s: jax.lax.scan(one, s, length=2000))(state)
    temperature = softplus(float(found.params.duals["temperature"]))
    wide = by_hand.wide(batch)
    prior, q, _ = considered(kind, state, wide.observation, NOISE[1])
    best = optimize.minimize_scalar(
        lambda x: dual(np.exp(x), prior, q, 0.05, wide.weight), bounds=(-8, 8), method="bounded"
    )
    assert temperature == pytest.approx(np.exp(best.x), rel=5e-3)
    # and there the bound holds with equality: the mean KL of the improved policy is ε
    improved = tilted(prior, q, temperature)
    kl = np.sum(improved * np.log(improved / prior), 1)
    assert np.mean(wide.weight * kl) == pytest.approx(0.05, rel=1e-2)


@both
def test_the_temperature_moves_the_right_way(kind):
    made = case(kind, **RICH)
    for epsilon, sign in ((1e-6, 1), (10.0, -1)):
        new, _ = made.update(made.with_hyper(dual_constraint=epsilon))
        moved = float(new.params.duals["temperature"]) - float(
            made.state.params.duals["temperature"]
        )
        assert moved == pytest.approx(sign * 1e-2, rel=1e-3)


def test_the_prior_is_a_factor_of_the_improved_policy():
    """Where Q knows no difference, a discrete policy has nothing to improve: it stays, and is not
    drawn towards the uniform one."""
    made = case("discrete", **RICH)
    indifferent = mapped(np.zeros_like, made.state.targets.critic)
    state = changed(made.state, target_critic=indifferent, actor=made.state.targets.actor)
    observation = by_hand.wide(batch_of("discrete")).observation
    assert np.std(chances(by_hand.numbers(state.params.actor), observation)) > 0.02
    gradients, _ = made.gradients(state)
    for leaf in jax.tree.leaves(gradients.params.actor):
        np.testing.assert_allclose(leaf, 0.0, atol=1e-6)
    # log π̄ = (log ¾, log ¼) and Q/η = (0, log 3): the odds 3 : 1 become 3 : 3
    options = losses.Candidates(
        Categorical(jnp.asarray(np.log([[0.75, 0.25]]), jnp.float32)),
        None,
        jnp.asarray(np.log([[0.75, 0.25]]), jnp.float32),
        jnp.array([[0.0, 2 * np.log(3.0)]]),
    )

    @jax.jit
    def improved(options):
        wanted = losses.objectives(options, penalize=True)  # which asks nothing of choices
        return losses.improve(wanted, {"temperature": jnp.float32(2.0)}, options.log_prior)

    got = improved(options)
    np.testing.assert_allclose(got, [[0.5, 0.5]], rtol=1e-6)


def test_the_critic_sees_actions_in_their_bounds_and_the_fit_sees_them_as_drawn():
    policy = Gaussian(jnp.array([[0.5]]), jnp.asarray(np.log([[0.5]]), jnp.float32))

    def critic(observation, action):
        return 10.0 * action[..., 0] + observation[..., 0]

    noise = jnp.array([[[4.0], [-1.0], [-6.0]]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "reduced_return", lambda critics, *inputs: critic(*inputs[:2]))
        asked = jax.jit(
            lambda policy: losses.sample_candidates(policy, None, jnp.array([[7.0]]), noise)
        )
        options = asked(policy)
    np.testing.assert_allclose(options.action[0, :, 0], [2.5, 0.0, -2.5], atol=1e-6)
    np.testing.assert_allclose(options.q, [[17.0, 7.0, -3.0]], rtol=1e-6)
    np.testing.assert_allclose(options.value, [7.0], rtol=1e-6)
    cost = jax.jit(lambda o: losses.objectives(o, penalize=True))(options)["penalty_temperature"]
    np.testing.assert_allclose(cost, [[-1.5, 0.0, -1.5]], rtol=1e-6)


# -- M-step --------------------------------------------------------------------------------------


def two_policies():
    rng = np.random.default_rng(7)
    means, log_stds = rng.uniform(-1, 1, (2, 3, 2)), rng.uniform(-2, 0, (2, 3, 2))
    pair = [
        Gaussian(jnp.asarray(m, jnp.float32), jnp.asarray(s, jnp.float32))
        for m, s in zip(means, log_stds, strict=True)
    ]
    action = jnp.asarray(rng.normal(size=(3, SAMPLES, 2)), jnp.float32)
    weight = jnp.asarray([0.5, 2.0, 1.0])
    improved = jnp.asarray(rng.dirichlet(np.ones(SAMPLES), 3), jnp.float32)
    options = losses.Candidates(pair[0], action, improved, improved)
    return pair, options, improved, weight


def test_gaussian_kls_are_integrals():
    """Of p·log(p/q), dimension by dimension: once with the new mean and the old deviation, once
    the other way round."""
    (old, new), options, improved, weight = two_policies()
    _, kls = jax.jit(losses.fit_gaussian)(new, options, improved, weight)
    want = np.zeros((2, 3, 2))
    for row, column in np.ndindex(3, 2):
        m0, s0 = float(old.mean[row, column]), float(np.exp(old.log_std[row, column]))
        m1, s1 = float(new.mean[row, column]), float(np.exp(new.log_std[row, column]))
        p = stats.norm(m0, s0)
        for place, q in enumerate((stats.norm(m1, s0), stats.norm(m0, s1))):
            want[place, row, column] = integrate.quad(
                lambda x, p=p, q=q: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)),
                m0 - 12 * s0,
                m0 + 12 * s0,
            )[0]
    want = np.mean(np.asarray(weight)[:, None] * want, axis=1)
    np.testing.assert_allclose(kls["kl_mean"], want[0], rtol=1e-4)
    np.testing.assert_allclose(kls["kl_var"], want[1], rtol=1e-4)


def test_mean_and_deviation_are_decoupled():
    """What the mean is told does not depend on the deviation, and the other way round; and no KL
    is about both. A common log N(a; μ, σ) fails all of it."""
    (old, new), options, improved, weight = two_policies()

    @jax.jit
    def slopes(mean, log_std):
        """Of the loss and of each KL, with respect to the mean and to the deviation."""

        def parts(mean, log_std):
            return losses.fit_gaussian(Gaussian(mean, log_std), options, improved, weight)

        return jax.jacobian(parts, (0, 1))(mean, log_std)

    told, kls = slopes(*new)
    for argument, other in ((0, (new.mean, old.log_std)), (1, (old.mean, new.log_std))):
        assert np.all(np.abs(told[argument]) > 1e-4)
        np.testing.assert_allclose(told[argument], slopes(*other)[0][argument], rtol=1e-5)
    for name, argument in (("kl_mean", 1), ("kl_var", 0)):
        assert not np.any(kls[name][argument]) and np.any(kls[name][1 - argument])


def test_decoupled_gradients_worked_by_hand():
    # one draw at μ̄ + 1 of N(0, ½): the mean is pulled by 1/σ̄² = 4; log σ by 1 − (1/σ̄)² = −3,
    # as if the mean stood still; both with weight 2
    old = Gaussian(jnp.zeros((1, 1)), jnp.asarray(np.log([[0.5]]), jnp.float32))
    ones = jnp.ones((1, 1))
    options = losses.Candidates(old, jnp.ones((1, 1, 1)), jnp.zeros((1, 1)), ones)

    def loss(policy):
        return losses.fit_gaussian(policy, options, ones, jnp.array([2.0]))[0]

    gradient = jax.jit(jax.grad(loss))(old)
    np.testing.assert_allclose(gradient.mean, [[-8.0]], rtol=1e-5)
    np.testing.assert_allclose(gradient.log_std, [[-6.0]], rtol=1e-5)


def moved_duals(made, state):
    new, _ = made.update(state)
    return {
        name: np.asarray(new.params.duals[name]) - state.params.duals[name]
        for name in new.params.duals
    }


@pytest.mark.parametrize(
    ("kind", "broken"), [("continuous", "kl_mean"), ("continuous", "kl_var"), ("discrete", "kl")]
)
def test_a_broken_bound_raises_its_own_multiplier_and_no_other(kind, broken):
    made = case(kind, **RICH)
    multipliers = [name for name in made.state.params.duals if name.startswith("kl")]
    kept = {f"{name}_constraint": 1e3 for name in multipliers}
    all_kept = moved_duals(made, made.with_hyper(**kept))
    one_broken = moved_duals(made, made.with_hyper(**{**kept, f"{broken}_constraint": 1e-9}))
    for name in multipliers:
        np.testing.assert_allclose(all_kept[name], -1e-2, rtol=1e-2)
        want = 1e-2 if name == broken else -1e-2
        np.testing.assert_allclose(one_broken[name], want, rtol=1e-2)


def test_each_dimension_has_a_multiplier_of_its_own():
    made = case("continuous", **RICH)
    batch = by_hand.wide(batch_of("continuous"))
    kls = divergences("continuous", made.state, by_hand.numbers(made.state.params.actor), batch)
    for name, kl in kls.items():
        assert kl[0] != pytest.approx(kl[1], rel=0.05)
        between = {f"{name}_constraint": np.mean(kl)}
        moved = moved_duals(made, made.with_hyper(**between))[name]
        np.testing.assert_array_equal(np.sign(moved), np.sign(kl - np.mean(kl)))


@both
def test_multipliers_keep_their_bounds(kind):
    """Above and below, with steps that would leave them at once."""
    made = case(kind, **RICH)
    names = {"kl_mean": 1.5, "kl_var": 12.0} if kind == "continuous" else {"kl": 3.0}
    tight = {f"{name}_constraint": 1e-9 for name in names}
    new, _ = made.update(made.with_hyper(**tight, dual_learning_rate=30.0))
    for name, bound in names.items():
        np.testing.assert_allclose(softplus(np.asarray(new.params.duals[name])), bound, rtol=1e-5)
    loose = {f"{name}_constraint": 1e3 for name in names}
    new, _ = made.update(made.with_hyper(**loose, dual_constraint=1e3, dual_learning_rate=30.0))
    for name in (*names, "temperature"):
        assert np.all(new.params.duals[name] == mpo.LOWEST_DUAL)
        assert np.all(softplus(np.asarray(new.params.duals[name])) > 0)
    again, _ = made.update(new)  # where nothing may be undefined
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(again))


@both
def test_duals_begin_where_the_settings_say(kind):
    settings: dict[str, Any] = dict(
        initial_temperature=0.3,
        initial_mean_multiplier=1e-4,
        initial_var_multiplier=500.0,
        initial_multiplier=7.0,
        penalize_actions=True,
    )
    state = MPO(MPOConfig(**SMALL, **settings)).init(SPECS[kind], KEY)
    values = {name: softplus(np.asarray(value)) for name, value in state.params.duals.items()}
    if kind == "discrete":
        want = {"temperature": 0.3, "kl": 7.0}
    else:
        want = {"temperature": 0.3, "penalty_temperature": 0.3}
        want |= {"kl_mean": [1e-4] * 2, "kl_var": [500.0] * 2}
        _, std = normal(by_hand.numbers(state.params.actor), np.ones((1, 3)))
        np.testing.assert_allclose(std, 0.6, rtol=1e-4)
    assert set(values) == set(want)
    for name, value in want.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-3)
