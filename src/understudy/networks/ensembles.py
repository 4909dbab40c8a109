"""Several networks of one shape as one pytree with a leading axis."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
from jaxtyping import Array, Float

from understudy.networks.encoders import Borrowed, Recalled, with_senses
from understudy.types import Key, Observation, Tree


@final
class Critics(eqx.Module):
    """Critics that see by the same senses."""

    senses: Any
    members: Tree  # [critics, ...]


def ensemble(make: Callable[[Key], Any], size: int, key: Key) -> Tree:
    """`size` networks, each initialized from a key of its own (never clones of one another)."""
    return jax.vmap(make)(jax.random.split(key, size))


def perceive(critics: Tree, observation: Observation) -> Observation:
    """The observation as critics that share their senses see it: looked at once, however many
    actions they are then asked about."""
    if isinstance(critics, Critics):
        return Recalled(critics.senses(observation))
    return observation


def seen_by_both(actor: Any, critics: Tree, observation: Observation) -> Observation:
    """The observation as an actor and the critics that it borrows its senses from see it: looked
    at once. Not for a gradient into the senses."""
    return perceive(critics, observation) if isinstance(actor.senses, Borrowed) else observation


def evaluate_ensemble(
    critics: Tree, observation: Observation, *actions: Array
) -> Float[Array, "critics *batch"]:
    """Every member's answer to the same inputs."""
    seen = perceive(critics, observation)
    members = critics.members if isinstance(critics, Critics) else critics
    return jax.vmap(lambda member: member(seen, *actions))(members)


def chosen(critics: Tree, places: Any) -> Tree:
    """Some of the critics; a single one by itself, for an int."""

    def take(members: Tree) -> Tree:
        return jax.tree.map(lambda stacked: stacked[places], members)

    if not isinstance(critics, Critics):
        return take(critics)
    members = take(critics.members)
    if isinstance(places, int):
        return with_senses(members, critics.senses)
    return Critics(critics.senses, members)


def size_of(critics: Tree) -> int:
    members = critics.members if isinstance(critics, Critics) else critics
    return len(jax.tree.leaves(members)[0])
