"""Make actors and critics from a spec and the settings that all algorithms share."""

from collections.abc import Mapping
from typing import Any

import jax

from understudy.networks.custom import EncoderMaker, Networks, build_encoder
from understudy.networks.encoders import (
    ObservationEncoder,
    SharedEncoder,
    make_observation_encoder,
    with_observation_encoder,
)
from understudy.networks.ensembles import Critics, ensemble
from understudy.networks.heads import DuelingQValues, QCritic, QValues, StateValue
from understudy.networks.mlp import INITIALIZERS, MLP, Linear, scaled
from understudy.types import Discrete, Key, Spec, Tree

STREAM_SIZE = 512  # of dueling streams, if there are no hidden layers to take the size from


def make_actor(
    kind: Any,
    spec: Spec,
    config: Any,
    networks: Networks,
    key: Key,
    gain: int | float | None = None,
    share: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """Make an actor of this class with the standard hidden layers (or the user's).

    `gain` is the head's own (see `scaled`); hidden layers have that of their initialization. With
    `share` the actor uses the critics' observation encoder, if observations need one. `settings`
    are arguments of the class.
    """
    encoder_key, head_key = jax.random.split(key)
    observation_encoder, inputs = _make_observation_encoder(spec, config, networks, key)
    standard = _mlp_maker(_sizes(config.actor_hidden_sizes, config), config, layer_norm=False)
    encoder, features = build_encoder(networks.actor_encoder, standard, inputs, encoder_key)
    outputs = kind.outputs_per_size * spec.action.size
    head = Linear(features, outputs, head_key, scaled(config.initialization, gain))
    actor = kind(encoder, head, **(settings or {}))
    return _attach(actor, observation_encoder, share)


def make_critics(
    spec: Spec, config: Any, networks: Networks, key: Key, dueling: bool = False
) -> Tree:
    """Make `config.num_critics` independently initialized critics, stacked: Q(s, a) of continuous
    actions, Q(s, ·) of discrete ones.

    With `dueling`, value and advantages each have a last hidden layer of their own; a user's
    encoder replaces the layers before it. Without hidden layers each stream has one of 512 units,
    as in Wang et al. (2016).
    """
    observation_encoder, inputs = _make_observation_encoder(spec, config, networks, key)
    discrete = isinstance(spec.action, Discrete)
    outputs = spec.action.size if discrete else 1
    inputs = inputs if discrete else inputs + spec.action.size
    sizes = _sizes(config.critic_hidden_sizes, config)
    initializer = INITIALIZERS[config.initialization]

    def make(key: Key) -> QCritic | QValues:
        encoder_key, head_key = jax.random.split(key)
        standard = _mlp_maker(sizes, config, config.layer_norm)
        encoder, features = build_encoder(networks.critic_encoder, standard, inputs, encoder_key)
        kind = QValues if discrete else QCritic
        return kind(encoder, Linear(features, outputs, head_key, initializer))

    def make_dueling(key: Key) -> DuelingQValues:
        encoder_key, value_key, advantage_key, head_key = jax.random.split(key, 4)
        standard = _mlp_maker(sizes[:-1], config, config.layer_norm)
        encoder, features = build_encoder(networks.critic_encoder, standard, inputs, encoder_key)
        width = sizes[-1] if sizes else STREAM_SIZE
        make_stream = _mlp_maker((width,), config, config.layer_norm)
        value, advantage = (make_stream(features, own) for own in (value_key, advantage_key))
        return DuelingQValues(encoder, (value, advantage), width, outputs, head_key, initializer)

    critics = ensemble(make_dueling if dueling else make, config.num_critics, key)
    if isinstance(observation_encoder, ObservationEncoder):
        return Critics(observation_encoder, critics)
    return critics


def make_value(
    spec: Spec,
    config: Any,
    networks: Networks,
    key: Key,
    gain: int | float | None = None,
    share: bool = False,
) -> StateValue:
    """Make one V(s) with the critic's settings; `gain` is the head's own (see `scaled`). With
    `share` it uses the actor's observation encoder, if observations need one."""
    encoder_key, head_key = jax.random.split(key)
    sizes = _sizes(config.critic_hidden_sizes, config)
    observation_encoder, inputs = _make_observation_encoder(spec, config, networks, key)
    standard = _mlp_maker(sizes, config, config.layer_norm)
    encoder, features = build_encoder(networks.critic_encoder, standard, inputs, encoder_key)
    head = Linear(features, 1, head_key, scaled(config.initialization, gain))
    return _attach(StateValue(encoder, head), observation_encoder, share)


def _make_observation_encoder(
    spec: Spec, config: Any, networks: Networks, key: Key
) -> tuple[Any, int]:
    """Use a key of its own: the layers after the encoder start as they would without one."""
    own = jax.random.fold_in(key, 1)
    return make_observation_encoder(spec.observation, config, networks.encoder, own)


def _attach(network: Any, encoder: Any, share: bool) -> Any:
    shared = share and isinstance(encoder, ObservationEncoder)
    return with_observation_encoder(network, SharedEncoder() if shared else encoder)


def _mlp_maker(sizes: tuple[int, ...], config: Any, layer_norm: bool) -> EncoderMaker:
    """Return a function of the number of inputs and a key that makes hidden layers."""

    def make(inputs: int, key: Key) -> MLP:
        return MLP(
            inputs,
            sizes,
            key,
            activation=config.activation,
            layer_norm=layer_norm,
            initialization=config.initialization,
        )

    return make


def _sizes(own: tuple[int, ...] | None, config: Any) -> tuple[int, ...]:
    """Return a network's own hidden sizes, which may be none at all, or the common ones."""
    return config.hidden_sizes if own is None else own
