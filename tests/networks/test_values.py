"""Values of states and of discrete choices, against NumPy."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.networks import (
    DuelingQValues,
    Linear,
    Networks,
    QValues,
    StateValue,
    evaluate_ensemble,
)
from understudy.networks.build import make_critics, make_value
from understudy.networks.ensembles import return_parameters
from understudy.ops.return_distributions import Atoms, Quantiles
from understudy.types import ArraySpec, Continuous, Discrete, Spec

KEY = jax.random.PRNGKey(0)
SPEC = Spec(ArraySpec((3,)), Discrete(4, start=1))
DUELING = pytest.mark.parametrize("dueling", [False, True])


def config(**settings):
    defaults = dict(
        memory=None,
        network="mlp",
        unit_weights=False,
        hidden_sizes=(8, 6),
        critic_hidden_sizes=None,
        activation="relu",
        layer_norm=False,
        normalization="off",
        initialization="kaiming",
        num_critics=1,
    )
    return SimpleNamespace(**(defaults | settings))


def observations(*shape):
    return np.random.default_rng(0).normal(size=(*shape, 3)).astype(np.float32)


def member(stacked, index=0):
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[index]), stacked)


@eqx.filter_jit
def answer(network, x):
    """One program instead of one for each operation."""
    return network(x)


ensemble_answer = eqx.filter_jit(evaluate_ensemble)


def linear(layer, x):
    return x @ np.asarray(layer.weight) + np.asarray(layer.bias)


def hidden(mlp, x):
    for layer in mlp.layers:
        x = linear(layer, x)
        if mlp.norms:
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        x = np.maximum(x, 0)
    return x


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("shape", [(), (5,), (4, 2)])
def test_state_value_is_its_formula(shape, layer_norm):
    value = make_value(SPEC, config(layer_norm=layer_norm), Networks(), KEY)
    assert isinstance(value, StateValue) and len(value.encoder.norms) == 2 * layer_norm
    x = observations(*shape)
    want = linear(value.head, hidden(value.encoder, x))[..., 0]
    got = answer(value, jnp.asarray(x))
    assert got.shape == shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_value_of_continuous_actions_does_not_see_them():
    spec = Spec(ArraySpec((3,)), Continuous((-1.0,) * 2, (1.0,) * 2, (2,)))
    value = make_value(spec, config(critic_hidden_sizes=(5,)), Networks(), KEY)
    assert [layer.weight.shape for layer in value.encoder.layers] == [(3, 5)]


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("shape", [(), (5,), (4, 2)])
def test_q_values_are_their_formula(shape, layer_norm):
    q_values = member(make_critics(SPEC, config(layer_norm=layer_norm), Networks(), KEY))
    assert isinstance(q_values, QValues)
    x = observations(*shape)
    want = linear(q_values.head, hidden(q_values.encoder, x))
    got = answer(q_values, jnp.asarray(x))
    assert got.shape == (*shape, 4)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("sizes", [(8, 6), (8,), ()])
def test_dueling_values_are_their_formula(sizes, layer_norm):
    made = config(hidden_sizes=sizes, layer_norm=layer_norm)
    q_values = member(make_critics(SPEC, made, Networks(), KEY, dueling=True))
    assert isinstance(q_values, DuelingQValues)
    # the last hidden layer is there twice, the others once; streams without any have 512 units
    assert [layer.weight.shape[-1] for layer in q_values.encoder.layers] == list(sizes[:-1])
    for stream in q_values.streams:
        assert [layer.weight.shape[-1] for layer in stream.layers] == list(sizes[-1:] or [512])
    x = observations(4, 2)
    shared = hidden(q_values.encoder, x)
    value = linear(q_values.value, hidden(q_values.streams[0], shared))
    advantage = linear(q_values.advantage, hidden(q_values.streams[1], shared))
    want = value + advantage - advantage.mean(-1, keepdims=True)
    got = answer(q_values, jnp.asarray(x))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
    # V is the mean of Q: the two parts can be told apart
    np.testing.assert_allclose(np.mean(got, -1), value[..., 0], rtol=1e-3, atol=1e-5)
    assert np.std(got, -1).min() > 1e-4


def test_dueling_worked_by_hand():
    """V = 2, A = (1, 3, 5): Q = (2 + 1 - 3, 2 + 3 - 3, 2 + 5 - 3) = (0, 2, 4)."""
    streams = (lambda x: x[..., :1], lambda x: x[..., 1:2])
    q_values = DuelingQValues(lambda x: x, streams, Linear(1, 1, KEY), Linear(1, 3, KEY))
    where = lambda q: (q.value.weight, q.value.bias, q.advantage.weight, q.advantage.bias)  # noqa: E731
    q_values = eqx.tree_at(
        where,
        q_values,
        (jnp.array([[2.0]]), jnp.zeros(1), jnp.array([[0.0, 1.0, 2.0]]), jnp.array([1.0, 1, 1])),
    )
    np.testing.assert_allclose(answer(q_values, jnp.array([1.0, 2.0])), [0.0, 2.0, 4.0], atol=1e-6)


def shifted(tree):
    return jax.tree.map(lambda w: jnp.asarray(np.asarray(w) + np.float32(0.3)), tree)


def test_streams_do_not_leak_into_each_other():
    q_values = member(make_critics(SPEC, config(), Networks(), KEY, dueling=True))
    x = jnp.asarray(observations(9))
    before = np.asarray(answer(q_values, x))
    value_moved = eqx.tree_at(lambda q: q.streams[0], q_values, shifted(q_values.streams[0]))
    change = np.asarray(answer(value_moved, x)) - before  # the same for every choice
    assert np.abs(change).min() > 1e-3
    np.testing.assert_allclose(change, np.broadcast_to(change[:, :1], (9, 4)), atol=1e-5)
    advantage_moved = eqx.tree_at(lambda q: q.streams[1], q_values, shifted(q_values.streams[1]))
    change = np.asarray(answer(advantage_moved, x)) - before  # none on average
    assert np.abs(change).max() > 1e-2
    np.testing.assert_allclose(change.mean(-1), np.zeros(9), atol=1e-5)
    # a constant added to all advantages is no advantage
    lifted = eqx.tree_at(lambda q: q.advantage.bias, q_values, q_values.advantage.bias + 7.0)
    np.testing.assert_allclose(answer(lifted, x), before, atol=1e-5)


@DUELING
@pytest.mark.parametrize("initialization", ["kaiming", "orthogonal"])
def test_members_of_an_ensemble_are_independent(dueling, initialization):
    made = config(initialization=initialization, num_critics=3, layer_norm=True)
    stacked = make_critics(SPEC, made, Networks(), KEY, dueling)
    for path, leaf in jax.tree.leaves_with_path(stacked):
        name = jax.tree_util.keystr(path)
        assert leaf.shape[0] == 3, name
        if "norms" in name or ("bias" in name and initialization == "orthogonal"):
            continue  # these start at ones and zeros
        for i, j in [(0, 1), (0, 2), (1, 2)]:
            assert not np.any(np.asarray(leaf)[i] == np.asarray(leaf)[j]), name
    x = jnp.asarray(observations(5))
    together = np.asarray(ensemble_answer(stacked, x))
    assert together.shape == (3, 5, 4)
    for index in range(3):
        alone = answer(member(stacked, index), x)
        np.testing.assert_allclose(together[index], alone, rtol=1e-4, atol=1e-6)
    assert np.all(np.std(together, axis=0) > 1e-4)


def test_the_two_streams_start_differently():
    q_values = member(make_critics(SPEC, config(), Networks(), KEY, dueling=True))
    value, advantage = (np.asarray(stream.layers[0].weight) for stream in q_values.streams)
    assert value.shape == advantage.shape and not np.any(value == advantage)


@DUELING
def test_users_encoders_are_used(dueling):
    def encoder(inputs, key):
        return eqx.nn.MLP(inputs, 5, 7, 1, activation=jax.nn.silu, key=key)

    networks = Networks(critic_encoder=encoder)
    q_values = make_critics(SPEC, config(num_critics=2), networks, KEY, dueling)
    assert q_values.encoder.arrays.layers[0].weight.shape == (2, 7, 3)  # the observation alone
    layer = q_values.streams[1].layers[0] if dueling else q_values.head
    assert layer.weight.shape == (2, 5, 6 if dueling else 4)
    assert ensemble_answer(q_values, jnp.ones((2, 3))).shape == (2, 2, 4)
    value = make_value(SPEC, config(), networks, KEY)
    assert value.head.weight.shape == (5, 1)
    x = jnp.asarray(observations(4))
    want = linear(value.head, np.asarray(answer(jax.vmap(value.encoder), x)))[:, 0]
    np.testing.assert_allclose(answer(value, x), want, rtol=1e-4, atol=1e-6)


def test_the_critics_own_sizes_and_activation_are_used():
    made = config(critic_hidden_sizes=(5,), activation="tanh", num_critics=2)
    q_values = make_critics(SPEC, made, Networks(), KEY)
    assert [layer.weight.shape for layer in q_values.encoder.layers] == [(2, 3, 5)]
    assert q_values.encoder.activation == "tanh"


def test_the_gain_of_a_value_is_its_heads():
    made = config(initialization="orthogonal")
    value = make_value(SPEC, made, Networks(), KEY, gain=1)
    assert np.linalg.norm(value.head.weight) == pytest.approx(1.0, rel=1e-5)
    plain = make_value(SPEC, made, Networks(), KEY)
    assert np.linalg.norm(plain.head.weight) == pytest.approx(2**0.5, rel=1e-5)
    np.testing.assert_array_equal(value.encoder.layers[1].weight, plain.encoder.layers[1].weight)


@pytest.mark.parametrize("make", ["value", "q", "dueling"])
def test_critics_are_plain_trees_of_arrays(make):
    if make == "value":
        critic = make_value(SPEC, config(), Networks(), KEY)
        size = (3 * 8 + 8) + (8 * 6 + 6) + (6 + 1)
    else:
        critic = member(make_critics(SPEC, config(), Networks(), KEY, make == "dueling"))
        last = (6 * 4 + 4) if make == "q" else (8 * 6 + 6) + (6 * 4 + 4) + (6 + 1)
        size = (3 * 8 + 8) + (8 * 6 + 6) + last
    leaves = jax.tree.leaves(critic)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    assert sum(leaf.size for leaf in leaves) == size
    x = jnp.asarray(observations(7))
    jitted = jax.jit(lambda critic, x: critic(x))(critic, x)
    np.testing.assert_allclose(jitted, critic(x), rtol=1e-4, atol=1e-6)
    gradient = jax.jit(jax.grad(lambda critic: jnp.mean(critic(x)[..., 0] ** 2)))(critic)
    layers = jax.tree.leaves(gradient, is_leaf=lambda node: isinstance(node, Linear))
    assert all(np.any(np.asarray(layer.weight) != 0) for layer in layers)


@pytest.mark.parametrize("form", [Atoms(-1.0, 2.0, 4), Quantiles(4)])
@DUELING
def test_values_of_distributions_are_their_means(form, dueling):
    """Parameters of each choice, of which a value is the mean; V + A - mean(A) holds for each."""
    stacked = make_critics(SPEC, config(num_critics=2), Networks(), KEY, dueling, form)
    x = observations(5)
    outputs = np.asarray(jax.jit(return_parameters)(stacked, x))
    assert outputs.shape == (2, 5, 4, 4)  # critics, rows, choices, parameters
    if isinstance(form, Atoms):
        weights = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
        want = weights @ np.array([-1.0, 0.0, 1.0, 2.0])
    else:
        want = outputs.mean(-1)
    np.testing.assert_allclose(ensemble_answer(stacked, x), want, rtol=1e-4, atol=1e-5)
    one = member(stacked)
    if dueling:
        shared = hidden(one.encoder, x)
        value = linear(one.value, hidden(one.streams[0], shared))
        np.testing.assert_allclose(outputs[0].mean(1), value, rtol=1e-4, atol=1e-5)
    else:
        plain = linear(one.head, hidden(one.encoder, x)).reshape(5, 4, 4)
        np.testing.assert_allclose(outputs[0], plain, rtol=1e-4, atol=1e-5)
    action = jnp.array([0, 3, 1, 1, 2])
    taken = jax.jit(return_parameters)(stacked, x, action)
    np.testing.assert_array_equal(taken, outputs[:, np.arange(5), np.asarray(action)])


def test_a_distribution_of_returns_of_a_continuous_action():
    spec = Spec(ArraySpec((3,)), Continuous((-1.0,) * 2, (1.0,) * 2, (2,)))
    stacked = make_critics(spec, config(num_critics=2), Networks(), KEY, distribution=Quantiles(4))
    x, action = observations(5), np.ones((5, 2), np.float32)
    outputs = np.asarray(jax.jit(return_parameters)(stacked, x, action))
    one = member(stacked, 1)
    want = linear(one.head, hidden(one.encoder, np.concatenate([x, action], -1)))
    np.testing.assert_allclose(outputs[1], want, rtol=1e-4, atol=1e-5)
    mean = jax.jit(evaluate_ensemble)(stacked, x, action)
    np.testing.assert_allclose(mean, outputs.mean(-1), rtol=1e-4, atol=1e-5)
