"""Read files from untrusted sources: regular ones only, not beyond a limit, and safetensors whose
header fits their data.

Needs NumPy only: the player of policy files imports it.
"""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from understudy.errors import CheckpointError

# NumPy's names of what a safetensors file can hold, and that file's own.
DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32",
    "float64": "F64",
}  # fmt: skip
_KINDS = {kind: np.dtype(name) for name, kind in DTYPES.items()}
_METADATA, _MOST_AXES = "__metadata__", 32


def read_bytes(path: Path, most: int, count: int = -1) -> bytes:
    """Read a regular file of at most that many bytes (or its first `count`). A pipe or a device is
    refused, because it may never end."""
    try:
        # Opening a pipe without a writer would block.
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(file, "rb") as opened:
            about = os.fstat(opened.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise CheckpointError(f"{path} is no regular file")
            if about.st_size > most:
                raise CheckpointError(f"{path} is too large: {about.st_size:,} bytes")
            return opened.read(count)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def parse_header(text: bytes) -> dict[str, Any]:
    """Parse the header of a safetensors file: an entry for each array, and `__metadata__`, a table
    of texts. Raise a ValueError if it is no such header."""
    if not text.startswith(b"{"):
        raise ValueError("the header is no JSON object")
    header = json.loads(text.decode(), object_pairs_hook=_unique)
    metadata = header.get(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(x, str) for x in metadata.values()):
        raise ValueError("the metadata of the header is no table of texts")
    return header


def parse_arrays(header: dict[str, Any], data: bytes) -> dict[str, np.ndarray]:
    """Copy the arrays of a header out of the data behind it. The arrays must fill the data, without
    gaps, overlaps or a rest; raise a ValueError if they do not."""
    arrays, places = {}, []
    for name, entry in header.items():
        if name != _METADATA:
            dtype, shape, begin, end = _parse_entry(name, entry)
            places.append((begin, end, name))
            if end > len(data):
                raise ValueError(f"'{name}' ends behind the end of the file")
            stored = np.ndarray(shape, dtype.newbyteorder("<"), data, begin)
            arrays[name] = stored.astype(dtype)
    place = 0
    for begin, end, name in sorted(places):
        if begin != place:
            raise ValueError(f"'{name}' begins at {begin}, where {place} was expected")
        place = end
    if place != len(data):
        raise ValueError(f"the arrays end at {place}, the data at {len(data)}")
    return arrays


def _parse_entry(name: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """Return dtype, shape, begin and end of an array."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"'{name}' needs exactly a dtype, a shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"'{name}' has the dtype {kind!r:.60}; known: {', '.join(_KINDS)}")
    for numbers in (shape, offsets):
        good = isinstance(numbers, list) and len(numbers) <= _MOST_AXES
        if not good or not all(type(number) is int and 0 <= number < 2**48 for number in numbers):
            raise ValueError(f"'{name}' has a shape or offsets that are no counts: {numbers!r:.60}")
    if len(offsets) != 2 or math.prod(shape) * _KINDS[kind].itemsize != offsets[1] - offsets[0]:
        raise ValueError(f"'{name}' of {kind} and shape {shape} does not fill offsets {offsets}")
    return _KINDS[kind], tuple(shape), *offsets


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name occurs twice in the header")
    return table
