"""One transfer a step: what the environments report crosses to the device as one block of
bytes and is taken apart there."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from understudy.types import ArraySpec


@final
class Parcel:
    """Packs rows of named fields into `uint8 [rows, bytes]` and unpacks them under jit."""

    def __init__(self, fields: dict[str, ArraySpec]):
        self._fields = fields
        self._dtype = np.dtype([(name, spec.dtype, spec.shape) for name, spec in fields.items()])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parcel) and self._dtype == other._dtype

    def __hash__(self) -> int:
        return hash(self._dtype)

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return self._dtype.itemsize

    def pack(self, rows: int, arrays: dict[str, Any]) -> np.ndarray:
        # A fresh block each time: on the CPU the device may read it in place, and later.
        block = np.empty(rows, self._dtype)
        for name, array in arrays.items():
            block[name] = array
        return block.view(np.uint8).reshape(rows, self._dtype.itemsize)

    def read(self, block: np.ndarray, *names: str) -> dict[str, np.ndarray]:
        """Fields (all of them, or those named) as NumPy arrays [rows, ...], whatever the block's
        leading axes."""
        rows = np.ascontiguousarray(block).reshape(-1, self._dtype.itemsize).view(self._dtype)[:, 0]
        return {name: rows[name].copy() for name in names or self._fields}

    def unpack(self, block: jax.Array) -> dict[str, Any]:
        """Fields as arrays [rows, ...]; any leading axes before the bytes are kept."""
        arrays = {}
        for name, spec in self._fields.items():
            dtype, offset = self._dtype.fields[name][:2]  # type: ignore[index]
            data = block[..., offset : offset + dtype.itemsize]
            kind = np.dtype(spec.dtype)
            if kind == np.bool_:
                value = data.astype(jnp.bool_)
            elif kind.itemsize == 1:
                value = jax.lax.bitcast_convert_type(data, kind)
            else:
                grouped = data.reshape(*data.shape[:-1], -1, kind.itemsize)
                value = jax.lax.bitcast_convert_type(grouped, kind)
            arrays[name] = value.reshape(*block.shape[:-1], *spec.shape)
        return arrays
