"""Recurrent cells: GRU and LSTM.

A recurrent state is one array, [*batch, state_size]; zeros are the state before an episode. In a
scan over time, `project` all inputs at once (one large product) and `step` through the result.
"""

import abc
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.initializers import orthogonal, scaled
from understudy.networks.mlp import Linear
from understudy.types import Key


class Cell(eqx.Module):
    """A recurrent cell whose gates are side by side. Abstract."""

    input: Linear
    recurrent: Float[Array, "size gates"]
    size: int = eqx.field(static=True)

    @property
    @abc.abstractmethod
    def state_size(self) -> int:
        """The length of a recurrent state."""

    def __call__(
        self, state: Float[Array, "*batch state"], x: Float[Array, "*batch inputs"]
    ) -> Float[Array, "*batch state"]:
        """Return the recurrent state after one more input."""
        return self.step(state, self.project(x))

    def project(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch gates"]:
        """Return the input's term in the gates."""
        return self.input(x)

    @abc.abstractmethod
    def step(
        self, state: Float[Array, "*batch state"], projected: Float[Array, "*batch gates"]
    ) -> Float[Array, "*batch state"]:
        """Return the recurrent state after one more projected input."""

    def features(self, state: Float[Array, "*batch state"]) -> Float[Array, "*batch size"]:
        """Return the part of a recurrent state that the layers after the cell use."""
        return state[..., : self.size]


@final
class GRU(Cell):
    """Gated recurrent unit (Cho et al., 2014), with the reset gate after the product. The gates
    are reset, update and candidate."""

    candidate_bias: Float[Array, " size"]  # of the part that the reset gate closes

    def __init__(self, inputs: int, size: int, key: Key):
        input_key, recurrent_key = jax.random.split(key)
        self.input = Linear(inputs, 3 * size, input_key, scaled("kaiming", 1))
        self.recurrent = _orthogonal_gates(recurrent_key, size, 3)
        self.candidate_bias = jnp.zeros(size)
        self.size = size

    @property
    def state_size(self) -> int:
        return self.size

    def step(
        self, state: Float[Array, "*batch state"], projected: Float[Array, "*batch gates"]
    ) -> Float[Array, "*batch state"]:
        own = state @ self.recurrent
        gates = jax.nn.sigmoid(projected[..., : 2 * self.size] + own[..., : 2 * self.size])
        reset, update = jnp.split(gates, 2, axis=-1)
        recalled = reset * (own[..., 2 * self.size :] + self.candidate_bias)
        candidate = jnp.tanh(projected[..., 2 * self.size :] + recalled)
        return candidate + update * (state - candidate)


@final
class LSTM(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; Gers et al., 2000). Its recurrent
    state is the hidden state and then the cell. The gates are input, forget, candidate, output."""

    def __init__(self, inputs: int, size: int, key: Key):
        input_key, recurrent_key = jax.random.split(key)
        layer = Linear(inputs, 4 * size, input_key, scaled("kaiming", 1))
        # The forget gate starts open, so that gradients reach back from the first update on.
        bias = layer.bias.at[size : 2 * size].set(1.0)
        self.input = eqx.tree_at(lambda layer: layer.bias, layer, bias)
        self.recurrent = _orthogonal_gates(recurrent_key, size, 4)
        self.size = size

    @property
    def state_size(self) -> int:
        return 2 * self.size

    def step(
        self, state: Float[Array, "*batch state"], projected: Float[Array, "*batch gates"]
    ) -> Float[Array, "*batch state"]:
        hidden, cell = jnp.split(state, 2, axis=-1)
        gates = jnp.split(projected + hidden @ self.recurrent, 4, axis=-1)
        take, keep, show = (jax.nn.sigmoid(gates[place]) for place in (0, 1, 3))
        cell = keep * cell + take * jnp.tanh(gates[2])
        return jnp.concatenate([show * jnp.tanh(cell), cell], axis=-1)


CELLS: dict[str, type[GRU] | type[LSTM]] = {"gru": GRU, "lstm": LSTM}


def _orthogonal_gates(key: Key, size: int, gates: int) -> Float[Array, "size gates"]:
    """Make orthogonal weights for each gate: states neither grow nor fade at once."""
    keys = jax.random.split(key, gates)
    return jnp.concatenate([orthogonal(own, size, size, 1.0) for own in keys], axis=1)
