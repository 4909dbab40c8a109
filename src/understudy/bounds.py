"""Bound the size of a policy graph's values before they are computed.

A policy file names operations and shapes, and a few lines of it could ask for more memory than
there is. So the values of a graph are bounded by the size of the arrays in its file. Free of JAX.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LEAST = 2**20  # numbers that any policy may need on the way
FACTOR = 64  # beyond the numbers of its arrays and its observation


def check_graph(policy: Any, nodes: Sequence[Any], program: Sequence[Any]) -> None:
    """Compute these nodes of a policy once, for an observation of zeros. Raise a ValueError before
    a value is computed that is too large for the arrays of the file. `program` has a function, the
    names of its inputs and that of its output for each node."""
    observation, memory = policy.spec["observation"], policy.memory
    left = _most_numbers(policy.arrays, observation["shape"], memory)
    values: dict[str, Any] = dict(policy.arrays)
    values["observation"] = np.zeros(tuple(observation["shape"]), observation["dtype"])
    values["memory"], values["rng"] = np.zeros(memory, np.float32), np.random.default_rng(0)
    for node, (function, names, output) in zip(nodes, program, strict=True):
        inputs = [values[name] for name in node.inputs]
        left -= _result_size(node.operation, inputs, node.settings)
        if left < 0:
            raise ValueError(f"'{output}' makes too much of what the file holds")
        values[output] = function(*[values[name] for name in names])


def _most_numbers(arrays: Mapping[str, np.ndarray], observation: Sequence[int], memory: int) -> int:
    """Return how many numbers all values of a graph together may have, for one observation. Raise
    a ValueError if the observation or the memory alone is too large for the arrays."""
    stored = sum(array.size for array in arrays.values())
    if min([*observation, memory, 0]) < 0:
        raise ValueError(f"a shape is negative: {tuple(observation)}, memory {memory}")
    seen = math.prod(observation)
    if seen > LEAST + FACTOR * stored:
        raise ValueError(f"an observation of {seen:,} numbers, for arrays of {stored:,}")
    if memory > LEAST + stored:
        raise ValueError(f"a memory of {memory:,} numbers, for arrays of {stored:,}")
    return LEAST + FACTOR * (stored + seen)


def _result_size(operation: str, values: Sequence[Any], settings: Mapping[str, Any]) -> int:
    """Return an upper bound of the numbers that an operation makes of these values."""
    sizes = [np.size(value) for value in values]
    first = np.shape(values[0]) if values else ()
    if operation in ("concat", "stack"):
        return sum(sizes)
    if operation in ("dense", "spread", "gru", "lstm"):
        rows = sizes[0] // max(first[-1], 1) if first else 1
        return rows * max((np.shape(value)[-1] for value in values if np.ndim(value)), default=1)
    if operation == "conv":
        kernel = np.shape(values[1])[-1]
        return _padded_size(first, kernel) * kernel * kernel + sizes[0] * len(values[1])
    if operation == "max_pool":
        return _padded_size(first, int(settings["size"])) * 2
    if operation == "unravel":
        return sizes[0] * len(settings["choices"])
    if operation in ("part", "image", "columns", "flatten", "reshape", "expectation"):
        return sizes[0]
    return math.prod(np.broadcast_shapes(*(np.shape(value) for value in values)))


def _padded_size(shape: tuple[int, ...], size: int) -> int:
    """Return the size of images [..., height, width, channels] padded by a window's size."""
    *rows, height, width, channels = shape
    return math.prod(rows) * (height + size) * (width + size) * channels
