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
from typing import Any

import numpy as np

from understudy.errors import import_extra
from understudy.export.graph import Graph
from understudy.observation_packing import Packer, Slot
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
    from onnx import helper, numpy_helper

    entries = _entries(description)
    graph = _translate(description, entries)
    action = description.spec["action"]
    kind = np.dtype(np.float32 if "low" in action else np.int64)
    inputs = [(entry.name, entry.dtype, entry.shape) for entry in entries.values()]
    outputs = [("action", kind, action.get("of", action).get("shape", []))]
    if description.memory:
        inputs.append(("memory", np.dtype(np.float32), (description.memory,)))
        outputs.append(("next_memory", np.dtype(np.float32), (description.memory,)))

    def value(name: str, dtype: np.dtype, shape: Any) -> Any:
        element = helper.np_dtype_to_tensor_dtype(dtype)
        return helper.make_tensor_value_info(name, element, ["batch", *shape])

    model = helper.make_model(
        helper.make_graph(
            [helper.make_node(node[0], node[1], [node[2]], **node[3]) for node in graph.nodes],
            "policy",
            [value(*entry) for entry in inputs],
            [value(*entry) for entry in outputs],
            [numpy_helper.from_array(array, name) for name, array in graph.arrays.items()],
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


def _entries(description: Description) -> dict[str, Slot]:
    """The inputs by the names of the entries of the observation that they are."""
    taken = {"memory", "next_memory", "action", *description.arrays}
    taken |= {node.output for node in description.nodes}
    entries = {}
    for slot in Packer(description.spec["observation"]).slots:
        name = slot.name or "observation"
        # The names that are made up here have a dot in them.
        while name in taken or ("." in name and not name.startswith("observation/")):
            name = f"observation/{name}"
        taken.add(name)
        dtype = np.dtype(np.int64) if slot.choices else slot.dtype
        entries[slot.name] = slot._replace(name=name, dtype=dtype)
    return entries


def _translate(description: Description, entries: dict[str, Slot]) -> Graph:
    """The nodes of a description, one or a few ONNX operators each."""
    graph = Graph("inner.")
    names = {description.next_memory: "next_memory", description.action: "action"}
    observation = description.spec["observation"]
    if observation.get("parts") and observation["dtype"] == "float32":
        # The network sees them side by side.
        features = [_flat(graph, entry) for entry in entries.values()]
        names["observation"] = graph.add("Concat", *features, axis=-1)
    for node in needed(description, description.action):
        if node.operation == "part":  # it is an input by itself
            entry, shape = entries[node.settings["name"]], node.settings["shape"]
            picture = len(shape) > 1 and shape == list(entry.shape)
            names[node.output] = entry.name if picture else _flat(graph, entry)
            continue
        for name in node.inputs:
            if name in description.arrays:
                # float64 is rare in hardware, and where the action map would gain by it, the bounds
                # below it hold in any case.
                array = description.arrays[name]
                graph.keep(name, array.astype("f4") if array.dtype == np.float64 else array)
        _add_operators(graph, node, [names.get(name, name) for name in node.inputs])
        last = graph.nodes[-1]
        graph.nodes[-1] = last._replace(output=names.get(node.output, node.output))
    return graph


def _add_operators(graph: Graph, node: Node, inputs: list[str]) -> None:
    """Add the operators that compute a node; the last one gives its value."""
    operation, settings = node.operation, node.settings
    if operation in OPERATORS:
        operator, attributes = OPERATORS[operation]
        graph.add(operator, *inputs, **attributes, **settings)
    elif operation in CHAINS:
        x, *others = inputs
        for operator, other in zip(CHAINS[operation], others, strict=True):
            x = graph.add(operator, x, other)
    elif operation in COMPOSED:
        COMPOSED[operation](graph, *inputs, **settings)
    else:
        raise ConfigError(f"ONNX export does not know the operation '{operation}'")


def _flat(graph: Graph, entry: Slot) -> str:
    """An entry as a vector of floats; a choice as one 1 among 0s."""
    if not entry.choices:
        return entry.name if len(entry.shape) == 1 else graph.add("Flatten", entry.name, axis=1)
    chosen = graph.add("Sub", entry.name, _integers(graph, entry.start))
    values = graph.keep("number.0_1", np.array([0, 1], np.float32))
    return graph.add("OneHot", chosen, _integers(graph, entry.choices), values, axis=-1)


def _integers(graph: Graph, *values: int) -> str:
    name = "integers." + "_".join(map(str, values))
    return graph.keep(name, np.array(values, np.int64))


def _number(graph: Graph, value: float) -> str:
    return graph.keep(f"number.{value:.9g}", np.float32(value))


def _columns(graph: Graph, x: str, start: int, end: int) -> str:
    return graph.add("Slice", x, *(_integers(graph, value) for value in (start, end, -1)))


# Each of these functions ends with the operator that computes the node's value.


def _gelu(graph: Graph, x: str) -> None:
    """With tanh, as in JAX; `Gelu` exists from opset 20 on."""
    cube = graph.add("Mul", graph.add("Mul", graph.add("Mul", x, x), x), _number(graph, 0.044715))
    bent = graph.add("Mul", graph.add("Add", x, cube), _number(graph, math.sqrt(2 / math.pi)))
    gate = graph.add("Add", graph.add("Tanh", bent), _number(graph, 1.0))
    graph.add("Mul", graph.add("Mul", x, _number(graph, 0.5)), gate)


def _rms_norm(graph: Graph, x: str, scale: str, epsilon: float) -> None:
    mean_square = graph.add("ReduceMean", graph.add("Mul", x, x), axes=[-1], keepdims=1)
    root = graph.add("Sqrt", graph.add("Add", mean_square, _number(graph, epsilon)))
    graph.add("Mul", graph.add("Div", x, root), scale)


def _interpolate(graph: Graph, x: str, target: str, rate: str) -> None:
    graph.add("Add", x, graph.add("Mul", rate, graph.add("Sub", target, x)))


def _stack(graph: Graph, *values: str) -> None:
    columns = [graph.add("Unsqueeze", value, _integers(graph, -1)) for value in values]
    graph.add("Concat", *columns, axis=-1)


def _image(graph: Graph, x: str, order: list[int], shape: list[int], largest: float) -> None:
    height, width, *others = (axis + 1 for axis in order)
    turned = graph.add("Transpose", x, perm=[0, *others, height, width])
    rows = _integers(graph, -1, shape[2], shape[0], shape[1])
    numbers = graph.add("Cast", graph.add("Reshape", turned, rows), to=1)  # to float32
    graph.add("Div", numbers, _number(graph, largest))


def _conv(graph: Graph, x: str, weight: str, bias: str, stride: int, padding: str) -> None:
    graph.add("Conv", x, weight, bias, strides=[stride] * 2, auto_pad=_PADDING[padding])


def _max_pool(graph: Graph, x: str, size: int, stride: int) -> None:
    padding = _PADDING["SAME"]
    graph.add("MaxPool", x, kernel_shape=[size] * 2, strides=[stride] * 2, auto_pad=padding)


def _gru(graph: Graph, memory: str, projected: str, recurrent: str, bias: str) -> None:
    size, own = len(graph.arrays[recurrent]), graph.add("MatMul", memory, recurrent)
    both = [_columns(graph, x, 0, 2 * size) for x in (projected, own)]
    gates = graph.add("Sigmoid", graph.add("Add", *both))
    recalled = graph.add("Add", _columns(graph, own, 2 * size, 3 * size), bias)
    recalled = graph.add("Mul", _columns(graph, gates, 0, size), recalled)
    fresh = graph.add("Add", _columns(graph, projected, 2 * size, 3 * size), recalled)
    candidate = graph.add("Tanh", fresh)
    apart = graph.add("Sub", memory, candidate)
    kept = graph.add("Mul", _columns(graph, gates, size, 2 * size), apart)
    graph.add("Add", candidate, kept)


def _lstm(graph: Graph, memory: str, projected: str, recurrent: str) -> None:
    size = len(graph.arrays[recurrent])
    own = graph.add("MatMul", _columns(graph, memory, 0, size), recurrent)
    gates = graph.add("Add", projected, own)
    take, keep, fresh, show = (
        graph.add(bend, _columns(graph, gates, place * size, (place + 1) * size))
        for place, bend in enumerate(("Sigmoid", "Sigmoid", "Tanh", "Sigmoid"))
    )
    kept = graph.add("Mul", keep, _columns(graph, memory, size, 2 * size))
    cell = graph.add("Add", kept, graph.add("Mul", take, fresh))
    hidden = graph.add("Mul", show, graph.add("Tanh", cell))
    graph.add("Concat", hidden, cell, axis=-1)


def _expectation(graph: Graph, logits: str, atoms: str) -> None:
    shape = _integers(graph, 0, -1, len(graph.arrays[atoms]))  # 0: the batch as it is
    each = graph.add("Softmax", graph.add("Reshape", logits, shape), axis=-1)
    graph.add("MatMul", each, atoms)


def _unravel(graph: Graph, x: str, choices: list[int]) -> None:
    weights = [math.prod(choices[place + 1 :]) for place in range(len(choices))]
    column = graph.add("Unsqueeze", x, _integers(graph, -1))
    graph.add(
        "Mod", graph.add("Div", column, _integers(graph, *weights)), _integers(graph, *choices)
    )


_PADDING = {"SAME": "SAME_UPPER", "VALID": "VALID"}  # an odd pixel goes to the end
# Operation -> the one operator that computes it, and its attributes.
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("Gemm", {}),
    "argmax": ("ArgMax", {"axis": -1, "keepdims": 0}),
    "concat": ("Concat", {"axis": -1}),
    "layer_norm": ("LayerNormalization", {"axis": -1}),
    "unit_norm": ("LpNormalization", {"axis": -1, "p": 2}),
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
    "columns": _columns,
    "unravel": _unravel,
    "silu": lambda graph, x: graph.add("Mul", x, graph.add("Sigmoid", x)),
    "gelu": _gelu,
    "rms_norm": _rms_norm,
    "interpolate": _interpolate,
    "center": lambda graph, x: graph.add(
        "Sub", x, graph.add("ReduceMean", x, axes=[-1], keepdims=1)
    ),
    "expectation": _expectation,
    "stack": _stack,
    "reshape": lambda graph, x, shape: graph.add("Reshape", x, _integers(graph, -1, *shape)),
}
