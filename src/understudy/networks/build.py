"""Make actors and critics from a spec and the settings that all algorithms share."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from understudy.networks.batch_norm import BatchNormMLP
from understudy.networks.custom import EncoderMaker, Networks, arrays_only
from understudy.networks.encoders import (
    ObservationEncoder,
    SharedEncoder,
    make_observation_encoder,
    with_observation_encoder,
)
from understudy.networks.ensembles import Critics, ensemble
from understudy.networks.heads import DuelingQValues, QCritic, QValues, StateValue
from understudy.networks.mlp import MLP, Initializer, Linear, scaled
from understudy.networks.projection import project_weights
from understudy.networks.residual import RESIDUAL
from understudy.ops.return_distributions import ReturnForm
from understudy.types import ConfigError, Discrete, Key, Spec, Tree

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
    observation_encoder, inputs = _make_observation_encoder(spec, config, networks, key, share)
    sizes = _sizes(config.actor_hidden_sizes, config)
    make = networks.actor_encoder
    layer_norm = config.actor_layer_norm
    encoder, features = _make_hidden(make, sizes, inputs, encoder_key, config, layer_norm)
    outputs = kind.outputs_per_size * spec.action.size
    head = Linear(features, outputs, head_key, _head_initializer(config, gain))
    actor = with_observation_encoder(kind(encoder, head, **(settings or {})), observation_encoder)
    return project_weights(actor) if config.unit_weights else actor


def make_critics(
    spec: Spec,
    config: Any,
    networks: Networks,
    key: Key,
    dueling: bool = False,
    distribution: ReturnForm | None = None,
) -> Tree:
    """Make `config.num_critics` independently initialized critics, stacked: Q(s, a) of continuous
    actions, Q(s, ·) of discrete ones. With a `distribution` of returns, heads return its parameters
    in place of each value.

    With `dueling`, value and advantages each have a last hidden layer of their own; a user's
    encoder replaces the layers before it. Without hidden layers each stream has one of 512 units,
    as in Wang et al. (2016).
    """
    observation_encoder, inputs = _make_observation_encoder(spec, config, networks, key)
    discrete = isinstance(spec.action, Discrete)
    size = 1 if distribution is None else distribution.size
    outputs = spec.action.size * size if discrete else size
    inputs = inputs if discrete else inputs + spec.action.size
    sizes = _sizes(config.critic_hidden_sizes, config)
    make_linear = partial(Linear, initializer=_head_initializer(config, gain=None))
    make_hidden = partial(_make_hidden, config=config, layer_norm=config.layer_norm)

    def make(key: Key) -> QCritic | QValues:
        encoder_key, head_key = jax.random.split(key)
        encoder, features = make_hidden(networks.critic_encoder, sizes, inputs, encoder_key)
        kind = QValues if discrete else QCritic
        return kind(encoder, make_linear(features, outputs, head_key), distribution)

    def make_dueling(key: Key) -> DuelingQValues:
        encoder_key, value_key, advantage_key, head_key = jax.random.split(key, 4)
        encoder, features = make_hidden(networks.critic_encoder, sizes[:-1], inputs, encoder_key)
        width = sizes[-1] if sizes else STREAM_SIZE
        stream_keys, head_keys = (value_key, advantage_key), jax.random.split(head_key)
        streams = [make_hidden(None, (width,), features, own)[0] for own in stream_keys]
        value, advantage = map(partial(make_linear, width), (size, outputs), head_keys)
        return DuelingQValues(encoder, (streams[0], streams[1]), value, advantage, distribution)

    critics = ensemble(make_dueling if dueling else make, config.num_critics, key)
    critics = project_weights(critics) if config.unit_weights else critics
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
    observation_encoder, inputs = _make_observation_encoder(spec, config, networks, key, share)
    sizes = _sizes(config.critic_hidden_sizes, config)
    make = networks.critic_encoder
    encoder, features = _make_hidden(make, sizes, inputs, encoder_key, config, config.layer_norm)
    head = Linear(features, 1, head_key, scaled(config.initialization, gain))
    return with_observation_encoder(StateValue(encoder, head), observation_encoder)


def _make_observation_encoder(
    spec: Spec, config: Any, networks: Networks, key: Key, share: bool = False
) -> tuple[Any, int]:
    """Use a key of its own: the layers after the encoder start as they would without one."""
    own = jax.random.fold_in(key, 1)
    encoder, features = make_observation_encoder(spec.observation, config, networks.encoder, own)
    shared = share and isinstance(encoder, ObservationEncoder)
    return SharedEncoder() if shared else encoder, features


def _make_hidden(
    make: EncoderMaker | None,
    sizes: tuple[int, ...],
    inputs: int,
    key: Key,
    config: Any,
    layer_norm: bool,
) -> tuple[Any, int]:
    """Make hidden layers, by the user's `make` if there is one; also return the number of
    features."""
    if make is None and config.network != "mlp":
        body = RESIDUAL[config.network]
        return body(inputs, sizes, key, activation=config.activation), sizes[-1]
    if make is None:
        names = {"activation": config.activation, "initialization": config.initialization}
        features, normalization = (inputs, *sizes)[-1], config.normalization
        if normalization != "off":
            warm_up = config.renorm_warm_up if normalization == "batch_renorm" else None
            return BatchNormMLP(inputs, sizes, key, warm_up=warm_up, **names), features
        return MLP(inputs, sizes, key, layer_norm=layer_norm, **names), features
    encoder = arrays_only(make(inputs, key))
    probe = jax.eval_shape(encoder, jax.ShapeDtypeStruct((1, inputs), jnp.float32))
    if len(probe.shape) != 2 or probe.shape[0] != 1:
        raise ConfigError(f"an encoder must map [{inputs}] to [features], got {probe.shape[1:]}")
    return encoder, probe.shape[1]


def _head_initializer(config: Any, gain: int | float | None) -> Initializer:
    """Return how a head's weights start. The papers of residual networks have a gain of 1."""
    if config.network == "mlp":
        return scaled(config.initialization, gain)
    return scaled("orthogonal", 1.0)


def _sizes(own: tuple[int, ...] | None, config: Any) -> tuple[int, ...]:
    """Return a network's own hidden sizes, which may be none at all, or the common ones."""
    return config.hidden_sizes if own is None else own
