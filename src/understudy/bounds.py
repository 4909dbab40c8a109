"""How large the values of a policy's graph become, known before they are computed.

A policy file names operations and shapes, and a few lines of it could ask for more memory than
there is. So a graph is bounded by what the file itself holds. Free of JAX.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

LEAST = 2**20  # numbers that any policy may need on the way
FACTOR = 64  # beyond what its arrays and its observation hold


def check_graph(
    policy: Any,
    nodes: Sequence[Any],
    operations: Mapping[str, Callable[..., Any]],
    draws: Mapping[str, Callable[..., Any]],
) -> None:
    """Compute these nodes of a policy once, for an observation of zeros; refuses one that makes
    more of the file's arrays than a policy can, before it is computed."""
    seen, memory = policy.spec["observation"], policy.memory
    left = _most_numbers(policy.arrays, seen["shape"], memory)
    values: dict[str, Any] = dict(policy.arrays)
    values["observation"] = np.zeros(tuple(seen["shape"]), seen["dtype"])
    values["memory"] = np.zeros(memory, np.float32)
    rng = np.random.default_rng(0)
    for node in nodes:
        given = [values[name] for name in node.inputs]
        left -= _result_size(node.operation, given, node.settings)
        if left < 0:
            raise ValueError(f"'{node.output}' makes too much of what the file holds")
        if node.operation in draws:
            values[node.output] = draws[node.operation](rng, *given, **node.settings)
        else:
            values[node.output] = operations[node.operation](*given, **node.settings)


def _most_numbers(arrays: Mapping[str, np.ndarray], observation: Sequence[int], memory: int) -> int:
    """That all values of a graph together may have, for one observation; refuses an observation or
    a memory that is out of proportion already."""
    held = sum(array.size for array in arrays.values())
    if min([*observation, memory, 0]) < 0:
        raise ValueError(f"a shape is negative: {tuple(observation)}, memory {memory}")
    seen = math.prod(observation)
    if seen > LEAST + FACTOR * held:
        raise ValueError(f"an observation of {seen:,} numbers, for arrays of {held:,}")
    if memory > LEAST + held:
        raise ValueError(f"a memory of {memory:,} numbers, for arrays of {held:,}")
    return LEAST + FACTOR * (held + seen)


def _result_size(operation: str, values: Sequence[Any], settings: Mapping[str, Any]) -> int:
    """An upper bound of the numbers that an operation makes of these values."""
    sizes = [np.size(value) for value in values]
    first = np.shape(values[0]) if values else ()
    if operation in ("concat", "stack"):
        return sum(sizes)
    if operation in ("dense", "spread", "gru", "lstm"):
        rows = sizes[0] // max(first[-1], 1) if first else 1
        return rows * max((np.shape(value)[-1] for value in values if np.ndim(value)), default=1)
    if operation == "conv":
        kernel = np.shape(values[1])[-1]
        return _padded(first, kernel) * kernel * kernel + sizes[0] * len(values[1])
    if operation == "max_pool":
        return _padded(first, int(settings["size"])) * 2
    if operation == "unravel":
        return sizes[0] * len(settings["choices"])
    if operation in ("part", "image", "columns", "flatten", "reshape"):
        return sizes[0]
    return math.prod(np.broadcast_shapes(*(np.shape(value) for value in values)))


def _padded(shape: tuple[int, ...], size: int) -> int:
    """Of images [..., height, width, channels] with a border of a window's size."""
    *rows, height, width, channels = shape
    return math.prod(rows) * (height + size) * (width + size) * channels
