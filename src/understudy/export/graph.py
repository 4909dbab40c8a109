"""The graph of a policy: its nodes and arrays, and how hidden layers become nodes."""

from typing import Any, final

import numpy as np

from understudy import networks
from understudy.export.folding import absorbed, affine_map
from understudy.networks import cnn, mlp, projection
from understudy.networks.batch_norm import BatchNorm
from understudy.networks.custom import PerSample
from understudy.networks.mlp import NORM_EPSILON
from understudy.networks.residual import SHIFT, FlashSAC
from understudy.runner import Node
from understudy.types import ConfigError


@final
class Graph:
    """The nodes and arrays of a policy, in the order of computation."""

    def __init__(self, prefix: str = "v"):
        """`prefix` begins the name of every node's output."""
        self._prefix = prefix
        self.nodes: list[Node] = []
        self.arrays: dict[str, np.ndarray] = {}

    def keep(self, name: str, array: Any) -> str:
        self.arrays[name] = np.asarray(array, order="C")
        return name

    def add(self, operation: str, *inputs: str, **settings: Any) -> str:
        output = f"{self._prefix}{len(self.nodes)}"
        self.nodes.append(Node(operation, inputs, output, settings))
        return output

    def dense(self, x: str, layer: networks.Linear, name: str, columns: slice = slice(None)) -> str:
        """Add a linear layer, or the part of it that computes some columns of its output."""
        _refuse_seed_axis(name, layer.weight, 2)
        weight, bias = np.asarray(layer.weight)[:, columns], np.asarray(layer.bias)[columns]
        return self.affine(x, weight, bias, name)

    def affine(self, x: str, weight: Any, bias: Any, name: str) -> str:
        return self.add(
            "dense", x, self.keep(f"{name}.weight", weight), self.keep(f"{name}.bias", bias)
        )

    def layer_norm(self, x: str, norm: mlp.LayerNorm, name: str) -> str:
        scale, offset = (
            self.keep(f"{name}.scale", norm.scale),
            self.keep(f"{name}.offset", norm.offset),
        )
        return self.add("layer_norm", x, scale, offset, epsilon=NORM_EPSILON)

    def conv(self, x: str, layer: cnn.Conv, name: str) -> str:
        _refuse_seed_axis(name, layer.weight, 4)
        weight = self.keep(f"{name}.weight", np.asarray(layer.weight).transpose(3, 2, 0, 1))
        bias = self.keep(f"{name}.bias", layer.bias)
        return self.add("conv", x, weight, bias, stride=layer.stride, padding=layer.padding)

    def clip(self, x: str, low: float, high: float) -> str:
        bounds = [self.keep(f"constant.{bound:g}", np.float32(bound)) for bound in (low, high)]
        return self.add("clip", x, *bounds)

    def encode(self, x: str, encoder: Any, name: str) -> str:
        if isinstance(encoder, PerSample):
            encoder = encoder.module
        if isinstance(encoder, networks.Linear):
            return self.dense(x, encoder, name)
        if isinstance(encoder, networks.SimBa):
            return _simba(encoder, self, x, name)
        if isinstance(encoder, networks.SimBaV2):
            return _simbav2(encoder, self, x, name)
        if isinstance(encoder, FlashSAC):
            return _flashsac(encoder, self, x, name)
        if not isinstance(encoder, networks.MLP):
            raise ConfigError(
                f"the {name} is your own module '{type(encoder).__name__}', which a policy file "
                "cannot express (MLP, Linear, SimBa and SimBaV2 of understudy.networks it can); "
                "nothing was written. "
                "agent.save keeps it"
            )
        for place, layer in enumerate(encoder.layers):
            x = self.dense(x, layer, f"{name}.{place}")
            if encoder.norms:
                x = self.layer_norm(x, encoder.norms[place], f"{name}.{place}")
            x = self.add(encoder.activation, x)
        return x


def _simba(body: networks.SimBa, graph: Graph, x: str, name: str) -> str:
    x = graph.dense(x, body.embedding, f"{name}.embedding")
    for place, block in enumerate(body.blocks):
        own = f"{name}.{place}"
        inner = graph.dense(graph.layer_norm(x, block.norm, own), block.expand, f"{own}.expand")
        inner = graph.dense(graph.add(body.activation, inner), block.contract, f"{own}.contract")
        x = graph.add("add", x, inner)
    return graph.layer_norm(x, body.norm, name)


def _simbav2(body: networks.SimBaV2, graph: Graph, x: str, name: str) -> str:
    """Add a body whose scales are parts of the weights, and the constant input a bias."""
    _refuse_seed_axis(name, body.embedding.weight, 2)

    def dense(x: str, layer: projection.UnitLinear, part: str, scale: Any = 1.0) -> str:
        weight = np.asarray(layer.weight) * np.asarray(scale, np.float32)
        return graph.affine(x, weight, np.zeros(weight.shape[1], np.float32), f"{name}.{part}")

    weight = np.asarray(body.embedding.weight) * np.asarray(body.embedding_scale)
    x = graph.affine(x, weight[:-1], np.float32(SHIFT) * weight[-1], f"{name}.embedding")
    x = graph.add("unit_norm", x)
    for place, block in enumerate(body.blocks):
        inner = dense(x, block.expand, f"{place}.expand", block.scale)
        inner = dense(graph.add(body.activation, inner), block.contract, f"{place}.contract")
        rate = graph.keep(f"{name}.{place}.rate", block.interpolation)
        x = graph.add("interpolate", x, graph.add("unit_norm", inner), rate)
        x = graph.add("unit_norm", x)
    return dense(x, body.output, "output", body.output_scale)


def _flashsac(body: FlashSAC, graph: Graph, x: str, name: str) -> str:
    """Add a body whose BatchNorms are parts of the linear layers beside them."""
    _refuse_seed_axis(name, body.embedding.weight, 2)

    def affine(x: str, weight: np.ndarray, bias: np.ndarray, part: str) -> str:
        weight, bias = weight.astype(np.float32), bias.astype(np.float32)
        return graph.affine(x, weight, bias, f"{name}.{part}")

    def hidden(x: str, layer: projection.UnitLinear, norm: BatchNorm, part: str) -> str:
        factor, offset = affine_map(norm)
        x = affine(x, np.asarray(layer.weight, np.float64) * factor, offset, part)
        return graph.add(body.activation, x)

    x = affine(x, *absorbed(affine_map(body.input_norm), body.embedding), "embedding")
    for place, block in enumerate(body.blocks):
        inner = hidden(x, block.expand, block.inner_norm, f"{place}.expand")
        inner = hidden(inner, block.contract, block.outer_norm, f"{place}.contract")
        x = graph.add("add", x, inner)
    scale = graph.keep(f"{name}.scale", body.output_norm.scale)
    return graph.add("rms_norm", x, scale, epsilon=NORM_EPSILON)


def _refuse_seed_axis(name: str, weight: Any, axes: int) -> None:
    if weight.ndim != axes:
        raise ConfigError(
            f"{name} has shape {weight.shape}: the policy of one seed can be described, "
            "not all at once"
        )
