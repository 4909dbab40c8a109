"""A policy as an ONNX model: with normalizer and action map, without exploration.

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

from understudy.errors import import_extra
from understudy.runner import Description, Node, needed
from understudy.runs.files import write_whole
from understudy.runs.policy_file import save_policy
from understudy.types import ConfigError

OPSET, IR_VERSION = 17, 8


def export_policy(path: str | Path, describe: Callable[[], Description]) -> Path:
    """Write a policy as ONNX or as safetensors, by the ending of the name."""
    kind = Path(path).suffix
    if kind not in (".safetensors", ".onnx"):
        raise ConfigError(f"{path}: a policy is exported as .safetensors or .onnx")
    return (export_onnx if kind == ".onnx" else save_policy)(path, describe())


def export_onnx(path: str | Path, description: Description) -> Path:
    """Write the deterministic policy; checked by `onnx` before it is written."""
    onnx = import_extra("onnx", "onnx", "an ONNX file needs the package onnx")
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
            [value(*entry) for entry in inputs],
            [value(*entry) for entry in outputs],
            graph.initializers,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="understudy",
        producer_version=str(description.about.get("understudy", "")),
    )
    metadata = {
        "understudy.spec": json.dumps(description.spec),
        "understudy.about": json.dumps(description.about),
        "opset": str(OPSET),
        "ir_version": str(IR_VERSION),
    }
    helper.set_model_props(model, metadata)
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
        operation, settings = node.operation, node.settings
        if operation == "part":  # it is an input by itself
            entry = self._entries[settings["name"]]
            picture = settings["shape"] == entry.shape and len(entry.shape) > 1
            self._names[node.output] = entry.name if picture else self.flat(entry)
            return
        if operation in OPERATORS:
            operator, attributes = OPERATORS[operation]
            self.add(operator, *inputs, **attributes, **settings)
        elif operation in CHAINS:
            x, *others = inputs
            for operator, other in zip(CHAINS[operation], others, strict=True):
                x = self.add(operator, x, other)
        elif operation in COMPOSED:
            COMPOSED[operation](self, *inputs, **settings)
        else:
            raise ConfigError(f"ONNX export does not know the operation '{operation}'")
        self.nodes[-1].output[0] = self._names.get(node.output, node.output)

    def flat(self, entry: _Entry) -> str:
        """An entry as a vector of floats; a choice as one 1 among 0s."""
        if not entry.choices:
            return entry.name if len(entry.shape) == 1 else self.add("Flatten", entry.name, axis=1)
        chosen = self.add("Sub", entry.name, self.integers(entry.start))
        values = self.keep("number.0_1", np.array([0, 1], np.float32))
        return self.add("OneHot", chosen, self.integers(entry.choices), values, axis=-1)

    def integers(self, *values: int) -> str:
        name = "integers." + "_".join(map(str, values))
        return self.keep(name, np.array(values, np.int64))

    def columns(self, x: str, start: int, end: int) -> str:
        return self.add("Slice", x, *map(self.integers, (start, end, -1)))

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

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        output = f"inner.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output


# Each of these functions ends with the operator that computes the node's value.


def _gelu(graph: _Graph, x: str) -> None:
    """With tanh, as in JAX; `Gelu` exists from opset 20 on."""
    cube = graph.add("Mul", graph.add("Mul", graph.add("Mul", x, x), x), graph.number(0.044715))
    bent = graph.add("Mul", graph.add("Add", x, cube), graph.number(math.sqrt(2 / math.pi)))
    gate = graph.add("Add", graph.add("Tanh", bent), graph.number(1.0))
    graph.add("Mul", graph.add("Mul", x, graph.number(0.5)), gate)


def _stack(graph: _Graph, *values: str) -> None:
    columns = [graph.add("Unsqueeze", value, graph.integers(-1)) for value in values]
    graph.add("Concat", *columns, axis=-1)


def _image(graph: _Graph, x: str, order: list[int], shape: list[int], largest: float) -> None:
    height, width, *others = (axis + 1 for axis in order)
    turned = graph.add("Transpose", x, perm=[0, *others, height, width])
    rows = graph.integers(-1, shape[2], shape[0], shape[1])
    numbers = graph.add("Cast", graph.add("Reshape", turned, rows), to=1)  # to float32
    graph.add("Div", numbers, graph.number(largest))


def _conv(graph: _Graph, x: str, weight: str, bias: str, stride: int, padding: str) -> None:
    graph.add("Conv", x, weight, bias, strides=[stride] * 2, auto_pad=_PADDING[padding])


def _max_pool(graph: _Graph, x: str, size: int, stride: int) -> None:
    padding = _PADDING["SAME"]
    graph.add("MaxPool", x, kernel_shape=[size] * 2, strides=[stride] * 2, auto_pad=padding)


def _gru(graph: _Graph, memory: str, projected: str, recurrent: str, bias: str) -> None:
    size, own = graph.rows_of(recurrent), graph.add("MatMul", memory, recurrent)
    both = [graph.columns(x, 0, 2 * size) for x in (projected, own)]
    gates = graph.add("Sigmoid", graph.add("Add", *both))
    recalled = graph.add("Add", graph.columns(own, 2 * size, 3 * size), bias)
    recalled = graph.add("Mul", graph.columns(gates, 0, size), recalled)
    fresh = graph.add("Add", graph.columns(projected, 2 * size, 3 * size), recalled)
    candidate = graph.add("Tanh", fresh)
    apart = graph.add("Sub", memory, candidate)
    kept = graph.add("Mul", graph.columns(gates, size, 2 * size), apart)
    graph.add("Add", candidate, kept)


def _lstm(graph: _Graph, memory: str, projected: str, recurrent: str) -> None:
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
    graph.add("Concat", hidden, cell, axis=-1)


def _unravel(graph: _Graph, x: str, choices: list[int]) -> None:
    weights = [math.prod(choices[place + 1 :]) for place in range(len(choices))]
    column = graph.add("Unsqueeze", x, graph.integers(-1))
    graph.add("Mod", graph.add("Div", column, graph.integers(*weights)), graph.integers(*choices))


_PADDING = {"SAME": "SAME_UPPER", "VALID": "VALID"}  # an odd pixel goes to the end
# Operation -> the one operator that computes it, and its attributes.
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("Gemm", {}),
    "argmax": ("ArgMax", {"axis": -1, "keepdims": 0}),
    "concat": ("Concat", {"axis": -1}),
    "layer_norm": ("LayerNormalization", {"axis": -1}),
}
for _name in ("relu", "tanh", "elu", "sigmoid", "add", "mean"):
    OPERATORS[_name] = (_name.capitalize(), {})
# Operation -> operators, each of the value so far and the next input. `Clip` takes no bounds per
# dimension.
CHAINS = {"standardize": ("Sub", "Div"), "clip": ("Max", "Min"), "scale": ("Mul", "Add")}
COMPOSED: dict[str, Callable[..., object]] = {
    "image": _image,
    "conv": _conv,
    "max_pool": _max_pool,
    "flatten": lambda graph, x: graph.add(
        "Flatten", graph.add("Transpose", x, perm=[0, 2, 3, 1]), axis=1
    ),
    "gru": _gru,
    "lstm": _lstm,
    "columns": _Graph.columns,
    "unravel": _unravel,
    "silu": lambda graph, x: graph.add("Mul", x, graph.add("Sigmoid", x)),
    "gelu": _gelu,
    "center": lambda graph, x: graph.add(
        "Sub", x, graph.add("ReduceMean", x, axes=[-1], keepdims=1)
    ),
    "stack": _stack,
    "reshape": lambda graph, x, shape: graph.add("Reshape", x, graph.integers(-1, *shape)),
}
