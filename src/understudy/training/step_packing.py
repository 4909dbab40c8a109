"""Steps as rows of a structured NumPy array: named fields to Python, one block of bytes to a
transfer, and named arrays again inside a program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from understudy.algorithms.base import Algorithm
from understudy.types import ArraySpec, Chunk, Spec, Step

RECURRENT_STATE, EXTRA = "recurrent_state", "extra."


def step_dtype(algorithm: Algorithm, spec: Spec) -> np.dtype:
    """One environment's step: the step itself, the recurrent state before it, and the extras of
    acting that the algorithm asks for."""
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
    return _row_dtype(fields | {EXTRA + name: ArraySpec(()) for name in extras_of(algorithm)})


def acting_dtype(spec: Spec) -> np.dtype:
    """What a policy acts on."""
    return _row_dtype({"observation": spec.observation, "first": ArraySpec((), "bool")})


def _row_dtype(fields: dict[str, ArraySpec]) -> np.dtype:
    return np.dtype([(name, spec.dtype, spec.shape) for name, spec in fields.items()])


def extras_of(algorithm: Algorithm) -> tuple[str, ...]:
    """The extras of acting that an algorithm asks to be stored."""
    return getattr(algorithm.needs, "extras", ())


def as_bytes(rows: np.ndarray) -> np.ndarray:
    """View rows [...] as `uint8 [..., bytes]`."""
    return rows[..., None].view(np.uint8)


def pack_rows(dtype: np.dtype, fields: dict[str, np.ndarray]) -> np.ndarray:
    """Make rows [...] of named arrays [..., *shape]."""
    name = next(iter(fields))
    rows = np.empty(fields[name].shape[: fields[name].ndim - dtype[name].ndim], dtype)
    for name, array in fields.items():
        rows[name] = array
    return rows


def unpack_rows(dtype: np.dtype, data: jax.Array) -> dict[str, Any]:
    """The fields of rows `uint8 [..., bytes]`, as arrays [..., *shape]. Called in programs."""
    arrays = {}
    for name, (field, offset, *_) in (dtype.fields or {}).items():
        part, kind = data[..., offset : offset + field.itemsize], field.base
        if kind == np.bool_:
            value = part.astype(jnp.bool_)
        elif kind.itemsize == 1:
            value = jax.lax.bitcast_convert_type(part, kind)
        else:
            grouped = part.reshape(*part.shape[:-1], -1, kind.itemsize)
            value = jax.lax.bitcast_convert_type(grouped, kind)
        arrays[name] = value.reshape(*data.shape[:-1], *field.shape)
    return arrays


def to_chunk(fields: Any, dtype: np.dtype, first_lane: Any = None) -> Chunk:
    """Make a chunk of named arrays, of NumPy (rows) or of JAX (a dict)."""
    names = dtype.names or ()
    extras = {name.removeprefix(EXTRA): fields[name] for name in names if name.startswith(EXTRA)}
    return Chunk(
        steps=Step(**{name: fields[name] for name in Step._fields}),
        valid=fields["valid"],
        recurrent_state=fields[RECURRENT_STATE] if RECURRENT_STATE in names else None,
        extras=extras or None,
        first_lane=first_lane,
    )
