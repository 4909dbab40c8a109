"""A policy as an ONNX model: normalizer and action map inside, no exploration.

Opset 17 and IR version 8, which onnxruntime reads since 1.12. The input `observation` is
[batch, *shape], and that of a Dict one input for each entry, by its name; the output `action` is in
the environment's own units: float32 inside the bounds, or int64 counted from the space's own
start. A policy that remembers has the input `memory`, [batch, size], zeros at first, and the output
`next_memory`. The metadata holds the same JSON as a policy file's header: `understudy.spec` and
`understudy.about`.

Inside, pictures have their channels first, as ONNX wants them.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from understudy.runner import Description, Node, needed
from understudy.runs.files import write_whole
from understudy.runs.policy_file import save_policy
from understudy.types import ConfigError

OPSET, IR_VERSION = 17, 8


def export_policy(path: str | Path, describe: Callable[[], Description]) -> Path:
    """As the ending of the name asks for."""
    kind = Path(path).suffix
    if kind not in (".safetensors", ".onnx"):
        raise ConfigError(f"{path}: a policy is exported as .safetensors or .onnx")
    return (export_onnx if kind == ".onnx" else save_policy)(path, describe())


def export_onnx(path: str | Path, description: Description) -> Path:
    """Write the deterministic policy; checked by `onnx` before it is written."""
    try:
        import onnx
    except ImportError as error:
        raise ConfigError(
            'an ONNX file needs a package that is not here: pip install "understudy[onnx]"'
        ) from error
    model = _model(description)
    onnx.checker.check_model(model, full_check=True)
    return write_whole(path, model.SerializeToString())


def _model(description: Description) -> Any:
    from onnx import helper

    graph = _Graph(description)
    for node in needed(description, description.action):
        graph.translate(node)
    action = description.spec["action"]
    kind = np.float32 if "low" in action else np.int64
    inputs = [(entry.name, entry.dtype, entry.shape) for entry in graph.entries]
    outputs = [("action", kind, action.get("of", action).get("shape", []))]
    if description.memory:
        inputs.append(("memory", np.float32, [description.memory]))
        outputs.append(("next_memory", np.float32, [description.memory]))

    def value(name: str, dtype: Any, shape: list[int]) -> Any:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, element, ["batch", *shape])

    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "policy",
            [value(*told) for told in inputs],
            [value(*told) for told in outputs],
            graph.initializers,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="understudy",
        producer_version=str(description.about.get("understudy", "")),
    )
    told = {"understudy.spec": description.spec, "understudy.about": description.about}
    metadata = {name: json.dumps(what) for name, what in told.items()}
    numbers = {"opset": str(OPSET), "ir_version": str(IR_VERSION)}
    helper.set_model_props(model, metadata | numbers)
    return model


class _Entry(NamedTuple):
    """An input: the observation, or one entry of it."""

    name: str
    dtype: Any
    shape: list[int]
    choices: int = 0
    start: int = 0


def _entries(observation: dict[str, Any], taken: set[str]) -> dict[str, _Entry]:
    """The inputs by the names of the entries that they are."""
    if not observation.get("parts"):
        return {"": _Entry("observation", observation["dtype"], observation["shape"])}
    entries = {}
    for part in observation["parts"]:
        own = part["name"] or "observation"
        # The names that are made up here have a dot in them.
        name = f"observation/{own}" if own in taken or "." in own else own
        if part["choices"]:
            entry = _Entry(name, np.int64, [], part["choices"], part["start"])
        else:
            entry = _Entry(name, part["dtype"], part["shape"])
        entries[part["name"]] = entry
    return entries


@final
class _Graph:
    """The nodes of a description, one or a few ONNX operators each."""

    def __init__(self, description: Description):
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._arrays, self._kept = description.arrays, set[str]()
        self._names = {description.next_memory: "next_memory", description.action: "action"}
        taken = {"memory", *self._names.values(), *self._arrays}
        taken |= {node.output for node in description.nodes}
        observation = description.spec["observation"]
        self._entries = _entries(observation, taken)
        self.entries = list(self._entries.values())
        if observation.get("parts") and observation["dtype"] == "float32":
            # The network sees them side by side.
            self._names["observation"] = self.add("Concat", *map(self.flat, self.entries), axis=-1)

    def translate(self, node: Node) -> None:
        for name in node.inputs:
            if name in self._arrays:
                self.keep(name, self._arrays[name])
        inputs = [self._names.get(name, name) for name in node.inputs]
        output = self._names.get(node.output, node.output)
        if node.operation == "part":  # it is an input by itself
            entry = self._entries[node.settings["name"]]
            picture = node.settings["shape"] == entry.shape and len(entry.shape) > 1
            self._names[node.output] = entry.name if picture else self.flat(entry)
        elif node.operation in SAME:
            self.add(SAME[node.operation], *inputs, output=output)
        elif node.operation in COMPOSED:
            COMPOSED[node.operation](self, *inputs, output=output, **node.settings)
        else:
            raise ConfigError(f"ONNX export does not know the operation '{node.operation}'")

    def flat(self, entry: _Entry) -> str:
        """An entry as a vector of floats; a choice as one 1 among 0s."""
        if not entry.choices:
            return entry.name if len(entry.shape) == 1 else self.add("Flatten", entry.name, axis=1)
        chosen = self.add("Sub", entry.name, self.integers(entry.start))
        depth, values = (
            self.integers(entry.choices),
            self.keep("number.0_1", np.array([0, 1], np.float32)),
        )
        return self.add("OneHot", chosen, depth, values, axis=-1)

    def integers(self, *values: int) -> str:
        name = "integers." + "_".join(map(str, values))
        return self.keep(name, np.array(values, np.int64))

    def columns(self, x: str, start: int, end: int, output: str | None = None) -> str:
        bounds = self.integers(start), self.integers(end), self.integers(-1)
        return self.add("Slice", x, *bounds, output=output)

    def keep(self, name: str, array: Any) -> str:
        from onnx import numpy_helper

        array = np.asarray(array)
        if name not in self._kept:
            # float64 is rare in hardware, and where the action map would gain by it, the bounds
            # below it hold in any case.
            single = array.astype(np.float32) if array.dtype == np.float64 else array
            self.initializers.append(numpy_helper.from_array(single, name))
            self._kept.add(name)
        return name

    def rows_of(self, name: str) -> int:
        return len(self._arrays[name])

    def number(self, value: float) -> str:
        return self.keep(f"number.{value:.9g}", np.float32(value))

    def add(self, operator: str, *inputs: str, output: str | None = None, **settings: Any) -> str:
        from onnx import helper

        output = output or f"inner.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **settings))
        return output


def _standardize(graph: _Graph, x: str, mean: str, deviation: str, output: str) -> None:
    graph.add("Div", graph.add("Sub", x, mean), deviation, output=output)


def _clip(graph: _Graph, x: str, low: str, high: str, output: str) -> None:
    """`Clip` takes no bounds per dimension."""
    graph.add("Min", graph.add("Max", x, low), high, output=output)


def _scale(graph: _Graph, x: str, factor: str, offset: str, output: str) -> None:
    graph.add("Add", graph.add("Mul", x, factor), offset, output=output)


def _layer_norm(graph: _Graph, x: str, scale: str, offset: str, output: str, epsilon: float):
    settings = {"axis": -1, "epsilon": epsilon}
    graph.add("LayerNormalization", x, scale, offset, output=output, **settings)


def _silu(graph: _Graph, x: str, output: str) -> None:
    graph.add("Mul", x, graph.add("Sigmoid", x), output=output)


def _gelu(graph: _Graph, x: str, output: str) -> None:
    """With tanh, as JAX has it; `Gelu` comes with opset 20 only."""
    cube = graph.add("Mul", graph.add("Mul", graph.add("Mul", x, x), x), graph.number(0.044715))
    bent = graph.add("Mul", graph.add("Add", x, cube), graph.number(math.sqrt(2 / math.pi)))
    gate = graph.add("Add", graph.add("Tanh", bent), graph.number(1.0))
    graph.add("Mul", graph.add("Mul", x, graph.number(0.5)), gate, output=output)


def _center(graph: _Graph, x: str, output: str) -> None:
    graph.add("Sub", x, graph.add("ReduceMean", x, axes=[-1], keepdims=1), output=output)


def _argmax(graph: _Graph, x: str, output: str) -> None:
    graph.add("ArgMax", x, output=output, axis=-1, keepdims=0)


def _stack(graph: _Graph, *values: str, output: str) -> None:
    columns = [graph.add("Unsqueeze", value, graph.integers(-1)) for value in values]
    graph.add("Concat", *columns, output=output, axis=-1)


def _reshape(graph: _Graph, x: str, output: str, shape: list[int]) -> None:
    graph.add("Reshape", x, graph.integers(-1, *shape), output=output)


def _image(graph: _Graph, x: str, output: str, order: list[int], shape: list[int], largest: float):
    height, width, *others = (axis + 1 for axis in order)
    turned = graph.add("Transpose", x, perm=[0, *others, height, width])
    rows = graph.integers(-1, shape[2], shape[0], shape[1])
    numbers = graph.add("Cast", graph.add("Reshape", turned, rows), to=1)  # to float32
    graph.add("Div", numbers, graph.number(largest), output=output)


def _conv(graph: _Graph, x: str, weight: str, bias: str, output: str, stride: int, padding: str):
    settings = {"strides": [stride, stride], "auto_pad": _PADDING[padding]}
    graph.add("Conv", x, weight, bias, output=output, **settings)


def _max_pool(graph: _Graph, x: str, output: str, size: int, stride: int) -> None:
    settings = {"kernel_shape": [size, size], "strides": [stride, stride]}
    graph.add("MaxPool", x, output=output, auto_pad=_PADDING["SAME"], **settings)


def _flatten(graph: _Graph, x: str, output: str) -> None:
    graph.add("Flatten", graph.add("Transpose", x, perm=[0, 2, 3, 1]), output=output, axis=1)


def _concat(graph: _Graph, *values: str, output: str) -> None:
    graph.add("Concat", *values, output=output, axis=-1)


def _gru(graph: _Graph, memory: str, projected: str, recurrent: str, bias: str, output: str):
    size, own = graph.rows_of(recurrent), graph.add("MatMul", memory, recurrent)
    both = [graph.columns(x, 0, 2 * size) for x in (projected, own)]
    gates = graph.add("Sigmoid", graph.add("Add", *both))
    recalled = graph.add("Add", graph.columns(own, 2 * size, 3 * size), bias)
    recalled = graph.add("Mul", graph.columns(gates, 0, size), recalled)
    fresh = graph.add("Add", graph.columns(projected, 2 * size, 3 * size), recalled)
    candidate = graph.add("Tanh", fresh)
    apart = graph.add("Sub", memory, candidate)
    kept = graph.add("Mul", graph.columns(gates, size, 2 * size), apart)
    graph.add("Add", candidate, kept, output=output)


def _lstm(graph: _Graph, memory: str, projected: str, recurrent: str, output: str) -> None:
    size = graph.rows_of(recurrent)
    own = graph.add("MatMul", graph.columns(memory, 0, size), recurrent)
    gates = graph.add("Add", projected, own)
    take, keep, fresh, show = (
        graph.add(bend, graph.columns(gates, place * size, (place + 1) * size))
        for place, bend in enumerate(("Sigmoid", "Sigmoid", "Tanh", "Sigmoid"))
    )
    kept = graph.add("Mul", keep, graph.columns(memory, size, 2 * size))
    cell = graph.add("Add", kept, graph.add("Mul", take, fresh))
    hidden = graph.add("Mul", show, graph.add("Tanh", cell))
    graph.add("Concat", hidden, cell, output=output, axis=-1)


def _columns(graph: _Graph, x: str, output: str, start: int, end: int) -> None:
    graph.columns(x, start, end, output)


def _unravel(graph: _Graph, x: str, output: str, choices: list[int]) -> None:
    weights = [math.prod(choices[place + 1 :]) for place in range(len(choices))]
    column = graph.add("Unsqueeze", x, graph.integers(-1))
    whole = graph.add("Div", column, graph.integers(*weights))
    graph.add("Mod", whole, graph.integers(*choices), output=output)


_PADDING = {"SAME": "SAME_UPPER", "VALID": "VALID"}  # an odd pixel goes to the end
SAME = {
    "dense": "Gemm",
    "relu": "Relu",
    "tanh": "Tanh",
    "elu": "Elu",
    "sigmoid": "Sigmoid",
    "add": "Add",
    "mean": "Mean",
}
COMPOSED: dict[str, Callable[..., None]] = {
    "image": _image,
    "conv": _conv,
    "max_pool": _max_pool,
    "flatten": _flatten,
    "concat": _concat,
    "gru": _gru,
    "lstm": _lstm,
    "columns": _columns,
    "unravel": _unravel,
    "standardize": _standardize,
    "clip": _clip,
    "scale": _scale,
    "layer_norm": _layer_norm,
    "silu": _silu,
    "gelu": _gelu,
    "center": _center,
    "argmax": _argmax,
    "stack": _stack,
    "reshape": _reshape,
}
