"""The two add-ons that ship, and what an add-on may return."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from tests.algorithms.algorithm_cases import KEY, Case, case, make_batch, mapped
from understudy.algorithms.aux_losses import add_terms
from understudy.networks import MLP, CategoricalActor, GaussianActor, Linear
from understudy.networks.mlp import kaiming
from understudy.types import ConfigError


def head_on_identity(kind, size=2, seed=0, **settings):
    key = jax.random.PRNGKey(seed)
    return kind(MLP(3, (), key), Linear(3, size, key, kaiming), **settings)


answer_of = jax.jit(lambda actor, observation: actor(observation))
size_of = jax.jit(lambda actor, observation: jnp.mean(jnp.abs(actor.mode(observation))))


def test_kl_between_gaussians_against_numerical_integration():
    ours = head_on_identity(GaussianActor, size=1, initial_log_std=-0.3)
    theirs = head_on_identity(GaussianActor, size=1, seed=1, initial_log_std=0.4)
    batch = make_batch(4)
    term, metrics = jax.jit(us.kl_to_reference(theirs, 0.5))(ours, batch, KEY)
    grid = np.linspace(-15, 15, 20_001)
    want = []
    answers = [np.asarray(answer_of(actor, batch.observation).mean) for actor in (ours, theirs)]
    for row, weight in enumerate(np.asarray(batch.weight)):
        densities = []
        for actor, answer in zip((ours, theirs), answers, strict=True):
            mean, std = float(answer[row, 0]), float(np.exp(np.asarray(actor.log_std)[0]))
            densities.append(np.exp(-0.5 * ((grid - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi)))
        p, q = densities
        want.append(float(weight) * np.trapezoid(p * np.log(p / q), grid))
    assert metrics["reference_kl"] == pytest.approx(np.mean(want), rel=1e-3)
    assert term == pytest.approx(0.5 * np.mean(want), rel=1e-3)


def test_kl_between_categoricals_by_its_definition():
    ours, theirs = (head_on_identity(CategoricalActor, size=3, seed=seed) for seed in (0, 1))
    batch = make_batch(4)
    _, metrics = jax.jit(us.kl_to_reference(theirs, 1.0))(ours, batch, KEY)
    p, q = (
        np.asarray(answer_of(actor, batch.observation).probabilities, np.float64)
        for actor in (ours, theirs)
    )
    want = np.mean(np.asarray(batch.weight) * np.sum(p * np.log(p / q), axis=-1))
    assert metrics["reference_kl"] == pytest.approx(want, rel=1e-4)


def test_the_reference_is_its_own_nearest_policy():
    """The term is zero at the reference and pulls towards it: only the actor has a gradient."""
    reference = head_on_identity(GaussianActor)
    batch, term = make_batch(), us.kl_to_reference(reference, 1.0)
    addon = jax.jit(jax.value_and_grad(lambda actor: term(actor, batch, KEY)[0]))
    assert addon(reference)[0] == pytest.approx(0.0, abs=1e-6)
    actor = mapped(lambda x: x + np.float32(0.1), reference)
    value, step = addon(actor)
    nearer = mapped(lambda a, g: a - np.float32(0.05) * g, actor, step)
    assert addon(nearer)[0] < value


def test_a_deterministic_policy_has_no_kl():
    made = case("td3")
    with pytest.raises(ConfigError, match="needs a policy that is random"):
        us.kl_to_reference(made.state.params.actor, 1.0)(made.state.params.actor, make_batch(), KEY)


def test_the_penalty_is_the_square_of_what_the_policy_would_do():
    for name in ("td3", "sac"):
        made, batch = case(name), make_batch()
        term, metrics = jax.jit(us.action_penalty(0.1))(made.state.params.actor, batch, KEY)
        answer = made.answer(batch.observation)
        action = np.asarray(answer if name == "td3" else np.tanh(answer[0]))
        want = np.mean(np.asarray(batch.weight) * np.sum(action**2, axis=-1))
        assert metrics["action_square"] == pytest.approx(want, rel=1e-5)
        assert term == pytest.approx(0.1 * want, rel=1e-5)
    with pytest.raises(ConfigError, match="continuous actions"):
        us.action_penalty(0.1)(head_on_identity(CategoricalActor), make_batch(), KEY)


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_a_penalty_makes_actions_smaller(name):
    plain, penalized = case(name), Case(name, loss_addons=(us.action_penalty(50.0),))
    sizes = []
    for made in (plain, penalized):
        state = made.state
        for index in range(0, 40, 2):
            state, aux = made.update(
                state, make_batch(seed=index), jax.random.PRNGKey(index), index
            )
        sizes.append(float(size_of(state.params.actor, make_batch().observation)))
    assert sizes[1] < 0.5 * sizes[0]
    assert "addon/action_square" in aux.metrics


@pytest.mark.parametrize(
    "answer, words",
    [
        ((jnp.ones(3), {}), "must be a scalar, got \\(3,\\)"),
        (jnp.float32(1.0), "must return \\(a scalar, a dict of metrics\\)"),
        ((jnp.float32(1.0), {"x": jnp.ones(2)}), "x must be a scalar"),
    ],
)
def test_an_addon_of_the_wrong_shape_is_named(answer, words):
    def shapeless(actor, batch, key):
        return answer

    with pytest.raises(ConfigError, match=f"'shapeless'.*{words}"):
        add_terms((shapeless,), Linear(3, 2, KEY), make_batch(), KEY)
