"""SimBa and SimBaV2, against NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.algorithms.sac import SACConfig
from understudy.networks import (
    MLP,
    BoundedGaussianActor,
    Networks,
    SimBa,
    SimBaV2,
    SquashedGaussianActor,
    evaluate_ensemble,
)
from understudy.networks.batch_norm import BatchNorm
from understudy.networks.build import make_actor, make_critics
from understudy.networks.mlp import Linear, RMSNorm
from understudy.networks.projection import UnitLinear, project_weights, unit_norm
from understudy.networks.residual import FlashSAC, SimBaV2Block, he_normal
from understudy.types import ArraySpec, ConfigError, Continuous, Discrete, Spec

KEY = jax.random.PRNGKey(0)
SPEC = Spec(ArraySpec((3,)), Continuous((-2.0, 0.0), (2.0, 5.0), (2,)))
both = pytest.mark.parametrize("kind", [SimBa, SimBaV2])
answer = eqx.filter_jit(lambda module, x: module(x))


def trained(module, seed=0):
    """The module with other numbers in all arrays, in float64."""
    rng = np.random.default_rng(seed)

    def moved(leaf):
        return np.asarray(leaf, np.float64) + rng.normal(0.0, 0.3, leaf.shape)

    return jax.tree.map(moved, module)


def answers(module, x):
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), module)
    return answer(single, jnp.asarray(x, jnp.float32))


def layer_norm(norm, x):
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return (x - x.mean(-1, keepdims=True)) / deviation * norm.scale + norm.offset


def on_sphere(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0.0), "tanh": np.tanh}
each_activation = pytest.mark.parametrize("activation", sorted(ACTIVATIONS))


@each_activation
def test_simba_against_numpy(activation):
    body = trained(SimBa(3, (5, 5), KEY, activation=activation))
    x = np.random.default_rng(1).normal(size=(2, 6, 3))  # any leading axes
    got = answers(body, x)
    x = x @ body.embedding.weight + body.embedding.bias
    for block in body.blocks:
        inner = layer_norm(block.norm, x) @ block.expand.weight + block.expand.bias
        x = x + ACTIVATIONS[activation](inner) @ block.contract.weight + block.contract.bias
    np.testing.assert_allclose(got, layer_norm(body.norm, x), rtol=1e-4, atol=1e-5)


@each_activation
def test_simbav2_against_numpy(activation):
    """As in the paper, whose inputs are normalized, too."""
    body = trained(SimBaV2(3, (5, 5), KEY, activation=activation))
    x = np.random.default_rng(1).normal(size=(2, 6, 3))
    got = answers(body, x)
    x = on_sphere(np.concatenate([x, np.full((2, 6, 1), 3.0)], axis=-1))
    x = on_sphere(body.embedding_scale * (x @ body.embedding.weight))
    for block in body.blocks:
        inner = ACTIVATIONS[activation](block.scale * (x @ block.expand.weight))
        target = on_sphere(inner @ block.contract.weight)
        rate = block.rate * 5**0.5 / 3  # a third at first
        x = on_sphere(x + rate * (target - x))
    want = body.output_scale * (x @ body.output.weight)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_block_of_simbav2_worked_by_hand():
    """x = (1, 0) passes the first inner unit and becomes y = (0, 1); half of the way from x to y,
    (½, ½), has the length √½."""
    block = SimBaV2Block(2, KEY, initial_rate=0.5)
    weights = np.zeros((2, 8), np.float32), np.zeros((8, 2), np.float32)
    weights[0][0, 0] = weights[1][0, 1] = 1.0
    places = (lambda block: (block.expand.weight, block.contract.weight),)
    block = eqx.tree_at(*places, block, tuple(map(jnp.asarray, weights)))
    got = block(jnp.array([1.0, 0.0]), "relu")
    np.testing.assert_allclose(got, [0.5**0.5, 0.5**0.5], rtol=1e-6)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_the_first_rate_of_simbav2_is_that_of_a_mean(blocks):
    """With n blocks each of n + 1 points has an equal part."""
    body = SimBaV2(3, (6,) * blocks, KEY)
    for block in body.blocks:
        np.testing.assert_allclose(block.interpolation, np.full(6, 1 / (blocks + 1)), rtol=1e-6)
        np.testing.assert_allclose(block.rate, np.full(6, 6**-0.5), rtol=1e-6)


def test_simba_starts_as_in_its_paper():
    body = SimBa(3, (64, 64), KEY)
    weight = np.asarray(body.embedding.weight, np.float64)
    np.testing.assert_allclose(weight @ weight.T, np.eye(3), atol=1e-5)  # orthogonal, gain 1
    for layer in [*(b.expand for b in body.blocks), *(b.contract for b in body.blocks)]:
        inputs = layer.weight.shape[0]
        assert np.std(layer.weight) == pytest.approx((2 / inputs) ** 0.5, rel=0.03)
        np.testing.assert_array_equal(layer.bias, np.zeros(layer.weight.shape[1]))
    first, second = (np.asarray(block.expand.weight) for block in body.blocks)
    assert not np.any(first == second)


def test_he_normal_is_a_truncated_normal():
    weight = np.asarray(he_normal(KEY, 50, 400))
    assert np.std(weight) == pytest.approx(0.2, rel=0.02)
    assert 0.4 < np.abs(weight).max() < 0.46  # two standard deviations of the untruncated normal


def test_simbav2_starts_on_the_sphere():
    body = SimBaV2(3, (6, 6), KEY)
    layers = [body.embedding, body.output]
    layers += [layer for block in body.blocks for layer in (block.expand, block.contract)]
    for layer in layers:
        np.testing.assert_allclose(np.linalg.norm(layer.weight, axis=0), 1.0, rtol=1e-5)
    np.testing.assert_allclose(body.embedding_scale, np.full(6, (2 / 6) ** 0.5), rtol=1e-6)
    np.testing.assert_allclose(body.blocks[0].scale, np.full(24, (2 / 24) ** 0.5), rtol=1e-6)
    np.testing.assert_array_equal(body.output_scale, np.ones(6))


@both
def test_leaves_are_exactly_the_weights(kind):
    sizes = [leaf.size for leaf in jax.tree.leaves(kind(3, (4, 4), KEY))]
    embedding = {SimBa: 3 * 4 + 4, SimBaV2: 4 * 4 + 4}[kind]
    block = {SimBa: 2 * 4 + 4 * 16 + 16 + 16 * 4 + 4, SimBaV2: 4 * 16 + 16 + 16 * 4 + 4}[kind]
    end = {SimBa: 2 * 4, SimBaV2: 4 * 4 + 4}[kind]
    assert sum(sizes) == embedding + 2 * block + end


@pytest.mark.parametrize("kind", [SimBa, SimBaV2, FlashSAC])
@pytest.mark.parametrize("sizes", [(), (4, 5)])
def test_blocks_have_one_width(kind, sizes):
    with pytest.raises(ConfigError, match="equal widths"):
        kind(3, sizes, KEY)


def test_a_vector_of_zeros_has_no_direction_and_a_finite_gradient():
    np.testing.assert_array_equal(unit_norm(jnp.zeros(3)), np.zeros(3))
    assert np.all(np.isfinite(jax.grad(lambda x: jnp.sum(unit_norm(x)))(jnp.zeros(3))))
    np.testing.assert_allclose(unit_norm(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)


EACH = {"simba": SimBa, "simbav2": SimBaV2, "flashsac": FlashSAC}


# -- in actors and critics -------------------------------------------------------------------


def config(**settings):
    return SACConfig(**{"hidden_sizes": (4, 4), **settings})


@pytest.mark.parametrize("network, kind", EACH.items())
def test_actors_and_critics_have_these_bodies(network, kind):
    made = config(
        network=network, actor_hidden_sizes=(5,), critic_hidden_sizes=(6, 6), num_critics=3
    )
    actor = make_actor(SquashedGaussianActor, SPEC, made, Networks(), KEY)
    critics = make_critics(SPEC, made, Networks(), KEY)
    assert isinstance(actor.encoder, kind) and isinstance(critics.encoder, kind)
    assert (len(actor.encoder.blocks), len(critics.encoder.blocks)) == (1, 2)
    assert actor.head.weight.shape == (5, 4) and critics.head.weight.shape == (3, 6, 1)
    weight = np.asarray(actor.head.weight, np.float64)  # orthonormal, also after a projection
    np.testing.assert_allclose(weight.T @ weight, np.eye(4), atol=1e-5)
    np.testing.assert_array_equal(actor.head.bias, np.zeros(4))
    q = evaluate_ensemble(critics, jnp.ones((7, 3)), jnp.zeros((7, 2)))
    assert q.shape == (3, 7) and np.all(np.std(q, axis=0) > 1e-3)
    several = evaluate_ensemble(critics, jnp.ones((7, 3)), jnp.zeros((7, 5, 2)))  # as in MPO
    np.testing.assert_allclose(several, np.repeat(q[..., None], 5, axis=-1), rtol=1e-5)


def test_a_body_has_the_activation_of_the_config():
    made = make_actor(
        SquashedGaussianActor, SPEC, config(network="simba", activation="tanh"), Networks(), KEY
    )
    assert made.encoder.activation == "tanh"


def test_choices_have_these_bodies_too():
    discrete = Spec(SPEC.observation, Discrete(5))
    critics = make_critics(discrete, config(network="simbav2"), Networks(), KEY)
    assert evaluate_ensemble(critics, jnp.ones((7, 3))).shape == (2, 7, 5)


@pytest.mark.parametrize("network", ["mlp", *EACH])
def test_networks_start_with_weights_of_length_one(network):
    made = config(network=network, project_weights=True)
    actor = make_actor(SquashedGaussianActor, SPEC, made, Networks(), KEY)
    assert_unit_weights(actor)
    assert_unit_weights(make_critics(SPEC, made, Networks(), KEY))


def assert_unit_weights(network):
    """The weights of each unit of all linear layers have length 1; the scale of an RMSNorm, and
    scale and offset of a projected BatchNorm together, have length √size."""

    def is_linear(part):
        return isinstance(part, Linear | UnitLinear)

    layers = [part for part in jax.tree.leaves(network, is_leaf=is_linear) if is_linear(part)]
    assert len(layers) >= 3
    for layer in layers:
        np.testing.assert_allclose(np.linalg.norm(layer.weight, axis=-2), 1.0, rtol=1e-5)
    for norm in norms_of(network):
        both = [norm.scale] if isinstance(norm, RMSNorm) else [norm.scale, norm.offset]
        length = np.linalg.norm(np.concatenate(both, axis=-1), axis=-1)
        np.testing.assert_allclose(length, norm.scale.shape[-1] ** 0.5, rtol=1e-5)


def norms_of(network):
    """The norms of a network whose lengths are fixed."""

    def is_norm(part):
        return isinstance(part, RMSNorm) or (isinstance(part, BatchNorm) and part.projected)

    return [part for part in jax.tree.leaves(network, is_leaf=is_norm) if is_norm(part)]


def test_projection_changes_weights_alone():
    """Of each critic by itself. Biases, norms and scales stay as they are."""
    critics = make_critics(SPEC, config(layer_norm=True), Networks(), KEY)
    moved = jax.tree.map(lambda leaf: leaf * 3.0 + 0.5, critics)
    projected = jax.jit(project_weights)(moved)
    pairs = zip(jax.tree.leaves_with_path(moved), jax.tree.leaves_with_path(projected), strict=True)
    for (path, before), (_, after) in pairs:
        before = np.asarray(before)
        if path[-1].name == "weight":
            before = before / np.linalg.norm(before, axis=1, keepdims=True)
        np.testing.assert_allclose(after, before, rtol=1e-5)


def test_projection_leaves_encoders_of_observations_alone():
    spec = Spec(ArraySpec((5, 6, 2), "uint8"), SPEC.action)
    critics = make_critics(spec, config(encoder_features=5), Networks(), KEY)
    projected = jax.jit(project_weights)(critics)
    for before, after in zip(
        jax.tree.leaves(critics.observation_encoder),
        jax.tree.leaves(projected.observation_encoder),
        strict=True,
    ):
        np.testing.assert_array_equal(before, after)
    assert_unit_weights(projected.members)


def test_layers_of_ours_in_a_users_network_are_projected_too():
    def encoder(inputs, key):
        return MLP(inputs, (4, 4), key)

    networks = Networks(actor_encoder=encoder, critic_encoder=encoder)
    critics = make_critics(SPEC, config(project_weights=True), networks, KEY)
    assert_unit_weights(critics)
    assert evaluate_ensemble(critics, jnp.ones((7, 3)), jnp.zeros((7, 2))).shape == (2, 7)


def test_a_unit_without_weights_stays_without():
    """Such as the half of MPO's first head that makes the deviation."""
    actor = make_actor(BoundedGaussianActor, SPEC, config(project_weights=True), Networks(), KEY)
    np.testing.assert_array_equal(actor.head.weight[:, 2:], np.zeros((4, 2)))
    np.testing.assert_allclose(np.linalg.norm(actor.head.weight[:, :2], axis=0), 1.0, rtol=1e-5)


def test_other_layers_than_the_standard_ones_are_asked_for_correctly():
    with pytest.raises(ConfigError) as problem:
        config(network="simba", hidden_sizes=(4, 5), critic_hidden_sizes=(), layer_norm=True)
    for words in (
        "layer_norm is for the network mlp, not simba: turn it off",
        "hidden_sizes must be one or more equal widths, got (4, 5)",
        "critic_hidden_sizes must be one or more equal widths, got ()",
    ):
        assert words in str(problem.value)
    with pytest.raises(ConfigError, match="did you mean 'simbav2'"):
        config(network="simba_v2")
