"""A policy's networks, normalizer and action map as a `runner.Description`."""

import dataclasses
import itertools
import json
from typing import Any

import equinox as eqx
import numpy as np

from understudy import networks
from understudy.algorithms.base import Algorithm
from understudy.envs.spaces import round_down, round_up
from understudy.export.folding import fold_batch_norm
from understudy.export.graph import Graph
from understudy.networks import cnn, encoders, heads, rnn
from understudy.networks.ensembles import ensemble_size, select_critics
from understudy.ops.return_distributions import Atoms, Quantiles, ReturnForm
from understudy.runner import Description
from understudy.state_dict import state_dict
from understudy.types import CheckpointError, ConfigError, Continuous, Discrete, Joint, Spec


def describe(
    algorithm: Algorithm, policy: Any, spec: Spec, about: dict[str, Any] | None = None
) -> Description:
    """Describe the policy of one seed (`algorithm.policy(state)` without a seed axis) as data.

    `about` is stored with it, together with the algorithm's name and config.
    """
    _refuse_non_finite(policy)
    graph, seen = Graph(), "observation"
    if policy.normalizer is not None:
        deviation = np.sqrt(np.asarray(policy.normalizer.variance) + np.float32(1e-8))
        mean = graph.keep("normalizer.mean", policy.normalizer.mean)
        seen = graph.add("standardize", seen, mean, graph.keep("normalizer.deviation", deviation))
        seen = graph.clip(seen, -10.0, 10.0)
    # The first part of every policy is the network that acts.
    encoder: Any = getattr(policy[0], "observation_encoder", None)
    features, next_memory = _encode_observation(graph, seen, encoder)
    if hasattr(policy, "actor"):
        mode, sample = _head(fold_batch_norm(policy.actor), graph, features, policy)
    else:
        mode, sample = _greedy(graph, features, policy, spec)
    action, sample = _map_actions(graph, mode, spec), _map_actions(graph, sample, spec)
    stored = {"algorithm": algorithm.name, "config": dataclasses.asdict(algorithm.config)}
    stored |= {name: value for name, value in (about or {}).items() if name != "spec"}
    return Description(
        spec=_as_json(dataclasses.asdict(spec)),
        about=_as_json(stored),
        nodes=tuple(graph.nodes),
        action=action,
        sample=sample,
        memory=encoder.cell.state_size if next_memory else 0,
        next_memory=next_memory,
        arrays=graph.arrays,
    )


def _encode_observation(graph: Graph, x: str, encoder: Any) -> tuple[str, str]:
    """Add encoder and recurrent cell; returns the features and the next recurrent state ("" where
    there is none)."""
    if not isinstance(encoder, encoders.ObservationEncoder):
        return x, ""
    x, cell = _extract_features(graph, x, encoder.extractor), encoder.cell
    if cell is None:
        return x, ""
    projected = graph.dense(x, cell.input, "memory.input")
    recurrent = graph.keep("memory.recurrent", cell.recurrent)
    if isinstance(cell, rnn.GRU):
        bias = graph.keep("memory.candidate_bias", cell.candidate_bias)
        after = graph.add("gru", "memory", projected, recurrent, bias)
        return after, after
    after = graph.add("lstm", "memory", projected, recurrent)
    return graph.add("columns", after, start=0, end=cell.size), after


def _extract_features(graph: Graph, x: str, extractor: Any) -> str:
    match extractor:
        case encoders.Identity():
            return x
        case encoders.CustomDictEncoder():
            return graph.encode(x, extractor.module, "encoder")
        case encoders.ImageEncoder():
            return _encode_image(extractor, graph, x, "encoder")
        case encoders.DictEncoder():
            return _encode_dict(extractor, graph, x)
        case _:
            return graph.encode(x, extractor, "encoder")


def _encode_dict(encoder: encoders.DictEncoder, graph: Graph, x: str) -> str:
    """Take the entries of a Dict out of the bytes one by one, and join their features."""
    features, start = [], 0
    for part in encoder.parts:
        end = start + part.size * np.dtype(part.dtype).itemsize
        picture = encoder.encoders.get(part.name)
        shape = [part.size] if picture is None else list(part.shape)
        place = {"start": start, "end": end, "dtype": part.dtype, "shape": shape}
        entry = graph.add("part", x, name=part.name, **place)
        if picture is not None:
            entry = _encode_image(picture, graph, entry, f"encoder.{part.name}")
        features.append(entry)
        start = end
    return graph.add("concat", *features)


def _encode_image(picture: encoders.ImageEncoder, graph: Graph, x: str, name: str) -> str:
    shape, frames = picture.spec.shape, picture.spec.frames
    plane = cnn.image_axes(shape, frames)
    order = [*plane, *(axis for axis in range(len(shape)) if axis not in plane)]
    largest = 255.0 if picture.spec.dtype == "uint8" else 1.0
    seen_as = list(cnn.image_shape(shape, frames))
    x = graph.add("image", x, order=order, shape=seen_as, largest=largest)
    encoder = picture.cnn
    if isinstance(encoder, cnn.ImpalaCNN):
        for place, section in enumerate(encoder.sections):
            x = _section(section, graph, x, f"{name}.{place}")
        x = graph.add("relu", x)
    else:
        for place, layer in enumerate(encoder.convolutions):
            x = graph.add("relu", graph.conv(x, layer, f"{name}.{place}"))
    x = graph.add("flatten", x)
    return graph.add("relu", graph.dense(x, encoder.linear, f"{name}.linear"))


def _section(section: cnn.Section, graph: Graph, x: str, name: str) -> str:
    x = graph.add("max_pool", graph.conv(x, section.convolution, name), size=3, stride=2)
    for place, block in enumerate(section.blocks):
        inner = graph.conv(graph.add("relu", x), block.first, f"{name}.{place}.first")
        inner = graph.conv(graph.add("relu", inner), block.second, f"{name}.{place}.second")
        x = graph.add("add", x, inner)
    return x


def _head(actor: Any, graph: Graph, x: str, policy: Any) -> tuple[str, str]:
    """Add an actor; returns its normalized action without and with exploration."""
    kind = type(actor).__name__
    unknown = ConfigError(f"a policy file cannot express an actor of type '{kind}'")
    if not isinstance(actor, heads.Network):
        raise unknown
    features = graph.encode(x, actor.encoder, "actor.encoder")
    if isinstance(actor, networks.MultiCategoricalActor):
        ends = itertools.accumulate(actor.choices, initial=0)
        logits = [
            graph.dense(features, actor.head, f"actor.head.{place}", slice(start, end))
            for place, (start, end) in enumerate(itertools.pairwise(ends))
        ]
        likeliest = [graph.add("argmax", own) for own in logits]
        drawn = [graph.add("categorical", own) for own in logits]
        return graph.add("stack", *likeliest), graph.add("stack", *drawn)
    if isinstance(actor, networks.SquashedGaussianActor | networks.BoundedGaussianActor):
        return _gaussian(actor, graph, features)
    output = graph.dense(features, actor.head, "actor.head")
    if isinstance(actor, networks.CategoricalActor):
        return graph.add("argmax", output), graph.add("categorical", output)
    if isinstance(actor, networks.DeterministicActor):
        action = graph.add("tanh", output)
        noise = graph.keep("exploration_noise", policy.exploration_noise)
        return action, graph.clip(graph.add("normal", action, noise), -1.0, 1.0)
    if not isinstance(actor, networks.GaussianActor | networks.StateDependentActor):
        raise unknown
    std = np.exp(np.asarray(actor.log_std))
    if isinstance(actor, networks.GaussianActor):
        return output, graph.add("normal", output, graph.keep("std", std))
    variances = graph.keep("noise.variances", std**2)
    return output, graph.add("normal", output, graph.add("spread", features, variances))


def _gaussian(actor: Any, graph: Graph, features: str) -> tuple[str, str]:
    """Add a Gaussian whose head computes the mean and the spread, each by half of its outputs."""
    size = actor.head.bias.shape[-1] // 2
    mean = graph.dense(features, actor.head, "actor.mean", slice(0, size))
    spread = graph.dense(features, actor.head, "actor.spread", slice(size, 2 * size))
    if isinstance(actor, networks.SquashedGaussianActor):
        log_std = graph.clip(spread, heads.LOG_STD_MIN, heads.LOG_STD_MAX)
        drawn = graph.add("normal", mean, graph.add("exp", log_std))
        return graph.add("tanh", mean), graph.add("tanh", drawn)
    mean = graph.add("tanh", mean)
    width = graph.keep("std.width", np.float32(heads.STD_MAX - heads.STD_MIN))
    least = graph.keep("std.least", np.float32(heads.STD_MIN))
    std = graph.add("scale", graph.add("sigmoid", spread), width, least)
    return mean, graph.clip(graph.add("normal", mean, std), -1.0, 1.0)


def _greedy(graph: Graph, x: str, policy: Any, spec: Spec) -> tuple[str, str]:
    """Add the choice with the highest mean value of the critics; and ε-greedy exploration."""
    critics = ensemble_size(policy.critic)
    values = [
        _q_values(select_critics(policy.critic, place), graph, x, place) for place in range(critics)
    ]
    greedy = graph.add("argmax", values[0] if critics == 1 else graph.add("mean", *values))
    epsilon = graph.keep("epsilon", policy.epsilon)
    return greedy, graph.add("epsilon_greedy", greedy, epsilon, choices=spec.action.size)


def _q_values(critic: Any, graph: Graph, x: str, place: int) -> str:
    name = f"critic.{place}"
    features = graph.encode(x, critic.encoder, f"{name}.encoder")
    if isinstance(critic, networks.QValues):
        head = graph.dense(features, _mean_head(critic.head, critic.distribution), f"{name}.head")
        return _mean_return(graph, head, critic.distribution, name)
    if not isinstance(critic, networks.DuelingQValues):
        raise ConfigError(
            f"a policy file cannot express a critic of type '{type(critic).__name__}'"
        )
    streams = [
        graph.encode(features, stream, f"{name}.{part}.encoder")
        for part, stream in zip(("value", "advantage"), critic.streams, strict=True)
    ]
    form, heads = critic.distribution, (critic.value, critic.advantage)
    if isinstance(form, Atoms):  # V + A − mean(A) for each atom: one linear map of the features
        each, choices = np.eye(form.size), len(critic.advantage.bias) // form.size
        centered = np.eye(choices) - 1.0 / choices
        maps = np.tile(each, choices), np.kron(centered, each)
        heads = [_followed_by(head, matrix) for head, matrix in zip(heads, maps, strict=True)]
    heads = [_mean_head(head, form) for head in heads]
    value = graph.dense(streams[0], heads[0], f"{name}.value")
    advantage = graph.dense(streams[1], heads[1], f"{name}.advantage")
    if isinstance(form, Atoms):
        return _mean_return(graph, graph.add("add", value, advantage), form, name)
    return graph.add("add", value, graph.add("center", advantage))


def _mean_head(head: networks.Linear, form: ReturnForm | None) -> networks.Linear:
    """Return a head that computes the mean of the quantiles of each choice; others stay."""
    if not isinstance(form, Quantiles):
        return head
    mean = np.full((form.size, 1), 1.0 / form.size)
    return _followed_by(head, np.kron(np.eye(len(head.bias) // form.size), mean))


def _mean_return(graph: Graph, outputs: str, form: ReturnForm | None, name: str) -> str:
    """Add the mean of the categorical distribution of each choice, if outputs are its logits."""
    if not isinstance(form, Atoms):
        return outputs
    return graph.add("expectation", outputs, graph.keep(f"{name}.atoms", form.values))


def _followed_by(layer: networks.Linear, matrix: np.ndarray) -> networks.Linear:
    """Return the linear layer that computes `layer` and then the matrix."""
    arrays = [(np.asarray(x) @ matrix).astype(np.float32) for x in (layer.weight, layer.bias)]
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, tuple(arrays))


def _map_actions(graph: Graph, x: str, spec: Spec) -> str:
    """Map normalized actions to the environment's own, as `envs.spaces.ActionMap` does."""
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


def _as_json(value: Any) -> Any:
    """Convert tuples to lists, as a file would."""
    return json.loads(json.dumps(value))


def _refuse_non_finite(policy: Any) -> None:
    for name, array in state_dict(policy).items():
        if not np.isfinite(array).all():
            raise CheckpointError(f"{name} is not finite: the policy was not written")
