"""Passes that serve several losses: of recurrent encoders over sequences, and of critics with
BatchNorm over the observations and the next observations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from understudy.networks.batch_norm import BatchNormalized, Changes, with_changes
from understudy.networks.encoders import Features, encode_each, with_observation_encoder
from understudy.networks.ensembles import hidden_layers, with_hidden_layers
from understudy.types import History, Tree


class Online(NamedTuple):
    """A batch, and the critics that learn from it. With memory, features of the batch replace their
    encoder: one unroll of the sequences serves the targets and all losses."""

    batch: Any
    critic: Any  # for the observations
    next_critic: Any  # for the next observations; no gradient reaches its encoder
    pull_back: Callable[[Any], Any]  # gradient of `critic` -> gradient of the critics themselves


def encode_online(critics: Any, batch: Any) -> Online:
    """Encode the sequences of a batch once. The histories of its observations and of its next
    observations are of the same sequences. A batch without memory stays as it is."""
    if not isinstance(batch.observation, History):
        return Online(batch, critics, critics, lambda gradient: gradient)

    def encode(encoder: Any) -> tuple[Array, Array]:
        here, there = encode_each(encoder, batch.observation, batch.next_observation)
        return here, there

    here, transpose, there = jax.vjp(encode, critics.observation_encoder, has_aux=True)

    def pull_back(gradient: Any) -> Any:
        (of_encoder,) = transpose(gradient.observation_encoder.features)
        return with_observation_encoder(gradient, of_encoder)

    critic, next_critic = (with_observation_encoder(critics, Features(x)) for x in (here, there))
    return Online(batch, critic, next_critic, pull_back)


def normalize_jointly(
    online: Online, targets: Tree, batch: Any, next_action: Callable[[], Array] | None
) -> tuple[Online, Tree]:
    """Run critics with BatchNorm on the observations and the next observations in one pass, so that
    both have the statistics of the same rows (CrossQ, arXiv 1902.05605). The features of
    that pass replace the hidden layers of the critics and of the targets, which may be the critics
    themselves. Critics without BatchNorm stay as they are.

    `batch` is the batch as the targets see it. Discrete actions are no inputs: `next_action` is
    None."""
    if not isinstance(hidden_layers(online.critic), BatchNormalized):
        return online, targets
    actions = [] if next_action is None else [jnp.concatenate([batch.action, next_action()])]
    counted = jnp.tile(batch.weight > 0, 2)

    def run(critics: Any, next_critics: Any, batch: Any) -> tuple[Array, Array, Changes]:
        here = critics.observation_encoder(batch.observation)
        there = next_critics.observation_encoder(batch.next_observation)
        states = jnp.concatenate([here, jax.lax.stop_gradient(there)])
        rows = jnp.concatenate([states, *actions], axis=-1)
        both, changes = jax.vmap(lambda own: own.train(rows, counted))(hidden_layers(critics))
        here, there = jnp.split(both, 2, axis=1)
        return here, there, changes

    def features(encoder: Any, layers: Any) -> tuple[Array, tuple[Array, Changes]]:
        critics = with_hidden_layers(with_observation_encoder(online.critic, encoder), layers)
        here, there, changes = run(critics, online.next_critic, online.batch)
        return here, (there, changes)

    own = online.critic.observation_encoder, hidden_layers(online.critic)
    here, transpose, (there, changes) = jax.vjp(features, *own, has_aux=True)

    def pull_back(gradient: Any) -> Any:
        of_encoder, of_layers = transpose(hidden_layers(gradient).features)
        gradient = with_hidden_layers(gradient, with_changes(of_layers, changes))
        return online.pull_back(with_observation_encoder(gradient, of_encoder))

    critic = with_hidden_layers(online.critic, Features(here))
    if targets is not online.critic:
        there = run(targets, targets, batch)[1]
    targets = with_hidden_layers(targets, Features(there))
    return online._replace(critic=critic, pull_back=pull_back), targets


def normalize_by_batch(actor: Any, batch: Any) -> tuple[Any, Changes | None]:
    """Return an actor with BatchNorm for the observations of this batch, normalized by their
    statistics (together with the next observations, if its layers see them), and the changes of its
    running statistics. Another actor stays as it is."""
    layers = hidden_layers(actor)
    if not isinstance(layers, BatchNormalized):
        return actor, None
    rows, counted = actor.observation_encoder(batch.observation), batch.weight > 0
    if not layers.sees_next:
        features, changes = layers.train(rows, counted)
        return with_hidden_layers(actor, Features(features)), changes
    there = jax.lax.stop_gradient(actor.observation_encoder(batch.next_observation))
    both, changes = layers.train(jnp.concatenate([rows, there]), jnp.tile(counted, 2))
    return with_hidden_layers(actor, Features(both[: len(rows)])), changes
