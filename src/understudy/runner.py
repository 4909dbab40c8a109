"""Play a policy file in NumPy, without JAX: for robots, for workers, for acting on a host.

A policy is described as a small graph of named values: its arrays, the `observation`, and the
output of each node. Two values are its results: the deterministic `action`, and a `sample` of the
exploring policy. The ONNX export reads the same description, so that no network is described twice.

All operations work on the last axes: one observation needs no batch axis. A recurrent policy has
one more value, the `memory`, and one more result: the memory after the observation. The caller
passes it to the next step.
"""

import hashlib
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from understudy.bounds import check_graph
from understudy.errors import CheckpointError, EnvironmentError
from understudy.observation_packing import Packer
from understudy.reading import parse_arrays, parse_header, read_bytes

FORMAT = 1
METADATA = "understudy.policy"  # the key of our JSON in a safetensors header
NO_CHECKSUM = "0" * 64  # stands for the checksum while it is taken, over the whole file
MAX_HEADER = 2**24  # bytes
MAX_FILE = 2**34  # bytes


class Node(NamedTuple):
    """One step of the graph; inputs are names of arrays or of earlier outputs."""

    operation: str
    inputs: tuple[str, ...]
    output: str
    settings: dict[str, Any]


class Description(NamedTuple):
    """A policy as data, for a player or an exporter."""

    spec: dict[str, Any]  # `dataclasses.asdict` of the Spec, as JSON keeps it
    about: dict[str, Any]  # the algorithm's name, its config, its origin
    nodes: tuple[Node, ...]
    action: str  # the output that is the action in the environment's own units
    sample: str  # the same while exploring
    memory: int  # the size of the memory; 0 for a policy without one
    next_memory: str  # the output that is the memory after the observation, or ""
    arrays: dict[str, np.ndarray]


def load(path: str | Path) -> "Player":
    """Load a policy file; returns a player that is ready to act."""
    if Path(path).is_dir():
        raise CheckpointError(
            f"{path} is a directory: a run's policy is its policy.safetensors, and an agent is "
            "loaded with understudy.load"
        )
    description = read_policy(path)
    try:
        with np.errstate(all="ignore"):  # the results are checked
            for result in (description.action, description.sample):
                nodes, program = needed(description, result), _program(description, result)
                check_graph(description, nodes, program)
            player = Player(description)
            player.check_actions()
    except Exception as error:  # a graph from a file may fail in any way
        raise CheckpointError(f"{path} does not fit together: {error}") from error
    return player


@final
class Player:
    """A policy that acts. `spec` describes observations and actions, `about` its origin."""

    def __init__(self, description: Description):
        self.spec, self.about = description.spec, description.about
        self.memory_size = description.memory  # 0 for a policy without memory
        observation, action = self.spec["observation"], self.spec["action"]
        self._shape, self._dtype = tuple(observation["shape"]), np.dtype(observation["dtype"])
        plain = self._dtype == np.float32 and not observation.get("parts")
        self._packer = None if plain else Packer(observation)
        self._action_shape = tuple(action.get("of", action).get("shape", ()))
        self._continuous = "low" in action
        self._constants: dict[str, Any] = dict(description.arrays)
        self._next_memory = description.next_memory
        self._results = description.action, description.sample
        self._programs = [_program(description, result) for result in self._results]
        self._rng = np.random.default_rng()

    def act(
        self,
        observation: Any,
        memory: Any = None,
        *,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
    ) -> Any:
        """Return the action for one observation or a batch, in the environment's own units. A
        recurrent policy returns `(action, memory)` and takes that memory with the next
        observation; pass None at the start of an episode.

        With `deterministic=False` the action is sampled as in training, independently for each row:
        from the policy's distribution, with the noise of a deterministic policy, or ε-greedily.
        (State-dependent and Ornstein-Uhlenbeck noise, which last several steps in training, are
        drawn anew.) Without an `rng` the samples are not reproducible.
        """
        x = self._array(observation)
        rows = x.shape[: x.ndim - len(self._shape)]
        action, memory = self._play(x, self._checked_memory(memory, rows), deterministic, rng)
        return (action, memory) if self.memory_size else action

    def check_actions(self) -> None:
        """Act once in every way, so that errors appear when a policy is loaded."""
        for rows in ((), (2,)):
            for deterministic in (True, False):
                seen, memory = np.zeros(rows + self._shape, self._dtype), None
                for _ in range(2 if self.memory_size else 1):
                    memory = self._checked_memory(memory, rows)
                    rng = np.random.default_rng(0)
                    action, memory = self._play(seen, memory, deterministic, rng)
                if np.shape(action) != rows + self._action_shape:
                    raise ValueError(f"an action has shape {np.shape(action)}")

    def _array(self, observation: Any) -> np.ndarray:
        """Pack one observation, or a batch, into one array."""
        if self._packer is not None:
            rows, single = self._packer.pack(observation)
            return rows[0] if single else rows
        x = np.asarray(observation, self._dtype)
        if x.shape != self._shape and x.shape[1:] != self._shape:
            raise EnvironmentError(f"an observation has shape {self._shape}, got {x.shape}")
        return x

    def _checked_memory(self, memory: Any, rows: tuple[int, ...]) -> np.ndarray:
        shape = (*rows, self.memory_size)
        if memory is None:
            return np.zeros(shape, np.float32)
        if not self.memory_size:
            raise EnvironmentError("this policy has no memory: call act(observation) without one")
        memory = np.asarray(memory, np.float32)
        if memory.shape != shape:
            raise EnvironmentError(
                f"a memory for such an observation has shape {shape}, got {memory.shape}"
            )
        return memory

    def _play(
        self, x: np.ndarray, memory: np.ndarray, deterministic: bool, rng: Any
    ) -> tuple[Any, Any]:
        values = self._constants.copy()
        values["observation"], values["memory"], values["rng"] = x, memory, rng or self._rng
        for function, inputs, output in self._programs[not deterministic]:
            values[output] = function(*[values[name] for name in inputs])
        action = values[self._results[not deterministic]]
        if self._continuous and not np.isfinite(action).all():
            raise EnvironmentError(
                f"the policy gave the action {action.tolist()}: not a finite number; "
                "look at the observation it was given"
            )
        return action, values[self._next_memory] if self.memory_size else None


def read_policy(path: str | Path) -> Description:
    """Read and verify a policy file; raise a CheckpointError if it is damaged."""
    text, data = _read(Path(path))
    try:
        header = parse_header(text)
        stored = json.loads(header["__metadata__"][METADATA])
        version, checksum = int(stored["format"]), str(stored["sha256"])
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is no policy file of understudy, or damaged") from error
    if version > FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, newer than this version's {FORMAT}: update understudy"
        )
    if checksum != checksum_of(data, checksum):
        raise CheckpointError(f"{path} is damaged: its checksum does not match")
    try:
        description = Description(
            stored["spec"],
            stored["about"],
            tuple(Node(name, tuple(inputs), *rest) for name, inputs, *rest in stored["nodes"]),
            stored["action"],
            stored["sample"],
            stored.get("memory", 0),
            stored.get("next_memory", ""),
            parse_arrays(header, data[8 + len(text) :]),
        )
        _check(description)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not fit together: {error}") from error
    return description


def checksum_of(data: bytes, written: str = NO_CHECKSUM) -> str:
    """Compute the checksum of a policy file, with zeros in the place of the `written` one."""
    mark = written.encode(errors="replace")
    return hashlib.sha256(data.replace(mark, NO_CHECKSUM.encode(), 1)).hexdigest()


def needed(description: Description, result: str) -> list[Node]:
    """Return the nodes that lead to a result (and to the next memory), in order."""
    wanted, nodes = {result, description.next_memory}, []
    for node in reversed(description.nodes):
        if node.output in wanted:
            nodes.append(node)
            wanted.update(node.inputs)
    return nodes[::-1]


def _read(path: Path) -> tuple[bytes, bytes]:
    """Return the JSON header and the whole file."""
    start = read_bytes(path, MAX_FILE, 8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= MAX_HEADER:
        raise CheckpointError(f"{path} is no policy file of understudy, or cut off")
    data = read_bytes(path, MAX_FILE)
    if len(data) < 8 + length:
        raise CheckpointError(f"{path} is cut off or no policy file of understudy")
    return data[8 : 8 + length], data


def _check(description: Description) -> None:
    known = {"observation", "memory", *description.arrays}
    for node in description.nodes:
        if node.operation not in _FUNCTIONS:
            raise ValueError(f"the operation '{node.operation}' is unknown")
        for name in node.inputs:
            if name not in known:
                raise ValueError(f"'{node.output}' needs '{name}', which is not there")
        known.add(node.output)
    made = {node.output for node in description.nodes}
    if {description.action, description.sample} - made:
        raise ValueError("there is no action")
    if description.memory and description.next_memory not in made:
        raise ValueError("there is no next memory")


def _program(description: Description, result: str) -> list[tuple[Callable[..., Any], Any, str]]:
    """Return (function, names of inputs, name of the output) of each node, in order."""
    steps = []
    for node in needed(description, result):
        function = _FUNCTIONS[node.operation]
        if node.settings:
            function = partial(function, **node.settings)
        inputs = ("rng", *node.inputs) if node.operation in DRAWS else node.inputs
        steps.append((function, inputs, node.output))
    return steps


# -- the operations --------------------------------------------------------------------------


def _layer_norm(x: Any, scale: Any, offset: Any, epsilon: float) -> Any:
    return _rms_norm(x - x.mean(axis=-1, keepdims=True), scale, epsilon) + offset


def _rms_norm(x: Any, scale: Any, epsilon: float) -> Any:
    mean_square = (x * x).mean(axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(epsilon)) * scale


def _unit_norm(x: Any) -> Any:
    square = (x * x).sum(axis=-1, keepdims=True)
    return x / np.sqrt(np.maximum(square, np.float32(1e-12)))


def _sigmoid(x: Any) -> Any:
    return np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x))  # exp(-x) would overflow


def _gelu(x: Any) -> Any:
    bent = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(bent))


def _scale(x: Any, factor: Any, offset: Any) -> Any:
    """Computed in float64, the dtype of the arrays: -1 and 1 map exactly to the bounds."""
    return (x * factor + offset).astype(np.float32)


def _part(x: Any, name: str, start: int, end: int, dtype: str, shape: list[int]) -> Any:
    """Read an entry from the bytes of a Dict observation. (Its name is for ONNX.)"""
    entry = np.ascontiguousarray(x[..., start:end]).view(np.dtype(dtype).newbyteorder("<"))
    return entry.reshape(*x.shape[:-1], *shape)


def _image(x: Any, order: list[int], shape: list[int], largest: float) -> Any:
    """Convert to floats with channels last."""
    rows = x.ndim - len(order)
    turned = x.transpose(*range(rows), *(rows + axis for axis in order))
    return turned.reshape(*x.shape[:rows], *shape).astype(np.float32) / np.float32(largest)


def _windows(x: Any, size: int, stride: int, padding: str, fill: float) -> Any:
    """[..., H, W, C] → [..., h, w, C, size, size]: the window of each output."""
    if padding == "SAME":
        sides = [(0, 0)] * x.ndim
        for axis in (-3, -2):  # an odd pixel goes to the end
            extra = max((-(-x.shape[axis] // stride) - 1) * stride + size - x.shape[axis], 0)
            sides[axis] = (extra // 2, extra - extra // 2)
        x = np.pad(x, sides, constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(-3, -2))
    return windows[..., ::stride, ::stride, :, :, :]


def _conv(x: Any, weight: Any, bias: Any, stride: int, padding: str) -> Any:
    """`weight` is [outputs, inputs, height, width]."""
    seen = _windows(x, weight.shape[-1], stride, padding, 0.0)
    patches = seen.reshape(*seen.shape[:-3], weight[0].size)
    return np.dot(patches, weight.reshape(len(weight), -1).T) + bias


def _gru(memory: Any, projected: Any, recurrent: Any, bias: Any) -> Any:
    size, own = len(recurrent), np.dot(memory, recurrent)
    gates = _sigmoid(projected[..., : 2 * size] + own[..., : 2 * size])
    recalled = gates[..., :size] * (own[..., 2 * size :] + bias)
    candidate = np.tanh(projected[..., 2 * size :] + recalled)
    return candidate + gates[..., size:] * (memory - candidate)


def _lstm(memory: Any, projected: Any, recurrent: Any) -> Any:
    size = len(recurrent)
    gates = np.split(projected + np.dot(memory[..., :size], recurrent), 4, axis=-1)
    kept = _sigmoid(gates[1]) * memory[..., size:] + _sigmoid(gates[0]) * np.tanh(gates[2])
    return np.concatenate([_sigmoid(gates[3]) * np.tanh(kept), kept], axis=-1)


def _expectation(logits: Any, atoms: Any) -> Any:
    """Return the mean of a categorical distribution over the atoms, for each choice."""
    each = logits.reshape(*logits.shape[:-1], -1, len(atoms))
    weights = np.exp(each - each.max(axis=-1, keepdims=True))
    return np.dot(weights, atoms) / weights.sum(axis=-1)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "part": _part,
    "image": _image,
    "conv": _conv,
    "max_pool": lambda x, size, stride: _windows(x, size, stride, "SAME", -np.inf).max((-2, -1)),
    "flatten": lambda x: x.reshape(*x.shape[:-3], math.prod(x.shape[-3:])),
    "concat": lambda *values: np.concatenate(values, axis=-1),
    "gru": _gru,
    "lstm": _lstm,
    "columns": lambda x, start, end: x[..., start:end],
    "dense": lambda x, weight, bias: np.dot(x, weight) + bias,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "unit_norm": _unit_norm,
    "interpolate": lambda x, target, rate: x + rate * (target - x),
    "standardize": lambda x, mean, deviation: (x - mean) / deviation,
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "scale": _scale,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "sigmoid": _sigmoid,
    "exp": np.exp,
    "add": np.add,
    "mean": lambda *values: sum(values) / np.float32(len(values)),
    "center": lambda x: x - x.mean(axis=-1, keepdims=True),
    "expectation": _expectation,
    # The deviation of a linear function of features whose weights are random.
    "spread": lambda features, variances: np.sqrt(np.dot(features * features, variances)),
    "argmax": lambda x: np.argmax(x, axis=-1),
    "stack": lambda *values: np.stack(values, axis=-1),
    # The combination of choices that a number stands for.
    "unravel": lambda x, choices: np.stack(np.unravel_index(x, tuple(choices)), axis=-1),
    "reshape": lambda x, shape: x.reshape(*x.shape[:-1], *shape),
}


def _normal(rng: np.random.Generator, mean: Any, deviation: Any) -> Any:
    return mean + deviation * rng.standard_normal(mean.shape, np.float32)


def _categorical(rng: np.random.Generator, logits: Any) -> Any:
    return np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1)


def _epsilon_greedy(rng: np.random.Generator, greedy: Any, epsilon: Any, choices: int) -> Any:
    explores = rng.random(np.shape(greedy)) < epsilon
    return np.where(explores, rng.integers(choices, size=np.shape(greedy)), greedy)


DRAWS: dict[str, Callable[..., Any]] = {
    "normal": _normal,
    "categorical": _categorical,
    "epsilon_greedy": _epsilon_greedy,
}

_FUNCTIONS = OPERATIONS | DRAWS
