"""Actors that hand out distributions, against NumPy and scipy."""

from functools import partial
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from understudy.networks import (
    BoundedGaussianActor,
    CategoricalActor,
    DeterministicActor,
    GaussianActor,
    Linear,
    MultiCategoricalActor,
    Networks,
    SquashedGaussianActor,
    StateDependentActor,
)
from understudy.networks.build import make_actor
from understudy.networks.ensembles import ensemble
from understudy.networks.mlp import orthogonal
from understudy.ops.distributions import Categorical, Gaussian, MultiCategorical
from understudy.types import ArraySpec, ConfigError, Continuous, Discrete, MultiDiscrete, Spec

KEY = jax.random.PRNGKey(0)
CONTINUOUS = Continuous((-2.0, 0.0), (2.0, 5.0), (2,))
SEVERAL = MultiDiscrete((2, 4, 3), (0, 0, 0), (3,))
EVERY_HEAD = [
    (DeterministicActor, CONTINUOUS),
    (SquashedGaussianActor, CONTINUOUS),
    (GaussianActor, CONTINUOUS),
    (BoundedGaussianActor, CONTINUOUS),
    (StateDependentActor, CONTINUOUS),
    (CategoricalActor, Discrete(5)),
    (MultiCategoricalActor, SEVERAL),
]


def make(head, action, gain=None, key=KEY, own=None, **settings):
    config = SimpleNamespace(
        memory=None,
        network="mlp",
        unit_weights=False,
        hidden_sizes=(8, 6),
        actor_hidden_sizes=None,
        actor_layer_norm=False,
        activation="relu",
        normalization="off",
        initialization="kaiming",
    )
    vars(config).update(settings)
    spec = Spec(ArraySpec((3,)), action)
    if head is MultiCategoricalActor:
        own = own or {"choices": SEVERAL.choices}
    return make_actor(head, spec, config, Networks(), key, gain, settings=own)


def observations(*shape):
    return np.random.default_rng(0).normal(size=(*shape, 3)).astype(np.float32)


answer = jax.jit(lambda actor, x: actor(x))
mode = jax.jit(lambda actor, x: actor.mode(x))


def outputs(actor, x):
    """What the last layer says, in NumPy."""
    for layer in actor.encoder.layers:
        x = np.maximum(x @ np.asarray(layer.weight) + np.asarray(layer.bias), 0)
    return x @ np.asarray(actor.head.weight) + np.asarray(actor.head.bias)


@pytest.mark.parametrize("shape", [(), (5,), (4, 2)])
def test_gaussian_actor_is_its_formula(shape):
    actor = make(GaussianActor, CONTINUOUS, own={"initial_log_std": -1})
    np.testing.assert_array_equal(actor.log_std, [-1.0, -1.0])
    actor = eqx.tree_at(lambda actor: actor.log_std, actor, jnp.array([-0.5, 0.3]))
    x = observations(*shape)
    policy = answer(actor, jnp.asarray(x))
    assert isinstance(policy, Gaussian)
    want = outputs(actor, x)
    np.testing.assert_allclose(policy.mean, want, rtol=1e-4, atol=1e-6)
    action = np.full((*shape, 2), 0.2)
    density = stats.norm(want, np.exp([-0.5, 0.3])).logpdf(action).sum(-1)
    got = jax.jit(lambda policy, action: policy.log_prob(action))(
        policy, jnp.asarray(action, jnp.float32)
    )
    np.testing.assert_allclose(got, density, rtol=1e-4)


def test_the_spread_of_a_gaussian_actor_is_learned():
    actor = make(GaussianActor, CONTINUOUS)

    def entropy(actor):
        return jnp.mean(actor(jnp.ones((4, 3))).entropy())

    gradient = jax.jit(jax.grad(entropy))(actor)
    np.testing.assert_allclose(gradient.log_std, [1.0, 1.0])  # dH/d log σ, per dimension
    np.testing.assert_array_equal(gradient.head.weight, np.zeros((6, 2)))


@pytest.mark.parametrize("initialization", ["kaiming", "orthogonal"])
@pytest.mark.parametrize("initial_std", [0.01, 0.3, 0.9])
def test_bounded_gaussian_starts_with_its_deviation_everywhere(initial_std, initialization):
    own = {"initial_std": initial_std}
    actor = make(BoundedGaussianActor, CONTINUOUS, own=own, initialization=initialization)
    x = 10.0 * observations(50)
    mean, log_std = answer(actor, jnp.asarray(x))
    np.testing.assert_allclose(np.exp(log_std), np.full((50, 2), initial_std), rtol=1e-4)
    np.testing.assert_allclose(mean, np.tanh(outputs(actor, x)[:, :2]), rtol=1e-3, atol=1e-5)
    assert np.std(mean) > 0.01


def test_bounded_gaussian_is_its_formula():
    actor = make(BoundedGaussianActor, CONTINUOUS)
    weight = jax.random.normal(KEY, actor.head.weight.shape)
    actor = eqx.tree_at(lambda actor: actor.head.weight, actor, weight)
    x = observations(20)
    policy = answer(actor, jnp.asarray(x))
    assert isinstance(policy, Gaussian)
    mean, std = policy.mean, np.exp(policy.log_std)
    both = outputs(actor, x).astype(np.float64)
    np.testing.assert_allclose(mean, np.tanh(both[:, :2]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(std, 1e-4 + 0.9999 / (1 + np.exp(-both[:, 2:])), rtol=1e-3)
    assert np.std(std) > 0.05
    for scale in (1e2, 1e6):
        mean, log_std = answer(actor, jnp.asarray(scale * x, jnp.float32))
        assert np.all(np.abs(mean) <= 1) and np.all(log_std <= 1e-6)
        assert np.all(log_std >= np.log(1e-4) - 1e-6)


def test_a_deviation_near_its_bound_still_has_a_gradient():
    """The trap: a clipped deviation that has grown too wide never comes back."""
    actor = make(BoundedGaussianActor, CONTINUOUS)
    slope = jax.jit(jax.grad(lambda actor: jnp.sum(actor(jnp.ones((1, 3)))[1])))
    for bias in (-8.0, 8.0):
        far = eqx.tree_at(lambda a: a.head.bias, actor, jnp.asarray(np.full(4, bias, np.float32)))
        assert np.all(np.asarray(slope(far).head.bias)[2:] > 1e-5)


@pytest.mark.parametrize("initial_std", [-1.0, 0.0, 1e-4, 1.0, 2.0, float("nan")])
def test_a_deviation_that_cannot_be_reached_is_refused(initial_std):
    with pytest.raises(ConfigError, match="initial std"):
        make(BoundedGaussianActor, CONTINUOUS, own={"initial_std": initial_std})


def test_categorical_actor_is_its_formula():
    actor = make(CategoricalActor, Discrete(5))
    x = observations(4, 2)
    policy = answer(actor, jnp.asarray(x))
    assert isinstance(policy, Categorical)
    want = outputs(actor, x)
    np.testing.assert_allclose(policy.logits, want, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(mode(actor, jnp.asarray(x)), np.argmax(want, -1))


def test_multi_categorical_actor_hands_out_its_columns_in_order():
    actor = make(MultiCategoricalActor, SEVERAL)
    x = observations(4, 2)
    policy = answer(actor, jnp.asarray(x))
    assert isinstance(policy, MultiCategorical)
    want = outputs(actor, x)
    parts = [want[..., :2], want[..., 2:6], want[..., 6:]]
    assert [logits.shape for logits in policy.logits] == [(4, 2, 2), (4, 2, 4), (4, 2, 3)]
    for logits, part in zip(policy.logits, parts, strict=True):
        np.testing.assert_allclose(logits, part, rtol=1e-4, atol=1e-6)
    chosen = np.stack([np.argmax(part, -1) for part in parts], -1)
    np.testing.assert_array_equal(mode(actor, jnp.asarray(x)), chosen)


def test_choices_that_do_not_fill_the_head_are_refused():
    with pytest.raises(ValueError, match="choices"):
        make(MultiCategoricalActor, SEVERAL, own={"choices": (2, 4)})


@pytest.mark.parametrize(
    "head", [DeterministicActor, SquashedGaussianActor, BoundedGaussianActor, GaussianActor]
)
def test_the_mode_of_a_continuous_actor(head):
    actor = make(head, CONTINUOUS)
    x = 3.0 * observations(30)
    mean = outputs(actor, x)[:, :2]
    want = mean if head is GaussianActor else np.tanh(mean)
    np.testing.assert_allclose(mode(actor, jnp.asarray(x)), want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("head", "action"), EVERY_HEAD)
def test_actors_are_plain_trees_of_arrays(head, action):
    actor = make(head, action)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(actor))
    x = jnp.asarray(observations(7))
    jax.tree.map(
        lambda jitted, plain: np.testing.assert_allclose(jitted, plain, rtol=1e-4, atol=1e-6),
        jax.jit(lambda actor, x: actor(x))(actor, x),
        actor(x),
    )
    # as one member of many: a leading axis on every leaf, and no two members alike
    members = ensemble(lambda key: make(head, action, key=key), 3, KEY)
    weight = np.asarray(members.encoder.layers[0].weight)
    assert not np.any(weight[0] == weight[1]) and not np.any(weight[1] == weight[2])
    modes = jax.eval_shape(jax.vmap(lambda actor: actor.mode(x)), members)
    assert modes.shape[:2] == (3, 7)
    # donated: no buffer may be there twice
    jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)(actor)


@pytest.mark.parametrize(("head", "action"), EVERY_HEAD)
def test_a_gain_is_the_heads_alone(head, action):
    """What A2C starts from: hidden layers √2, policy head 0.01, biases zero."""
    plain = make(head, action, initialization="orthogonal")
    small = make(head, action, initialization="orthogonal", gain=0.01)
    for layer, same in zip(small.encoder.layers, plain.encoder.layers, strict=True):
        np.testing.assert_array_equal(layer.weight, same.weight)
        lengths = np.linalg.svd(np.asarray(layer.weight), compute_uv=False)
        np.testing.assert_allclose(lengths, np.full(len(lengths), 2**0.5), rtol=1e-5)
    np.testing.assert_allclose(small.head.weight, plain.head.weight / 2**0.5 * 0.01, rtol=1e-4)
    if head is not BoundedGaussianActor:  # half of its head starts without weights
        lengths = np.linalg.svd(np.asarray(small.head.weight), compute_uv=False)
        np.testing.assert_allclose(lengths, np.full(len(lengths), 0.01), rtol=1e-4)
        np.testing.assert_array_equal(
            small.head.bias, np.zeros(action.size * (2 if head is SquashedGaussianActor else 1))
        )


def test_heads_take_any_initializer():
    head = Linear(6, 4, KEY, partial(orthogonal, gain=3.0))
    gram = np.asarray(head.weight).T @ np.asarray(head.weight)
    np.testing.assert_allclose(gram, 9.0 * np.eye(4), atol=1e-5)
