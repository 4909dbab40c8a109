"""Putting actors and critics together from a spec and the settings all algorithms share."""

from typing import Any

import jax

from understudy.networks.custom import EncoderMaker, Networks, build_encoder
from understudy.networks.encoders import (
    SharedEncoder,
    ObservationEncoder,
    make_observation_encoder,
    with_observation_encoder,
)
from understudy.networks.ensembles import Critics, ensemble
from understudy.networks.heads import DuelingQValues, QCritic, QValues, StateValue
from understudy.networks.initializers import INITIALIZERS, scaled
from understudy.networks.mlp import MLP
from understudy.types import Key, Spec, Tree

STREAM_SIZE = 512  # of dueling streams without hidden layers to take theirs from


def make_actor(
    head: Any,
    spec: Spec,
    config: Any,
    networks: Networks,
    key: Key,
    gain: int | float | None = None,
    share: bool = False,
) -> Any:
    """An actor: the standard encoder (or the user's) under the given head.

    `gain` is the head's own (see `scaled`); hidden layers keep the one of their initialization.
    With `share` it sees by the critics' observation_encoder, if observations need any.
    """
    encoder_key, head_key = jax.random.split(key)
    observation_encoder, inputs = _observation_encoder(spec, config, networks, key)

    def standard(inputs: int, key: Key) -> MLP:
        return MLP(
            inputs,
            _sizes(config.actor_hidden_sizes, config),
            key,
            activation=config.activation,
            initialization=config.initialization,
        )

    encoder, features = build_encoder(networks.actor_encoder, standard, inputs, encoder_key)
    actor = head(encoder, features, spec.action.size, head_key, scaled(config.initialization, gain))
    return with_observation_encoder(
        actor,
        SharedEncoder()
        if share and isinstance(observation_encoder, ObservationEncoder)
        else observation_encoder,
    )


def make_critics(spec: Spec, config: Any, networks: Networks, key: Key) -> Tree:
    """`config.num_critics` independently initialized Q(s, a), stacked."""
    standard = _layers(_sizes(config.critic_hidden_sizes, config), config)
    observation_encoder, seen = _observation_encoder(spec, config, networks, key)

    def make(key: Key) -> QCritic:
        encoder_key, head_key = jax.random.split(key)
        inputs = seen + spec.action.size
        encoder, features = build_encoder(networks.critic_encoder, standard, inputs, encoder_key)
        return QCritic(encoder, features, head_key, INITIALIZERS[config.initialization])

    return _seeing(observation_encoder, ensemble(make, config.num_critics, key))


def make_q_values(
    spec: Spec, config: Any, networks: Networks, key: Key, dueling: bool = False
) -> Tree:
    """`config.num_critics` independently initialized Q(s, ·) over discrete choices, stacked.

    With `dueling` the last hidden layer is there twice, once for the value and once for
    the advantages; a user's encoder takes the place of the layers before it. Where there are no
    hidden layers, each stream has one of 512 units, as in Wang et al. (2016).
    """
    sizes = _sizes(config.critic_hidden_sizes, config)
    initializer = INITIALIZERS[config.initialization]
    choices = spec.action.n  # type: ignore[union-attr]
    observation_encoder, inputs = _observation_encoder(spec, config, networks, key)

    def make(key: Key) -> QValues:
        encoder_key, head_key = jax.random.split(key)
        encoder, features = build_encoder(
            networks.critic_encoder, _layers(sizes, config), inputs, encoder_key
        )
        return QValues(encoder, features, choices, head_key, initializer)

    def make_dueling(key: Key) -> DuelingQValues:
        encoder_key, value_key, advantage_key, head_key = jax.random.split(key, 4)
        encoder, features = build_encoder(
            networks.critic_encoder, _layers(sizes[:-1], config), inputs, encoder_key
        )
        width = sizes[-1] if sizes else STREAM_SIZE
        own = _layers((width,), config)
        streams = own(features, value_key), own(features, advantage_key)
        return DuelingQValues(encoder, streams, width, choices, head_key, initializer)

    return _seeing(
        observation_encoder, ensemble(make_dueling if dueling else make, config.num_critics, key)
    )


def make_value(
    spec: Spec,
    config: Any,
    networks: Networks,
    key: Key,
    gain: int | float | None = None,
    share: bool = False,
) -> StateValue:
    """One V(s), under the critic's settings; `gain` is the head's own (see `scaled`). With
    `share` it sees by the actor's observation_encoder, if observations need any."""
    encoder_key, head_key = jax.random.split(key)
    standard = _layers(_sizes(config.critic_hidden_sizes, config), config)
    observation_encoder, inputs = _observation_encoder(spec, config, networks, key)
    encoder, features = build_encoder(networks.critic_encoder, standard, inputs, encoder_key)
    value = StateValue(encoder, features, head_key, scaled(config.initialization, gain))
    return with_observation_encoder(
        value,
        SharedEncoder()
        if share and isinstance(observation_encoder, ObservationEncoder)
        else observation_encoder,
    )


def _observation_encoder(spec: Spec, config: Any, networks: Networks, key: Key) -> tuple[Any, int]:
    """From a key of their own: the layers after them begin as they would without any."""
    return make_observation_encoder(
        spec.observation, config, networks.encoder, jax.random.fold_in(key, 1)
    )


def _seeing(observation_encoder: Any, critics: Tree) -> Tree:
    """Critics with observation_encoder in common; plain vectors need none."""
    return (
        Critics(observation_encoder, critics)
        if isinstance(observation_encoder, ObservationEncoder)
        else critics
    )


def _layers(sizes: tuple[int, ...], config: Any) -> EncoderMaker:
    """Makes a critic's hidden layers."""

    def make(inputs: int, key: Key) -> MLP:
        return MLP(
            inputs,
            sizes,
            key,
            activation=config.activation,
            layer_norm=config.layer_norm,
            initialization=config.initialization,
        )

    return make


def _sizes(own: tuple[int, ...] | None, config: Any) -> tuple[int, ...]:
    """A network's own hidden sizes, which may be none at all, or the common ones."""
    return config.hidden_sizes if own is None else own
