"""Steps as rows of a structured NumPy array: named fields to Python, one block of bytes to a
transfer, and named arrays again inside a program."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from understudy.algorithms.base import Algorithm
from understudy.types import ArraySpec, Chunk, Spec, Step

RECURRENT_STATE, EXTRA = "recurrent_state", "extra."


@final
class RowType:
    """The fields of a row, comparable and hashable."""

    def __init__(self, fields: dict[str, ArraySpec]):
        self.fields = fields
        self.dtype = np.dtype([(name, spec.dtype, spec.shape) for name, spec in fields.items()])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowType) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash(self.dtype)

    def unpack(self, data: jax.Array) -> dict[str, Any]:
        """The fields of rows `uint8 [..., bytes]`, as arrays [..., *shape]. Called in programs."""
        arrays = {}
        for name, spec in self.fields.items():
            dtype, offset = self.dtype.fields[name][:2]  # type: ignore[index]
            part = data[..., offset : offset + dtype.itemsize]
            kind = np.dtype(spec.dtype)
            if kind == np.bool_:
                value = part.astype(jnp.bool_)
            elif kind.itemsize == 1:
                value = jax.lax.bitcast_convert_type(part, kind)
            else:
                grouped = part.reshape(*part.shape[:-1], -1, kind.itemsize)
                value = jax.lax.bitcast_convert_type(grouped, kind)
            arrays[name] = value.reshape(*data.shape[:-1], *spec.shape)
        return arrays


def as_bytes(rows: np.ndarray) -> np.ndarray:
    """Rows [...] as `uint8 [..., bytes]`, in place."""
    return rows.view(np.uint8).reshape(*rows.shape, rows.dtype.itemsize)


def rows_of(dtype: np.dtype, fields: dict[str, np.ndarray]) -> np.ndarray:
    """Rows [...] of named arrays [..., *shape]."""
    name = next(iter(fields))
    shape = fields[name].shape[: fields[name].ndim - len(dtype[name].shape)]
    rows = np.empty(shape, dtype)
    for name, array in fields.items():
        rows[name] = array
    return rows


def step_rows(algorithm: Algorithm, spec: Spec) -> RowType:
    """What is learned from one environment's step: the step, the recurrent state before it, and
    the extras of acting that the algorithm asks for."""
    width, flag = algorithm.config.memory_width, ArraySpec((), "bool")
    fields = {RECURRENT_STATE: ArraySpec((width,))} if width else {}
    fields |= {
        "observation": spec.observation,
        "action": spec.action.stored,
        "reward": ArraySpec(()),
        "terminated": flag,
        "last": flag,
        "next_observation": spec.observation,
        "valid": flag,
    }
    return RowType(fields | {EXTRA + name: ArraySpec(()) for name in extras_of(algorithm)})


def extras_of(algorithm: Algorithm) -> tuple[str, ...]:
    """The extras of acting that an algorithm asks to be stored."""
    return getattr(algorithm.needs, "extras", ())


def acting_rows(spec: Spec) -> RowType:
    """What a policy acts on."""
    return RowType({"observation": spec.observation, "first": ArraySpec((), "bool")})


def to_chunk(fields: Any, names: Any, first_lane: Any = None) -> Chunk:
    """A chunk of named arrays, of NumPy (a structured array) or of JAX (a dict)."""
    extras = {name.removeprefix(EXTRA): fields[name] for name in names if name.startswith(EXTRA)}
    return Chunk(
        steps=Step(**{name: fields[name] for name in Step._fields}),
        valid=fields["valid"],
        recurrent_state=fields[RECURRENT_STATE] if RECURRENT_STATE in names else None,
        extras=extras or None,
        first_lane=first_lane,
    )
