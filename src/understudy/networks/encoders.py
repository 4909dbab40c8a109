"""What comes before a network's hidden layers: pictures become features, the entries of a Dict one
vector, and a cell remembers what was seen before.

A network has `observation_encoder` of its own or borrows those of another, so that actor and critics can see
and remember by one and the same encoder. Plain vectors need no observation_encoder at all.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from understudy.networks.cnn import ENCODERS, fitting, image_shape, to_channels_last
from understudy.networks.custom import arrays_only
from understudy.networks.rnn import CELLS
from understudy.types import ArraySpec, ConfigError, History, Key, Observation, Part

ExtractorMaker = Callable[[ArraySpec, Key], Any]  # (spec, key) -> module of one observation


@final
class Features(eqx.Module):
    """Features that are there already, where a network expects an observation."""

    features: Float[Array, "*batch features"]


@final
class Identity(eqx.Module):
    """No observation_encoder: a vector is taken as it is."""

    def __call__(self, observation: Observation) -> Float[Array, "*batch features"]:
        return observation.features if isinstance(observation, Features) else observation


@final
class SharedEncoder(eqx.Module):
    """Stands where the observation_encoder of another network will be put before anything is asked."""


@final
class ObservationEncoder(eqx.Module):
    """Sight (observation → features), and a cell that remembers them, or None."""

    extractor: Any
    cell: Any

    def __call__(self, observation: Observation) -> Float[Array, "*rows features"]:
        """Features of each row. Without a History, a network with a memory takes an observation
        for the first one of an episode."""
        if isinstance(observation, Features):
            return observation.features
        if isinstance(observation, History):
            return self._of_moments(observation)
        seen = self.extractor(observation)
        if self.cell is None:
            return seen
        nothing = jnp.zeros((*seen.shape[:-1], self.cell.memory_size))
        return self.cell.features(self.cell(nothing, seen))

    def _of_moments(self, history: History) -> Float[Array, "rows features"]:
        memories = self.memories(history)
        wanted = jnp.take_along_axis(memories, history.at[..., None], axis=1)
        if history.ahead is not None:
            wanted = self.cell(wanted, self.extractor(history.ahead))
        features = self.cell.features(wanted)
        return features.reshape(-1, features.shape[-1])

    def memories(self, history: History) -> Float[Array, "batch time memory"]:
        """The memory after each step. No gradient goes through the burn-in."""
        cell, warming_up = self.cell, history.burn_in

        def project(seen: Array) -> Array:
            return jnp.moveaxis(cell.project(self.extractor(seen)), 1, 0)

        first = jnp.moveaxis(history.first, 1, 0)

        def step(memory: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            memory = cell.step(reset_recurrent_state(memory, now[1]), now[0])
            return memory, memory

        late = (project(history.observation[:, warming_up:]), first[warming_up:])
        if not warming_up:
            return jnp.moveaxis(jax.lax.scan(step, history.memory, late)[1], 0, 1)
        # Looked at apart, so that no backward pass goes over these pictures.
        early = (project(history.observation[:, :warming_up]), first[:warming_up])
        memory, warmed = jax.lax.stop_gradient(jax.lax.scan(step, history.memory, early))
        _, memories = jax.lax.scan(step, memory, late)
        return jnp.moveaxis(jnp.concatenate([warmed, memories]), 0, 1)


def reset_recurrent_state(
    memory: Float[Array, "rows memory"], first: Bool[Array, " rows"]
) -> Float[Array, "rows memory"]:
    """The memory with which a step is begun: none where an episode begins."""
    return jnp.where(first[:, None], 0.0, memory)


def encode_step(
    network: Any,
    memory: Float[Array, "envs memory"] | None,
    observation: Shaped[Array, "envs *observation"],
    first: Bool[Array, " envs"],
) -> tuple[Observation, Float[Array, "envs memory"] | None]:
    """See one more observation: what to ask the network about, and the memory after it."""
    observation_encoder = (
        network.observation_encoder if hasattr(network, "observation_encoder") else Identity()
    )
    if not isinstance(observation_encoder, ObservationEncoder) or observation_encoder.cell is None:
        return observation, memory
    assert memory is not None
    memory = observation_encoder.cell(
        reset_recurrent_state(memory, first), observation_encoder.extractor(observation)
    )
    return Features(observation_encoder.cell.features(memory)), memory


def with_observation_encoder(network: Any, observation_encoder: Any) -> Any:
    """The same network with these."""
    changed = object.__new__(type(network))
    for field in dataclasses.fields(network):
        value = (
            observation_encoder
            if field.name == "observation_encoder"
            else getattr(network, field.name)
        )
        object.__setattr__(changed, field.name, value)
    return changed


def share_encoder(network: Any, owner: Any) -> Any:
    """The network with the owner's observation_encoder, if it has none of its own."""
    if isinstance(network.observation_encoder, SharedEncoder):
        return with_observation_encoder(network, owner.observation_encoder)
    return network


@final
class ImageEncoder(eqx.Module):
    """An image encoder behind the layout in which environments give images."""

    encoder: Any
    spec: ArraySpec = eqx.field(static=True)

    def __call__(self, observation: Shaped[Array, "..."]) -> Float[Array, "..."]:
        return self.encoder(to_channels_last(observation, self.spec.shape, self.spec.frames))


@final
class DictEncoder(eqx.Module):
    """The entries of a Dict side by side, images as their encoders' features."""

    encoders: dict[str, ImageEncoder]
    parts: tuple[Part, ...] = eqx.field(static=True)

    def __call__(self, observation: Shaped[Array, "*batch bytes"]) -> Float[Array, "*batch all"]:
        entries = unpack(observation, self.parts)
        seen = [
            self.encoders[name](entry)
            if name in self.encoders
            else entry.reshape(*observation.shape[:-1], -1)
            for name, entry in entries.items()
        ]
        return jnp.concatenate(seen, axis=-1)


@final
class CustomDictEncoder(eqx.Module):
    """A user's module of a Dict's entries, applied to the bytes they travel as."""

    module: Any
    parts: tuple[Part, ...] = eqx.field(static=True)

    def __call__(self, observation: Shaped[Array, "*batch bytes"]) -> Float[Array, "*batch all"]:
        return self.module(unpack(observation, self.parts))


def unpack(observation: Shaped[Array, "*batch bytes"], parts: tuple[Part, ...]) -> dict[str, Array]:
    """The entries of a Dict with images, out of its bytes."""
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
    spec: ArraySpec, config: Any, encoder: ExtractorMaker | None, key: Key
) -> tuple[Any, int]:
    """What a network needs in order to see such observations, and how many numbers come of it."""
    extractor_key, cell_key = jax.random.split(key)
    extractor = _make_extractor(spec, config, encoder, extractor_key)
    one = jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype)
    try:
        probe = jax.eval_shape(extractor, one)
    except Exception as error:
        if encoder is None:
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
    return extractor if isinstance(extractor, Identity) else ObservationEncoder(
        extractor, None
    ), probe.shape[1]


def _make_extractor(spec: ArraySpec, config: Any, encoder: ExtractorMaker | None, key: Key) -> Any:
    if encoder is not None and spec.in_bytes:
        first = min(spec.parts, key=lambda part: part.name)
        return CustomDictEncoder(arrays_only(encoder(spec, key), len(first.shape)), spec.parts)
    if encoder is not None:
        return arrays_only(encoder(spec, key), len(spec.shape))
    if spec.is_image:
        return _picture(spec, config, key)
    if not spec.in_bytes:
        return Identity()
    images = [part for part in spec.parts if ArraySpec(part.shape, part.dtype).is_image]
    keys = jax.random.split(key, len(images))
    encoders = {
        part.name: _picture(ArraySpec(part.shape, part.dtype), config, own)
        for part, own in zip(images, keys, strict=True)
    }
    return DictEncoder(encoders, spec.parts)


def _picture(spec: ArraySpec, config: Any, key: Key) -> ImageEncoder:
    shape = image_shape(spec.shape, spec.frames)
    kind = ENCODERS[fitting(shape) if config.encoder == "auto" else config.encoder]
    features = {} if config.encoder_features is None else {"features": config.encoder_features}
    return ImageEncoder(kind(shape, key, initialization=config.initialization, **features), spec)
