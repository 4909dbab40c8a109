"""Pieces of the gradients of several algorithms."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.algorithms.optim import Flag, when
from understudy.algorithms.train_state import TrainState
from understudy.networks import encode_shared
from understudy.networks.encoders import SharedEncoder, share_encoder, with_observation_encoder
from understudy.networks.ensembles import select_critics, ensemble_size
from understudy.types import Key, Metrics, Scalar, Tree

Objective = Callable[[Any], tuple[Scalar, Any]]  # of an actor: its loss, and what else to know


def differentiate_actor(
    objective: Objective, actor: Any, critic: Any, into_encoder: bool
) -> tuple[tuple[Scalar, Any], Any, Tree | None]:
    """An actor's loss with its extras, its gradient, and the gradient into what the actor shares
    with the critics, where that is wanted and shared (otherwise None)."""
    if not isinstance(actor.observation_encoder, SharedEncoder) or not into_encoder:
        of_actor = jax.value_and_grad(
            lambda own: objective(share_encoder(own, critic)), has_aux=True
        )
        return *of_actor(actor), None
    both = jax.value_and_grad(
        lambda own, observation_encoder: objective(
            with_observation_encoder(own, observation_encoder)
        ),
        argnums=(0, 1),
        has_aux=True,
    )
    answer, (actor_gradient, shared) = both(actor, critic.observation_encoder)
    return answer, actor_gradient, shared


def encode_for_actor(state: TrainState, batch: Any, config: Any) -> Any:
    """A batch whose observations actor and critics have looked at by the observation_encoder they share, if no
    gradient of the actor's goes into them."""
    if config.actor_trains_encoder:
        return batch
    seen = encode_shared(state.params.actor, state.params.critic, batch.observation)
    return batch._replace(observation=seen)


def add_encoder_gradient(critic_gradient: Any, shared: Tree | None) -> Any:
    """The critics' gradient, with the actor's share in their observation_encoder."""
    if shared is None:
        return critic_gradient
    both = jax.tree.map(jnp.add, critic_gradient.observation_encoder, shared)
    return with_observation_encoder(critic_gradient, both)


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


def sample_critics(critics: Tree, count: int | None, key: Key) -> Tree:
    """`count` of the stacked critics, drawn at random; all of them without a count.

    The key must be the whole batch's, not a row's: every shard asks the same critics."""
    if count is None:
        return critics
    drawn = jax.random.choice(key, ensemble_size(critics), (count,), replace=False)
    return select_critics(critics, drawn)


def mean_of_shards(shards: Sequence[Any]) -> Any:
    """The gradients of a whole batch out of those of its equal shards. The mask is the same for
    all of them and is not averaged."""
    bare = [shard._replace(mask=None) for shard in shards]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *bare)
    return mean._replace(mask=shards[0].mask)
