"""Putting actors and critics together from a spec and the settings all algorithms share."""

from typing import Any

import jax

from understudy.nets.ensemble import ensemble
from understudy.nets.heads import QCritic
from understudy.nets.initialise import INITIALISERS
from understudy.nets.mlp import MLP
from understudy.nets.replaceable import Networks, build_encoder
from understudy.types import Key, Spec, Tree


def make_actor(head: Any, spec: Spec, config: Any, networks: Networks, key: Key) -> Any:
    """An actor: the standard encoder (or the user's) under the given head."""
    encoder_key, head_key = jax.random.split(key)

    def standard(inputs: int, key: Key) -> MLP:
        return MLP(
            inputs,
            _sizes(config.actor_hidden_sizes, config),
            key,
            activation=config.activation,
            initialisation=config.initialisation,
        )

    encoder, features = build_encoder(
        networks.actor_encoder, standard, spec.observation.size, encoder_key
    )
    initialiser = INITIALISERS[config.initialisation]
    return head(encoder, features, spec.action.size, head_key, initialiser)


def make_critics(spec: Spec, config: Any, networks: Networks, key: Key) -> Tree:
    """`config.num_critics` independently initialised Q(s, a), stacked."""

    def standard(inputs: int, key: Key) -> MLP:
        return MLP(
            inputs,
            _sizes(config.critic_hidden_sizes, config),
            key,
            activation=config.activation,
            layer_norm=config.layer_norm,
            initialisation=config.initialisation,
        )

    def make(key: Key) -> QCritic:
        encoder_key, head_key = jax.random.split(key)
        inputs = spec.observation.size + spec.action.size
        encoder, features = build_encoder(networks.critic_encoder, standard, inputs, encoder_key)
        return QCritic(encoder, features, head_key, INITIALISERS[config.initialisation])

    return ensemble(make, config.num_critics, key)


def _sizes(own: tuple[int, ...] | None, config: Any) -> tuple[int, ...]:
    """A network's own hidden sizes, which may be none at all, or the common ones."""
    return config.hidden_sizes if own is None else own
