"""Recurrent cells: GRU and LSTM.

A recurrent state is one array, [*batch, state_size]; zeros are the state before an episode. In a
scan over time, apply `input` to all inputs at once (one large product) and `step` through the
result.
"""

import abc
from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.mlp import Linear, orthogonal, scaled
from understudy.types import Key

State = Float[Array, "*batch state"]
Gates = Float[Array, "*batch gates"]


class Cell(eqx.Module):
    """A recurrent cell whose gates are side by side. Abstract."""

    num_gates: ClassVar[int]
    state_parts: ClassVar[int] = 1  # vectors of `size` numbers that a recurrent state consists of

    input: Linear  # computes the input's term in the gates
    recurrent: Float[Array, "size gates"]
    size: int = eqx.field(static=True)

    def __init__(self, inputs: int, size: int, key: Key):
        input_key, recurrent_key = jax.random.split(key)
        self.input = Linear(inputs, self.num_gates * size, input_key, scaled("kaiming", 1))
        # Orthogonal weights for each gate: states neither grow nor fade at once.
        keys = jax.random.split(recurrent_key, self.num_gates)
        self.recurrent = jnp.concatenate([orthogonal(own, size, size, 1.0) for own in keys], axis=1)
        self.size = size

    @property
    def state_size(self) -> int:
        """The length of a recurrent state."""
        return self.state_parts * self.size

    def __call__(self, state: State, x: Float[Array, "*batch inputs"]) -> State:
        """Return the recurrent state after one more input."""
        return self.step(state, self.input(x))

    @abc.abstractmethod
    def step(self, state: State, projected: Gates) -> State:
        """Return the recurrent state after one more input, given the input's term in the gates."""

    def features(self, state: State) -> Float[Array, "*batch size"]:
        """Return the part of a recurrent state that the layers after the cell use."""
        return state[..., : self.size]


@final
class GRU(Cell):
    """Gated recurrent unit (Cho et al., 2014), with the reset gate after the product. The gates
    are reset, update and candidate."""

    num_gates = 3
    candidate_bias: Float[Array, " size"]  # of the part that the reset gate closes

    def __init__(self, inputs: int, size: int, key: Key):
        super().__init__(inputs, size, key)
        self.candidate_bias = jnp.zeros(size)

    def step(self, state: State, projected: Gates) -> State:
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

    num_gates = 4
    state_parts = 2

    def __init__(self, inputs: int, size: int, key: Key):
        super().__init__(inputs, size, key)
        # The forget gate starts open, so that gradients reach back from the first update on.
        bias = self.input.bias.at[size : 2 * size].set(1.0)
        self.input = eqx.tree_at(lambda layer: layer.bias, self.input, bias)

    def step(self, state: State, projected: Gates) -> State:
        hidden, cell = jnp.split(state, 2, axis=-1)
        gates = jnp.split(projected + hidden @ self.recurrent, 4, axis=-1)
        take, keep, show = (jax.nn.sigmoid(gates[place]) for place in (0, 1, 3))
        cell = keep * cell + take * jnp.tanh(gates[2])
        return jnp.concatenate([show * jnp.tanh(cell), cell], axis=-1)


CELLS: dict[str, type[GRU] | type[LSTM]] = {"gru": GRU, "lstm": LSTM}
