"""Observation encoders: they turn images, dicts and sequences of observations into features.

A network has an observation encoder of its own or shares that of another network, so that an actor
and its critics can use one CNN and one recurrent cell. Plain vectors need no encoder.
"""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from understudy.networks.cnn import default_cnn, image_shape, make_cnn, to_channels_last
from understudy.networks.custom import arrays_only
from understudy.networks.rnn import CELLS
from understudy.types import ArraySpec, ConfigError, History, Key, Observation, Part

ExtractorMaker = Callable[[ArraySpec, Key], Any]  # (spec, key) -> module of one observation


@final
class Features(eqx.Module):
    """Features that have been computed already, in place of an observation or of an encoder."""

    features: Float[Array, "*batch features"]

    def __call__(self, observation: Observation) -> Float[Array, "*batch features"]:
        return self.features


@final
class Identity(eqx.Module):
    """The encoder of vectors: they are features as they are."""

    def __call__(self, observation: Observation) -> Float[Array, "*batch features"]:
        return observation.features if isinstance(observation, Features) else observation


@final
class SharedEncoder(eqx.Module):
    """Marks a network without an encoder of its own: `share_encoder` puts in that of another."""


@final
class ObservationEncoder(eqx.Module):
    """An extractor (observation → features), and a recurrent cell after it, or None."""

    extractor: Any
    cell: Any

    def __call__(self, observation: Observation) -> Float[Array, "*rows features"]:
        """Return the features of each row. With a cell, an observation that is no History counts
        as the first one of an episode."""
        if isinstance(observation, Features):
            return observation.features
        if isinstance(observation, History):
            return self.read(self.recurrent_states(observation), observation)
        features = self.extractor(observation)
        if self.cell is None:
            return features
        initial = jnp.zeros((*features.shape[:-1], self.cell.state_size))
        return self.cell.features(self.cell(initial, features))

    def read(self, states: Array, history: History) -> Float[Array, "rows features"]:
        """Return the features at the moments of a history, given the state after each step."""
        selected = jnp.take_along_axis(states, history.at[..., None], axis=1)
        if history.ahead is not None:
            selected = self.cell(selected, self.extractor(history.ahead))
        features = self.cell.features(selected)
        return features.reshape(-1, features.shape[-1])

    def recurrent_states(self, history: History) -> Float[Array, "batch time state"]:
        """Return the recurrent state after each step. No gradient goes through the burn-in."""
        cell, burn_in = self.cell, history.burn_in

        def project(observation: Array) -> Array:
            return jnp.moveaxis(cell.input(self.extractor(observation)), 1, 0)

        first = jnp.moveaxis(history.first, 1, 0)

        def step(state: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            state = cell.step(reset_recurrent_state(state, now[1]), now[0])
            return state, state

        late = (project(history.observation[:, burn_in:]), first[burn_in:])
        if not burn_in:
            return jnp.moveaxis(jax.lax.scan(step, history.memory, late)[1], 0, 1)
        # Encoded apart, so that no backward pass goes over these images.
        early = (project(history.observation[:, :burn_in]), first[:burn_in])
        state, warmed_up = jax.lax.stop_gradient(jax.lax.scan(step, history.memory, early))
        _, states = jax.lax.scan(step, state, late)
        return jnp.moveaxis(jnp.concatenate([warmed_up, states]), 0, 1)


def encode_each(
    encoder: Any, *observations: Observation
) -> tuple[Float[Array, "rows features"], ...]:
    """Return the features of each. Histories must be of one sequence, which is unrolled once."""
    if not (isinstance(encoder, ObservationEncoder) and isinstance(observations[0], History)):
        return tuple(map(encoder, observations))
    states = encoder.recurrent_states(observations[0])
    return tuple(encoder.read(states, history) for history in observations)


def reset_recurrent_state(
    state: Float[Array, "rows state"], first: Bool[Array, " rows"]
) -> Float[Array, "rows state"]:
    """Return the recurrent state before a step: zeros where an episode begins."""
    return jnp.where(first[:, None], 0.0, state)


def encode_step(
    network: Any,
    state: Float[Array, "envs state"] | None,
    observation: Shaped[Array, "envs *observation"],
    first: Bool[Array, " envs"],
) -> tuple[Observation, Float[Array, "envs state"] | None]:
    """Encode one more observation if the network is recurrent. Returns the network's input and the
    new recurrent state; otherwise both as they were."""
    encoder = getattr(network, "observation_encoder", None)
    if not isinstance(encoder, ObservationEncoder) or encoder.cell is None:
        return observation, state
    assert state is not None
    state = encoder.cell(reset_recurrent_state(state, first), encoder.extractor(observation))
    return Features(encoder.cell.features(state)), state


def with_observation_encoder(network: Any, encoder: Any) -> Any:
    """Return the network with this observation encoder."""
    return eqx.tree_at(lambda network: network.observation_encoder, network, encoder)


def share_encoder(network: Any, owner: Any) -> Any:
    """Return the network with the owner's observation encoder, if it has none of its own."""
    if isinstance(network.observation_encoder, SharedEncoder):
        return with_observation_encoder(network, owner.observation_encoder)
    return network


@final
class ImageEncoder(eqx.Module):
    """A CNN for images in the layout in which environments return them."""

    cnn: Any
    spec: ArraySpec = eqx.field(static=True)

    def __call__(self, observation: Shaped[Array, "..."]) -> Float[Array, "..."]:
        return self.cnn(to_channels_last(observation, self.spec.shape, self.spec.frames))


@final
class DictEncoder(eqx.Module):
    """The entries of a Dict side by side; images as their encoders' features."""

    encoders: dict[str, ImageEncoder]
    parts: tuple[Part, ...] = eqx.field(static=True)

    def __call__(self, observation: Shaped[Array, "*batch bytes"]) -> Float[Array, "*batch all"]:
        features = [
            self.encoders[name](entry)
            if name in self.encoders
            else entry.reshape(*observation.shape[:-1], -1)
            for name, entry in unpack(observation, self.parts).items()
        ]
        return jnp.concatenate(features, axis=-1)


@final
class CustomDictEncoder(eqx.Module):
    """A user's module of a Dict's entries, applied to the bytes in which they are stored."""

    module: Any
    parts: tuple[Part, ...] = eqx.field(static=True)

    def __call__(self, observation: Shaped[Array, "*batch bytes"]) -> Float[Array, "*batch all"]:
        return self.module(unpack(observation, self.parts))


def unpack(observation: Shaped[Array, "*batch bytes"], parts: tuple[Part, ...]) -> dict[str, Array]:
    """Return the entries of a Dict with images from its bytes."""
    entries, start = {}, 0
    for part in parts:
        width = part.size * jnp.dtype(part.dtype).itemsize
        data = observation[..., start : start + width]
        if part.dtype == "float32":
            data = jax.lax.bitcast_convert_type(
                data.reshape(*data.shape[:-1], part.size, 4), jnp.float32
            )
        entries[part.name] = data.astype(part.dtype).reshape(*data.shape[:-1], *part.shape)
        start += width
    return entries


def make_observation_encoder(
    spec: ArraySpec, config: Any, make_extractor: ExtractorMaker | None, key: Key
) -> tuple[Any, int]:
    """Make the encoder for such observations, and return it with the number of its features."""
    extractor_key, cell_key = jax.random.split(key)
    extractor = _make_extractor(spec, config, make_extractor, extractor_key)
    try:
        probe = jax.eval_shape(extractor, jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype))
    except Exception as error:
        if make_extractor is None:
            raise
        words = " ".join(str(error).split())
        raise ConfigError(
            f"the encoder cannot see observations of shape {spec.shape}: "
            f"{type(error).__name__}: {words}"
        ) from error
    if not isinstance(probe, jax.ShapeDtypeStruct) or len(probe.shape) != 2:
        got = probe.shape[1:] if isinstance(probe, jax.ShapeDtypeStruct) else type(probe).__name__
        raise ConfigError(f"an encoder must map an observation to [features], got {got}")
    if config.memory is not None:
        cell = CELLS[config.memory](probe.shape[1], config.memory_size, cell_key)
        return ObservationEncoder(extractor, cell), config.memory_size
    is_vector = isinstance(extractor, Identity)
    return extractor if is_vector else ObservationEncoder(extractor, None), probe.shape[1]


def _make_extractor(
    spec: ArraySpec, config: Any, make_extractor: ExtractorMaker | None, key: Key
) -> Any:
    if make_extractor is not None and spec.in_bytes:
        first = min(spec.parts, key=lambda part: part.name)
        module = arrays_only(make_extractor(spec, key), len(first.shape))
        return CustomDictEncoder(module, spec.parts)
    if make_extractor is not None:
        return arrays_only(make_extractor(spec, key), len(spec.shape))
    if spec.is_image:
        return _make_image_encoder(spec, config, key)
    if not spec.in_bytes:
        return Identity()
    entries = {part.name: ArraySpec(part.shape, part.dtype) for part in spec.parts}
    images = {name: entry for name, entry in entries.items() if entry.is_image}
    keys = jax.random.split(key, len(images))
    encoders = {
        name: _make_image_encoder(image, config, own)
        for (name, image), own in zip(images.items(), keys, strict=True)
    }
    return DictEncoder(encoders, spec.parts)


def _make_image_encoder(spec: ArraySpec, config: Any, key: Key) -> ImageEncoder:
    shape = image_shape(spec.shape, spec.frames)
    name = default_cnn(shape) if config.encoder == "auto" else config.encoder
    cnn = make_cnn(name, shape, key, config.encoder_features, config.initialization)
    return ImageEncoder(cnn, spec)
