"""Memory cells, against numbers worked by hand and against Equinox's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.networks.mlp import Linear
from understudy.networks.rnn import CELLS, GRU, LSTM

KEY = jax.random.PRNGKey(0)
every_cell = pytest.mark.parametrize("name", sorted(CELLS))


def random_cell(name, inputs=3, size=4):
    """With all biases away from zero."""
    cell = CELLS[name](inputs, size, KEY)
    leaves, structure = jax.tree.flatten(cell)
    keys = jax.random.split(jax.random.PRNGKey(7), len(leaves))
    pairs = zip(leaves, keys, strict=True)
    return jax.tree.unflatten(
        structure, [leaf + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in pairs]
    )


def with_numbers(cell, weight, bias, recurrent):
    layer = eqx.tree_at(lambda x: (x.weight, x.bias), cell.input, (weight, bias))
    assert isinstance(layer, Linear)
    return eqx.tree_at(lambda c: (c.input, c.recurrent), cell, (layer, recurrent))


def test_a_gru_by_hand():
    cell = with_numbers(
        GRU(1, 1, KEY),
        jnp.array([[0.0, 0.0, 1.0]]),
        jnp.array([0.0, jnp.log(3.0), 0.0]),  # update gate: 3/4 stays
        jnp.array([[0.0, 0.0, 2.0]]),
    )
    cell = eqx.tree_at(lambda c: c.candidate_bias, cell, jnp.array([0.2]))
    # reset = 1/2; candidate = tanh(0.3 + 1/2 · (2 · 0.4 + 0.2)) = tanh(0.8)
    expected = 0.25 * np.tanh(0.8) + 0.75 * 0.4
    np.testing.assert_allclose(cell(jnp.array([0.4]), jnp.array([0.3])), [expected], rtol=1e-6)


def test_an_lstm_by_hand():
    cell = with_numbers(
        LSTM(1, 1, KEY),
        jnp.array([[0.0, 0.0, 1.0, 0.0]]),
        jnp.array([0.0, jnp.log(3.0), 0.0, -jnp.log(3.0)]),
        jnp.array([[0.0, 0.0, 0.5, 0.0]]),
    )
    memory = jnp.array([0.4, -2.0])  # hidden, cell
    # input 1/2, forget 3/4, output 1/4; candidate = tanh(0.3 + 0.5 · 0.4)
    kept = 0.75 * -2.0 + 0.5 * np.tanh(0.5)
    after = cell(memory, jnp.array([0.3]))
    np.testing.assert_allclose(after, [0.25 * np.tanh(kept), kept], rtol=1e-6)
    np.testing.assert_array_equal(cell.features(after), after[:1])


def test_equinox_gives_the_same():
    x, memory = jax.random.normal(KEY, (3,)), jax.random.normal(KEY, (8,))
    for name, theirs in (("gru", eqx.nn.GRUCell), ("lstm", eqx.nn.LSTMCell)):
        cell = random_cell(name)
        own = [cell.input.weight.T, cell.recurrent.T, cell.input.bias]
        oracle = eqx.tree_at(
            lambda c: (c.weight_ih, c.weight_hh, c.bias), theirs(3, 4, key=KEY), own
        )
        if name == "gru":
            oracle = eqx.tree_at(lambda c: c.bias_n, oracle, cell.candidate_bias)
            expected = oracle(x, memory[:4])
        else:
            expected = jnp.concatenate(oracle(x, (memory[:4], memory[4:])))
        np.testing.assert_allclose(cell(memory[: cell.state_size], x), expected, rtol=1e-5)


@every_cell
def test_any_leading_axes(name):
    cell = random_cell(name)
    x = jax.random.normal(KEY, (2, 5, 3))
    memory = jax.random.normal(KEY, (2, 5, cell.state_size))
    after = cell(memory, x)
    assert after.shape == memory.shape and cell.features(after).shape == (2, 5, 4)
    np.testing.assert_allclose(after[1, 3], cell(memory[1, 3], x[1, 3]), rtol=1e-5)


@every_cell
def test_all_inputs_can_be_projected_at_once(name):
    cell = random_cell(name)
    x = jax.random.normal(KEY, (6, 2, 3))  # time first
    memory = start = jnp.zeros((2, cell.state_size))
    for now in x:
        memory = cell(memory, now)
    at_once, _ = jax.lax.scan(lambda m, p: (cell.step(m, p), None), start, cell.input(x))
    np.testing.assert_allclose(at_once, memory, rtol=1e-5, atol=1e-6)


@every_cell
def test_how_it_begins(name):
    cell = CELLS[name](3, 5, KEY)
    blocks = np.split(np.asarray(cell.recurrent, np.float64), cell.recurrent.shape[1] // 5, axis=1)
    for block in blocks:
        np.testing.assert_allclose(block.T @ block, np.eye(5), atol=1e-5)
    assert not np.allclose(blocks[0], blocks[1])
    forget = np.zeros(cell.input.bias.shape)
    if name == "lstm":
        forget[5:10] = 1.0
    np.testing.assert_array_equal(cell.input.bias, forget)
    assert np.abs(cell.input.weight).max() <= 3**-0.5


@every_cell
def test_its_leaves_are_arrays_and_members_an_axis(name):
    cells = jax.vmap(lambda key: CELLS[name](3, 4, key))(jax.random.split(KEY, 2))
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(cells))
    memory, x = jnp.zeros((2, cells.state_size)), jnp.ones((2, 3))
    both = jax.jit(jax.vmap(lambda cell, m, x: cell(m, x)))(cells, memory, x)
    second = jax.tree.map(lambda leaf: leaf[1], cells)
    np.testing.assert_allclose(both[1], second(memory[1], x[1]), rtol=1e-5)
    assert (both[0] != both[1]).any()
