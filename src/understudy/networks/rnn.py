"""Memory: GRU and LSTM cells.

A memory is one array, [*batch, memory_size], and zeros are the memory of nothing. In a scan over
time, `project` all inputs at once (one large product) and `step` through what it gives.
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.networks.initializers import orthogonal, scaled
from understudy.networks.mlp import Linear
from understudy.types import Key


@final
class GRU(eqx.Module):
    """Gated recurrent unit (Cho et al., 2014), with the reset gate after the product."""

    input: Linear  # gates side by side: reset, update, candidate
    recurrent: Float[Array, "size gates"]
    candidate_bias: Float[Array, " size"]  # of the part that the reset gate closes
    size: int = eqx.field(static=True)

    def __init__(self, inputs: int, size: int, key: Key):
        input_key, recurrent_key = jax.random.split(key)
        self.input = Linear(inputs, 3 * size, input_key, scaled("kaiming", 1))
        self.recurrent = _recurrent(recurrent_key, size, 3)
        self.candidate_bias = jnp.zeros(size)
        self.size = size

    @property
    def memory_size(self) -> int:
        return self.size

    def __call__(
        self, memory: Float[Array, "*batch memory"], x: Float[Array, "*batch inputs"]
    ) -> Float[Array, "*batch memory"]:
        return self.step(memory, self.project(x))

    def project(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch gates"]:
        """The input's share of the gates."""
        return self.input(x)

    def step(
        self, memory: Float[Array, "*batch memory"], projected: Float[Array, "*batch gates"]
    ) -> Float[Array, "*batch memory"]:
        own = memory @ self.recurrent
        gates = jax.nn.sigmoid(projected[..., : 2 * self.size] + own[..., : 2 * self.size])
        reset, update = jnp.split(gates, 2, axis=-1)
        recalled = reset * (own[..., 2 * self.size :] + self.candidate_bias)
        candidate = jnp.tanh(projected[..., 2 * self.size :] + recalled)
        return candidate + update * (memory - candidate)

    def features(self, memory: Float[Array, "*batch memory"]) -> Float[Array, "*batch size"]:
        return memory


@final
class LSTM(eqx.Module):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; Gers et al., 2000). Its memory is
    the hidden state and then the cell."""

    input: Linear  # gates side by side: input, forget, candidate, output
    recurrent: Float[Array, "size gates"]
    size: int = eqx.field(static=True)

    def __init__(self, inputs: int, size: int, key: Key):
        input_key, recurrent_key = jax.random.split(key)
        layer = Linear(inputs, 4 * size, input_key, scaled("kaiming", 1))
        # It begins by keeping what it has: gradients reach back from the first update on.
        bias = layer.bias.at[size : 2 * size].set(1.0)
        self.input = eqx.tree_at(lambda layer: layer.bias, layer, bias)
        self.recurrent = _recurrent(recurrent_key, size, 4)
        self.size = size

    @property
    def memory_size(self) -> int:
        return 2 * self.size

    def __call__(
        self, memory: Float[Array, "*batch memory"], x: Float[Array, "*batch inputs"]
    ) -> Float[Array, "*batch memory"]:
        return self.step(memory, self.project(x))

    def project(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch gates"]:
        """The input's share of the gates."""
        return self.input(x)

    def step(
        self, memory: Float[Array, "*batch memory"], projected: Float[Array, "*batch gates"]
    ) -> Float[Array, "*batch memory"]:
        hidden, cell = jnp.split(memory, 2, axis=-1)
        gates = jnp.split(projected + hidden @ self.recurrent, 4, axis=-1)
        take, keep, show = (jax.nn.sigmoid(gates[place]) for place in (0, 1, 3))
        cell = keep * cell + take * jnp.tanh(gates[2])
        return jnp.concatenate([show * jnp.tanh(cell), cell], axis=-1)

    def features(self, memory: Float[Array, "*batch memory"]) -> Float[Array, "*batch size"]:
        return memory[..., : self.size]


CELLS: dict[str, type[GRU] | type[LSTM]] = {"gru": GRU, "lstm": LSTM}


def _recurrent(key: Key, size: int, gates: int) -> Float[Array, "size gates"]:
    """Orthogonal for each gate: what is remembered neither grows nor fades at once."""
    keys = jax.random.split(key, gates)
    return jnp.concatenate([orthogonal(own, size, size, 1.0) for own in keys], axis=1)
