"""Several networks of one shape as one pytree with a leading axis."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
from jaxtyping import Array, Float

from understudy.networks.encoders import SharedEncoder, Features, with_observation_encoder
from understudy.types import Key, Observation, Tree


@final
class Critics(eqx.Module):
    """Critics that see by the same observation_encoder."""

    observation_encoder: Any
    members: Tree  # [critics, ...]


def ensemble(make: Callable[[Key], Any], size: int, key: Key) -> Tree:
    """`size` networks, each initialized from a key of its own (never clones of one another)."""
    return jax.vmap(make)(jax.random.split(key, size))


def encode(critics: Tree, observation: Observation) -> Observation:
    """The observation as critics that share their observation_encoder see it: looked at once, however many
    actions they are then asked about."""
    if isinstance(critics, Critics):
        return Features(critics.observation_encoder(observation))
    return observation


def encode_shared(actor: Any, critics: Tree, observation: Observation) -> Observation:
    """The observation as an actor and the critics that it borrows its observation_encoder from see it: looked
    at once. Not for a gradient into the observation_encoder."""
    return (
        encode(critics, observation)
        if isinstance(actor.observation_encoder, SharedEncoder)
        else observation
    )


def evaluate_ensemble(
    critics: Tree, observation: Observation, *actions: Array
) -> Float[Array, "critics *batch"]:
    """Every member's answer to the same inputs."""
    seen = encode(critics, observation)
    members = critics.members if isinstance(critics, Critics) else critics
    return jax.vmap(lambda member: member(seen, *actions))(members)


def select_critics(critics: Tree, places: Any) -> Tree:
    """Some of the critics; a single one by itself, for an int."""

    def take(members: Tree) -> Tree:
        return jax.tree.map(lambda stacked: stacked[places], members)

    if not isinstance(critics, Critics):
        return take(critics)
    members = take(critics.members)
    if isinstance(places, int):
        return with_observation_encoder(members, critics.observation_encoder)
    return Critics(critics.observation_encoder, members)


def ensemble_size(critics: Tree) -> int:
    members = critics.members if isinstance(critics, Critics) else critics
    return len(jax.tree.leaves(members)[0])
