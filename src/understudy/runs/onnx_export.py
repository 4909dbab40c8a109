"""A policy as an ONNX model: normaliser and action map inside, no exploration.

Opset 17 and IR version 8, which onnxruntime reads since 1.12. The input `observation` is
[batch, *shape]; the output `action` is in the environment's own units: float32 inside the
bounds, or int64 counted from the space's own start. The metadata holds the same JSON as a
policy file's header: `understudy.spec` and `understudy.about`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np

from understudy.runner import Description, Node, needed
from understudy.runs.policy_file import write_whole
from understudy.types import ConfigError

OPSET, IR_VERSION = 17, 8


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
    observation, action = description.spec["observation"], description.spec["action"]
    kind = np.float32 if "low" in action else np.int64

    def value(name: str, dtype: Any, shape: list[int]) -> Any:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, element, ["batch", *shape])

    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "policy",
            [value("observation", observation["dtype"], observation["shape"])],
            [value("action", kind, action.get("shape", []))],
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


@final
class _Graph:
    """The nodes of a description, one or a few ONNX operators each."""

    def __init__(self, description: Description):
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._arrays, self._kept = description.arrays, set[str]()
        self._result = description.action

    def translate(self, node: Node) -> None:
        for name in node.inputs:
            if name in self._arrays:
                self.keep(name, self._arrays[name])
        output = "action" if node.output == self._result else node.output
        if node.operation in SAME:
            self.add(SAME[node.operation], *node.inputs, output=output)
        elif node.operation in COMPOSED:
            COMPOSED[node.operation](self, *node.inputs, output=output, **node.settings)
        else:
            raise ConfigError(f"ONNX export does not know the operation '{node.operation}'")

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

    def number(self, value: float) -> str:
        return self.keep(f"number.{value:.9g}", np.float32(value))

    def add(self, operator: str, *inputs: str, output: str | None = None, **settings: Any) -> str:
        from onnx import helper

        output = output or f"inner.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **settings))
        return output


def _standardise(graph: _Graph, x: str, mean: str, deviation: str, output: str) -> None:
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


def _centre(graph: _Graph, x: str, output: str) -> None:
    graph.add("Sub", x, graph.add("ReduceMean", x, axes=[-1], keepdims=1), output=output)


def _argmax(graph: _Graph, x: str, output: str) -> None:
    graph.add("ArgMax", x, output=output, axis=-1, keepdims=0)


def _stack(graph: _Graph, *values: str, output: str) -> None:
    axis = graph.keep("number.last_axis", np.array([-1], np.int64))
    columns = [graph.add("Unsqueeze", value, axis) for value in values]
    graph.add("Concat", *columns, output=output, axis=-1)


def _reshape(graph: _Graph, x: str, output: str, shape: list[int]) -> None:
    graph.add("Reshape", x, graph.keep("action.shape", np.array([-1, *shape])), output=output)


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
    "standardise": _standardise,
    "clip": _clip,
    "scale": _scale,
    "layer_norm": _layer_norm,
    "silu": _silu,
    "gelu": _gelu,
    "centre": _centre,
    "argmax": _argmax,
    "stack": _stack,
    "reshape": _reshape,
}
