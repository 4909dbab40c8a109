"""Temperature, step sizes, clipping, targets and users' additions to the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.algorithms.algorithm_cases import (
    KEY,
    SMALL,
    SPEC,
    Case,
    case,
    compiled,
    make_batch,
    mapped,
    same,
)
from understudy.types import ConfigError

pytestmark = pytest.mark.agents

both = pytest.mark.parametrize("name", ["td3", "sac"])


def test_a_fixed_temperature_means_itself():
    """The trap: 0.2 taken for a logarithm would be exp(0.2) = 1.22."""
    made = case("sac", temperature=0.2)
    assert float(made.ask("temperature")) == np.float32(0.2)
    new, aux = made.update()
    assert float(aux.metrics["ent_coef"]) == np.float32(0.2)
    assert same(new.params.temperature, made.state.params.temperature)  # and it stays
    # the loss uses that very number: it is α·mean(log π) − mean(min Q), linear in α
    batch = make_batch()._replace(weight=jnp.ones(8))
    at = {
        alpha: made.gradients(made.with_hyper(temperature=alpha), batch)[1].metrics
        for alpha in (0.0, 0.2)
    }
    slope = (float(at[0.2]["actor_loss"]) - float(at[0.0]["actor_loss"])) / 0.2
    assert float(slope) == pytest.approx(-float(at[0.0]["entropy"]), rel=1e-3)


@pytest.mark.parametrize("use_log", [True, False])
def test_the_temperature_starts_where_it_is_told(use_log):
    made = case("sac", use_log_temperature=use_log, initial_temperature=0.5)
    assert float(made.ask("temperature")) == pytest.approx(0.5)
    assert float(made.update()[1].metrics["ent_coef"]) == pytest.approx(0.5)


@pytest.mark.parametrize("use_log", [True, False])
@pytest.mark.parametrize("target, sign", [(100.0, 1.0), (-100.0, -1.0)])
def test_the_temperature_follows_the_entropy(use_log, target, sign):
    """Up while the entropy is below its target, down above it; never to zero or below."""
    made = case("sac", use_log_temperature=use_log, initial_temperature=0.5)
    state = made.with_hyper(target_entropy=target, temperature_learning_rate=0.1)
    coefficient = compiled(made.algorithm, "temperature")
    coefficients = [float(coefficient(state))]
    for index in range(12):
        state, _ = made.update(state, index=index)
        coefficients.append(float(coefficient(state)))
    steps = sign * np.diff(coefficients)
    assert steps[0] > 1e-3 and np.all(steps >= 0.0)
    assert min(coefficients) > 0.0 and np.all(np.isfinite(coefficients))


def test_the_target_entropy_is_minus_the_dimensions_unless_told():
    assert float(case("sac").state.hyper["target_entropy"]) == -2.0
    told = case("sac", target_entropy=-0.5)
    assert float(told.state.hyper["target_entropy"]) == -0.5


@both
def test_first_step_of_adam(name):
    """Adam's first step is the learning rate times the gradient's sign, network by network."""
    made = case(name)
    state = made.with_hyper(actor_learning_rate=0.003, critic_learning_rate=0.02)
    gradients, _ = made.gradients(state)
    new = made.apply(state, gradients)
    for part, rate in (("actor", 0.003), ("critic", 0.02)):
        trees = (getattr(x, part) for x in (state.params, new.params, gradients.params))
        for before, after, slope in zip(*map(jax.tree.leaves, trees), strict=True):
            step = np.asarray(before) - np.asarray(after)
            clear = np.abs(slope) > 1e-4  # beside Adam's ε
            np.testing.assert_allclose(step[clear], rate * np.sign(slope)[clear], rtol=1e-2)


def steps_of(made, count, **hyper):
    """The params after some steps with one and the same gradient, and that gradient."""
    gradients, _ = made.gradients()
    state = made.with_hyper(**hyper) if hyper else made.state
    for _ in range(count):
        state = made.apply(state, gradients)
    return state.params, gradients.params


def leaves(*trees):
    return zip(*(jax.device_get(jax.tree.leaves(tree)) for tree in trees), strict=True)


def test_adam_has_betas_and_an_epsilon():
    """Three steps in NumPy."""
    beta1, beta2, epsilon, rate = 0.5, 0.7, 0.05, 0.01
    made = case("sac", adam_beta1=beta1, adam_beta2=beta2, optimizer_epsilon=epsilon)
    new, gradient = steps_of(made, 3, learning_rate=rate)
    for part in ("actor", "critic", "temperature"):
        parts = (getattr(tree, part) for tree in (made.state.params, new, gradient))
        for weight, after, slope in leaves(*parts):
            mean = square = 0.0
            for count in range(1, 4):
                mean = beta1 * mean + (1 - beta1) * slope
                square = beta2 * square + (1 - beta2) * slope**2
                root = np.sqrt(square / (1 - beta2**count)) + epsilon
                weight = weight - rate * mean / (1 - beta1**count) / root
            np.testing.assert_allclose(after, weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("given, decay", [({}, 0.01), ({"weight_decay": 0.3}, 0.3)])
def test_adamw_decays_the_networks_alone(given, decay):
    """w ← w − η·(Adam's direction + λ·w); a temperature is no weight."""
    made, plain = case("sac", optimizer="adamw", **given), case("sac")
    (new, _), (before, _) = steps_of(made, 1), steps_of(plain, 1)
    rate = float(made.state.hyper["learning_rate"])
    for part in ("actor", "critic"):
        parts = (getattr(tree, part) for tree in (made.state.params, before, new))
        for weight, by_adam, by_adamw in leaves(*parts):
            np.testing.assert_allclose(
                by_adamw, by_adam - rate * decay * weight, rtol=1e-5, atol=1e-7
            )
    assert same(new.temperature, before.temperature)


def test_every_algorithm_may_use_every_optimizer():
    made = case("td3", optimizer="rmsprop", optimizer_epsilon=1e-6, epsilon_inside_root=False)
    new, gradient = steps_of(made, 1)
    rate = float(made.state.hyper["learning_rate"])
    for weight, after, slope in leaves(made.state.params.critic, new.critic, gradient.critic):
        root = np.sqrt(0.01 * slope**2) + 1e-6  # rmsprop_decay is 0.99
        np.testing.assert_allclose(after, weight - rate * slope / root, rtol=1e-4, atol=1e-6)


def test_settings_of_another_optimizer_are_refused():
    with pytest.raises(ConfigError, match="weight_decay is AdamW's: optimizer must be adamw"):
        case("sac", weight_decay=0.1)
    with pytest.raises(ConfigError, match="must be below 1"):
        case("sac", adam_beta2=1.0)


@both
def test_targets_follow_the_new_networks_by_tau(name):
    made = case(name)
    for tau in (0.25, 1.0):
        state = made.with_hyper(tau=tau)
        new, _ = made.update(state)
        for target in made.algorithm.target_names:
            trees = [getattr(one, target) for one in (state.targets, new.targets, new.params)]
            for old, moved, online in zip(*map(jax.tree.leaves, trees), strict=True):
                want = (1 - tau) * np.asarray(old) + tau * np.asarray(online)
                np.testing.assert_allclose(moved, want, rtol=1e-5, atol=1e-6)


def norm_of(tree):
    return float(np.sqrt(sum(np.sum(np.square(x)) for x in jax.device_get(jax.tree.leaves(tree)))))


@both
def test_max_grad_norm_clips_each_network(name):
    """Seen in Adam's first moment, a tenth of the gradient it was given."""
    plain, clipped = case(name), case(name, max_grad_norm=0.01)
    huge, _ = plain.gradients()
    tiny = huge._replace(params=mapped(lambda x: np.float32(1e-4) * x, huge.params))
    for part in ("actor", "critic"):
        norm = norm_of(getattr(huge.params, part))
        assert norm > 0.02

        def moment(made, gradients, part=part):
            moments = made.apply(made.state, gradients).opt_state[part]
            return 10 * norm_of(optax.tree.get(moments, "mu"))

        assert moment(plain, huge) == pytest.approx(norm, rel=1e-4)
        assert moment(clipped, huge) == pytest.approx(0.01, rel=1e-4)
        assert moment(clipped, tiny) == pytest.approx(1e-4 * norm, rel=1e-3)


def smaller_bias(actor, batch, key):
    size = jnp.sum(actor.head.bias**2)
    return 0.5 * size, {"bias_size": size}


def constant(actor, batch, key):
    return jnp.float32(3.0), {"batch": jnp.mean(batch.reward), "draw": jax.random.uniform(key)}


@both
def test_addons_join_the_actors_loss(name):
    plain, added = case(name), Case(name, loss_addons=(smaller_bias, constant))
    (before, before_aux), (after, after_aux) = plain.gradients(), added.gradients()
    bias = np.asarray(plain.state.params.actor.head.bias)
    size = float(np.sum(bias**2))
    more = float(after_aux.metrics["actor_loss"]) - float(before_aux.metrics["actor_loss"])
    assert more == pytest.approx(0.5 * size + 3.0, rel=1e-4)
    assert float(after_aux.metrics["addon/bias_size"]) == pytest.approx(size, rel=1e-5)
    assert float(after_aux.metrics["addon/batch"]) == pytest.approx(
        float(np.mean(make_batch().reward))
    )
    # the gradient of ½·b² is b, and nothing else moves
    np.testing.assert_allclose(
        np.asarray(after.params.actor.head.bias) - before.params.actor.head.bias,
        bias,
        rtol=1e-3,
        atol=1e-5,
    )
    weights = (after.params.actor.head.weight, before.params.actor.head.weight)
    np.testing.assert_allclose(*weights, atol=1e-5)
    if name == "td3":  # a delayed actor reports nothing
        metrics = added.gradients(index=1)[1].metrics
        assert np.isnan(metrics["addon/bias_size"]) and np.isnan(metrics["addon/draw"])


@both
def test_an_addon_of_the_wrong_shape_is_named(name):
    def lopsided(actor, batch, key):
        return jnp.mean(actor.head.weight, axis=0), {}

    def alone(actor, batch, key):
        return jnp.float32(0.0)

    def vector_metric(actor, batch, key):
        return jnp.float32(0.0), {"rewards": batch.reward}

    wrong = {
        lopsided: r"'lopsided': a term must be a scalar, got \(\d,\)",
        alone: r"'alone' must return \(a scalar, a dict of metrics\)",
        vector_metric: r"'vector_metric': rewards must be a scalar",
    }
    for addon, message in wrong.items():
        made = Case(name, loss_addons=(addon,))
        with pytest.raises(ConfigError, match=message):
            jax.eval_shape(made.raw_gradients, made.state, make_batch(), KEY, jnp.int32(0))


@both
def test_moving_settings_live_in_the_state(name):
    made = case(name)
    moving = made.algorithm.config.moving()
    assert moving["learning_rate"] == SMALL["learning_rate"]
    state = made.algorithm.init(SPEC, KEY)
    for setting, value in moving.items():
        assert float(state.hyper[setting]) == np.float32(value)
