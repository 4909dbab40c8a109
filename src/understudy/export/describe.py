"""A policy's networks, normalizer and action map as a `runner.Description`."""

import dataclasses
import itertools
import json
from functools import singledispatch
from typing import Any, final

import equinox as eqx
import jax
import numpy as np

from understudy.algorithms.base import Algorithm
from understudy.envs.spaces import round_down, round_up
from understudy.networks import (
    MLP,
    BoundedGaussianActor,
    CategoricalActor,
    DeterministicActor,
    DuelingQValues,
    GaussianActor,
    Linear,
    MultiCategoricalActor,
    QValues,
    SquashedGaussianActor,
    StateDependentActor,
)
from understudy.networks.cnn import Conv, ImpalaCNN, Section, SmallCNN, image_shape, picture_axes
from understudy.networks.custom import PerSample
from understudy.networks.encoders import Fusion, OfEntries, Picture, Plain, Senses
from understudy.networks.ensembles import chosen, size_of
from understudy.networks.heads import LOG_STD_MAX, LOG_STD_MIN, STD_MAX, STD_MIN
from understudy.networks.rnn import GRU
from understudy.runner import Description, Node
from understudy.types import CheckpointError, ConfigError, Continuous, Discrete, Joint, Spec


def describe(
    algorithm: Algorithm, policy: Any, spec: Spec, about: dict[str, Any] | None = None
) -> Description:
    """One member's policy (`algorithm.policy(state)`, without an axis of members) as data.

    `about` is kept with it; the algorithm's name and config are added, and the spec has a place
    of its own.
    """
    _refuse_non_finite(policy)
    graph, seen = Graph(), "observation"
    if policy.seen is not None:
        deviation = np.sqrt(np.asarray(policy.seen.variance) + np.float32(1e-8))
        mean = graph.keep("normalizer.mean", policy.seen.mean)
        seen = graph.add("standardize", seen, mean, graph.keep("normalizer.deviation", deviation))
        seen = graph.clip(seen, -10.0, 10.0)
    # The first part of every policy is the network that acts.
    senses: Any = getattr(policy[0], "senses", None)
    features, next_memory = _perceive(graph, seen, senses)
    if hasattr(policy, "actor"):
        mode, sample = _head(policy.actor, graph, features, policy)
    else:
        mode, sample = _greedy(graph, features, policy, spec)
    action, sample = _border(graph, mode, spec), _border(graph, sample, spec)
    told = {"algorithm": algorithm.name, "config": dataclasses.asdict(algorithm.config)}
    told |= {name: value for name, value in (about or {}).items() if name != "spec"}
    return Description(
        spec=_as_json(dataclasses.asdict(spec)),
        about=_as_json(told),
        nodes=tuple(graph.nodes),
        action=action,
        sample=sample,
        memory=senses.cell.memory_size if next_memory else 0,
        next_memory=next_memory,
        arrays=graph.arrays,
    )


@final
class Graph:
    """Nodes and arrays as they are gathered."""

    def __init__(self):
        self.nodes: list[Node] = []
        self.arrays: dict[str, np.ndarray] = {}

    def keep(self, name: str, array: Any) -> str:
        self.arrays[name] = np.asarray(array, order="C")
        return name

    def add(self, operation: str, *inputs: str, **settings: Any) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(Node(operation, inputs, output, settings))
        return output

    def dense(self, x: str, layer: Linear, name: str, columns: slice = slice(None)) -> str:
        """A linear layer, or the part of it that makes some of its outputs."""
        _refuse_members(name, layer.weight, 2)
        weight = self.keep(f"{name}.weight", np.asarray(layer.weight)[:, columns])
        bias = self.keep(f"{name}.bias", np.asarray(layer.bias)[columns])
        return self.add("dense", x, weight, bias)

    def conv(self, x: str, layer: Conv, name: str) -> str:
        _refuse_members(name, layer.weight, 4)
        weight = self.keep(f"{name}.weight", np.asarray(layer.weight).transpose(3, 2, 0, 1))
        bias = self.keep(f"{name}.bias", layer.bias)
        settings = {"stride": layer.stride, "padding": layer.padding}
        return self.add("conv", x, weight, bias, **settings)

    def clip(self, x: str, low: float, high: float) -> str:
        bounds = [self.keep(f"constant.{bound:g}", np.float32(bound)) for bound in (low, high)]
        return self.add("clip", x, *bounds)

    def encode(self, x: str, encoder: Any, name: str) -> str:
        if isinstance(encoder, PerSample):
            encoder = eqx.combine(encoder.arrays, encoder.static.tree)
        if isinstance(encoder, Linear):
            return self.dense(x, encoder, name)
        if not isinstance(encoder, MLP):
            raise ConfigError(
                f"the {name} is your own module '{type(encoder).__name__}', which a policy file "
                "cannot express (understudy.networks.MLP and Linear it can); nothing was written. "
                "agent.save keeps it"
            )
        for place, layer in enumerate(encoder.layers):
            x = self.dense(x, layer, f"{name}.{place}")
            if encoder.norms:
                scale = self.keep(f"{name}.{place}.scale", encoder.norms[place].scale)
                offset = self.keep(f"{name}.{place}.offset", encoder.norms[place].offset)
                x = self.add("layer_norm", x, scale, offset, epsilon=1e-6)
            x = self.add(encoder.activation, x)
        return x


def _perceive(graph: Graph, x: str, senses: Any) -> tuple[str, str]:
    """What is seen and remembered, and the memory after it ("" where there is none)."""
    if not isinstance(senses, Senses):
        return x, ""
    seen = _see(senses.sight, graph, x)
    cell = senses.cell
    if cell is None:
        return seen, ""
    projected = graph.dense(seen, cell.input, "memory.input")
    recurrent = graph.keep("memory.recurrent", cell.recurrent)
    if isinstance(cell, GRU):
        bias = graph.keep("memory.candidate_bias", cell.candidate_bias)
        after = graph.add("gru", "memory", projected, recurrent, bias)
        return after, after
    after = graph.add("lstm", "memory", projected, recurrent)
    return graph.add("columns", after, start=0, end=cell.size), after


@singledispatch
def _see(sight: Any, graph: Graph, x: str) -> str:
    """What senses make of an observation."""
    return graph.encode(x, sight, "encoder")


@_see.register
def _(sight: Plain, graph: Graph, x: str) -> str:
    return x


@_see.register
def _(sight: OfEntries, graph: Graph, x: str) -> str:
    return graph.encode(x, sight.module, "encoder")


@_see.register
def _(sight: Picture, graph: Graph, x: str) -> str:
    return _picture(sight, graph, x, "encoder")


@_see.register
def _(sight: Fusion, graph: Graph, x: str) -> str:
    """Entry by entry out of the bytes, as `senses.unpack` has them."""
    seen, start = [], 0
    for part in sight.parts:
        end = start + part.size * np.dtype(part.dtype).itemsize
        picture = sight.encoders.get(part.name)
        shape = [part.size] if picture is None else list(part.shape)
        told = {"start": start, "end": end, "dtype": part.dtype, "shape": shape}
        entry = graph.add("part", x, name=part.name, **told)
        if picture is not None:
            entry = _picture(picture, graph, entry, f"encoder.{part.name}")
        seen.append(entry)
        start = end
    return graph.add("concat", *seen)


def _picture(picture: Picture, graph: Graph, x: str, name: str) -> str:
    shape, frames = picture.spec.shape, picture.spec.frames
    plane = picture_axes(shape, frames)
    order = [*plane, *(axis for axis in range(len(shape)) if axis not in plane)]
    largest = 255.0 if picture.spec.dtype == "uint8" else 1.0
    seen_as = list(image_shape(shape, frames))
    x = graph.add("image", x, order=order, shape=seen_as, largest=largest)
    encoder = picture.encoder
    if isinstance(encoder, ImpalaCNN):
        for place, section in enumerate(encoder.sections):
            x = _section(section, graph, x, f"{name}.{place}")
        x = graph.add("relu", x)
    else:
        single = isinstance(encoder, SmallCNN)
        layers = (encoder.convolution,) if single else encoder.convolutions
        for place, layer in enumerate(layers):
            x = graph.add("relu", graph.conv(x, layer, f"{name}.{place}"))
    x = graph.add("flatten", x)
    return graph.add("relu", graph.dense(x, encoder.linear, f"{name}.linear"))


def _section(section: Section, graph: Graph, x: str, name: str) -> str:
    x = graph.add("max_pool", graph.conv(x, section.convolution, name), size=3, stride=2)
    for place, block in enumerate(section.blocks):
        inner = graph.conv(graph.add("relu", x), block.first, f"{name}.{place}.first")
        inner = graph.conv(graph.add("relu", inner), block.second, f"{name}.{place}.second")
        x = graph.add("add", x, inner)
    return x


@singledispatch
def _head(actor: Any, graph: Graph, x: str, policy: Any) -> tuple[str, str]:
    """An actor's action, without and with exploring, before the border."""
    raise ConfigError(f"a policy file cannot express an actor of type '{type(actor).__name__}'")


@_head.register
def _(actor: DeterministicActor, graph: Graph, x: str, policy: Any) -> tuple[str, str]:
    features = graph.encode(x, actor.encoder, "actor.encoder")
    action = graph.add("tanh", graph.dense(features, actor.head, "actor.head"))
    noise = graph.keep("exploration_noise", policy.exploration_noise)
    return action, graph.clip(graph.add("normal", action, noise), -1.0, 1.0)


@_head.register
def _(actor: SquashedGaussianActor, graph: Graph, x: str, policy: Any) -> tuple[str, str]:
    mean, log_std = _halves(actor, graph, x)
    log_std = graph.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)
    drawn = graph.add("normal", mean, graph.add("exp", log_std))
    return graph.add("tanh", mean), graph.add("tanh", drawn)


@_head.register
def _(actor: BoundedGaussianActor, graph: Graph, x: str, policy: Any) -> tuple[str, str]:
    mean, spread = _halves(actor, graph, x)
    mean = graph.add("tanh", mean)
    width = graph.keep("std.width", np.float32(STD_MAX - STD_MIN))
    least = graph.keep("std.least", np.float32(STD_MIN))
    std = graph.add("scale", graph.add("sigmoid", spread), width, least)
    return mean, graph.clip(graph.add("normal", mean, std), -1.0, 1.0)


@_head.register
def _(actor: GaussianActor, graph: Graph, x: str, policy: Any) -> tuple[str, str]:
    features = graph.encode(x, actor.encoder, "actor.encoder")
    mean = graph.dense(features, actor.head, "actor.head")
    return mean, graph.add("normal", mean, graph.keep("std", np.exp(np.asarray(actor.log_std))))


@_head.register
def _(actor: StateDependentActor, graph: Graph, x: str, policy: Any) -> tuple[str, str]:
    features = graph.encode(x, actor.encoder, "actor.encoder")
    mean = graph.dense(features, actor.head, "actor.head")
    variances = graph.keep("noise.variances", np.exp(np.asarray(actor.log_std)) ** 2)
    return mean, graph.add("normal", mean, graph.add("spread", features, variances))


@_head.register
def _(actor: CategoricalActor, graph: Graph, x: str, policy: Any) -> tuple[str, str]:
    features = graph.encode(x, actor.encoder, "actor.encoder")
    logits = graph.dense(features, actor.head, "actor.head")
    return graph.add("argmax", logits), graph.add("categorical", logits)


@_head.register
def _(actor: MultiCategoricalActor, graph: Graph, x: str, policy: Any) -> tuple[str, str]:
    features = graph.encode(x, actor.encoder, "actor.encoder")
    ends = itertools.accumulate(actor.choices, initial=0)
    logits = [
        graph.dense(features, actor.head, f"actor.head.{place}", slice(start, end))
        for place, (start, end) in enumerate(itertools.pairwise(ends))
    ]
    likeliest = [graph.add("argmax", own) for own in logits]
    drawn = [graph.add("categorical", own) for own in logits]
    return graph.add("stack", *likeliest), graph.add("stack", *drawn)


def _halves(actor: Any, graph: Graph, x: str) -> tuple[str, str]:
    """The two halves of a Gaussian's head."""
    features = graph.encode(x, actor.encoder, "actor.encoder")
    size = actor.head.bias.shape[-1] // 2
    mean = graph.dense(features, actor.head, "actor.mean", slice(0, size))
    return mean, graph.dense(features, actor.head, "actor.spread", slice(size, 2 * size))


def _greedy(graph: Graph, x: str, policy: Any, spec: Spec) -> tuple[str, str]:
    """The choice that the critics value most, on average; random ones with probability ε."""
    critics = size_of(policy.critic)
    values = [_q_values(chosen(policy.critic, place), graph, x, place) for place in range(critics)]
    greedy = graph.add("argmax", values[0] if critics == 1 else graph.add("mean", *values))
    epsilon = graph.keep("epsilon", policy.epsilon)
    return greedy, graph.add("epsilon_greedy", greedy, epsilon, choices=spec.action.size)


def _q_values(critic: Any, graph: Graph, x: str, place: int) -> str:
    name = f"critic.{place}"
    features = graph.encode(x, critic.encoder, f"{name}.encoder")
    if isinstance(critic, QValues):
        return graph.dense(features, critic.head, f"{name}.head")
    if not isinstance(critic, DuelingQValues):
        raise ConfigError(
            f"a policy file cannot express a critic of type '{type(critic).__name__}'"
        )
    streams = [
        graph.encode(features, stream, f"{name}.{part}.encoder")
        for part, stream in zip(("value", "advantage"), critic.streams, strict=True)
    ]
    value = graph.dense(streams[0], critic.value, f"{name}.value")
    advantage = graph.dense(streams[1], critic.advantage, f"{name}.advantage")
    return graph.add("add", value, graph.add("center", advantage))


def _border(graph: Graph, x: str, spec: Spec) -> str:
    """From the library's actions to the environment's, as `envs.spaces.ActionMap` does it."""
    action = spec.action
    if isinstance(action, Joint):
        action = action.of
        x = graph.add("unravel", x, choices=list(action.choices))
    if isinstance(action, Discrete):
        return graph.add("add", x, graph.keep("action.start", np.int64(action.start)))
    if isinstance(action, Continuous):
        low, high = np.array(action.low), np.array(action.high)
        if action.bounded and not ((low == -1).all() and (high == 1).all()):
            half = graph.keep("action.half", high / 2 - low / 2)
            x = graph.add("scale", x, half, graph.keep("action.center", low / 2 + high / 2))
        low = graph.keep("action.low", round_up(low))
        x = graph.add("clip", x, low, graph.keep("action.high", round_down(high)))
        flat = (action.size,)
    else:
        x = graph.add("add", x, graph.keep("action.starts", np.array(action.starts, np.int64)))
        flat = (len(action.choices),)
    return x if action.shape == flat else graph.add("reshape", x, shape=list(action.shape))


def _refuse_members(name: str, weight: Any, axes: int) -> None:
    if weight.ndim != axes:
        raise ConfigError(
            f"{name} has shape {weight.shape}: one member's policy can be described, "
            "not all at once"
        )


def _as_json(value: Any) -> Any:
    """As it will come back from a file: lists instead of tuples."""
    return json.loads(json.dumps(value))


def _refuse_non_finite(policy: Any) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(policy)[0]:
        if not np.isfinite(leaf).all():
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise CheckpointError(f"{name} is not finite: the policy was not written")
