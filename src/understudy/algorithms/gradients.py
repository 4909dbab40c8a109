"""Pieces of the gradients of several algorithms."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.algorithms.optim import Flag, when
from understudy.algorithms.train_state import TrainState
from understudy.networks import seen_by_both
from understudy.networks.encoders import Borrowed, lend, with_senses
from understudy.networks.ensembles import chosen, size_of
from understudy.types import Key, Metrics, Scalar, Tree

Objective = Callable[[Any], tuple[Scalar, Any]]  # of an actor: its loss, and what else to know


def differentiate_actor(
    objective: Objective, actor: Any, critic: Any, into_encoder: bool
) -> tuple[tuple[Scalar, Any], Any, Tree | None]:
    """An actor's loss with its extras, its gradient, and the gradient into what the actor shares
    with the critics, where that is wanted and shared (otherwise None)."""
    if not isinstance(actor.senses, Borrowed) or not into_encoder:
        of_actor = jax.value_and_grad(lambda own: objective(lend(own, critic)), has_aux=True)
        return *of_actor(actor), None
    both = jax.value_and_grad(
        lambda own, senses: objective(with_senses(own, senses)), argnums=(0, 1), has_aux=True
    )
    answer, (actor_gradient, shared) = both(actor, critic.senses)
    return answer, actor_gradient, shared


def for_actor(state: TrainState, batch: Any, config: Any) -> Any:
    """A batch whose observations actor and critics have looked at by the senses they share, if no
    gradient of the actor's goes into them."""
    if config.actor_trains_encoder:
        return batch
    seen = seen_by_both(state.params.actor, state.params.critic, batch.observation)
    return batch._replace(observation=seen)


def add_shared(critic_gradient: Any, shared: Tree | None) -> Any:
    """The critics' gradient, with the actor's share in their senses."""
    if shared is None:
        return critic_gradient
    both = jax.tree.map(jnp.add, critic_gradient.senses, shared)
    return with_senses(critic_gradient, both)


def unless_delayed(flag: Flag, compute: Callable[[], tuple[Tree, Metrics]]) -> tuple[Tree, Metrics]:
    """`compute()`, gradients and metrics; of a delayed part, at no cost, gradients of zero and
    metrics that no mean counts."""

    def absent() -> tuple[Tree, Metrics]:
        gradients, metrics = jax.eval_shape(compute)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), gradients)
        return zeros, jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), metrics)

    return when(flag, compute, absent)


def mean_over_steps(
    value: Float[Array, "*critics batch"], weight: Float[Array, " batch"]
) -> Scalar:
    """The mean over rows that are steps, for metrics. NaN, which no mean counts, if there are
    none."""
    return jnp.mean(value, where=weight > 0)


def drawn_critics(critics: Tree, count: int | None, key: Key) -> Tree:
    """`count` of the stacked critics, drawn at random; all of them without a count.

    The key must be the whole batch's, not a row's: every shard asks the same critics."""
    if count is None:
        return critics
    drawn = jax.random.choice(key, size_of(critics), (count,), replace=False)
    return chosen(critics, drawn)


def mean_of_shards(shards: Sequence[Any]) -> Any:
    """The gradients of a whole batch out of those of its equal shards. The mask is the same for
    all of them and is not averaged."""
    bare = [shard._replace(mask=None) for shard in shards]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *bare)
    return mean._replace(mask=shards[0].mask)
