"""Parts of the gradients of several algorithms."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.algorithms.aux_losses import add_terms
from understudy.algorithms.base import Algorithm, Aux
from understudy.algorithms.optim import Flag, when
from understudy.algorithms.train_state import TrainState
from understudy.networks.encoders import SharedEncoder, share_encoder, with_observation_encoder
from understudy.networks.ensembles import encode_shared, ensemble_size, select_critics
from understudy.types import Key, Metrics, Scalar, Tree

Objective = Callable[[Any], tuple[Scalar, Any]]  # actor -> its loss, and extras


def target_networks(
    state: TrainState, batch: Any, critic_subset: int | None, key: Key
) -> tuple[Any, Tree, Any]:
    """Return the target actor, the target critics (or a random subset), and the batch with its next
    observations encoded for both."""
    actor, critics = state.targets.actor, state.targets.critic
    encoded = encode_shared(actor, critics, batch.next_observation)
    subset = sample_critics(critics, critic_subset, key)
    return share_encoder(actor, critics), subset, batch._replace(next_observation=encoded)


def sample_critics(critics: Tree, count: int | None, key: Key) -> Tree:
    """Draw `count` of the stacked critics at random; None is all of them.

    The key must be the whole batch's, not a row's: every shard uses the same critics."""
    if count is None:
        return critics
    drawn = jax.random.choice(key, ensemble_size(critics), (count,), replace=False)
    return select_critics(critics, drawn)


def differentiate_critic(
    loss_function: Callable[..., Any], critic: Any, batch: Any, target: Array, *arguments: Any
) -> tuple[Any, Aux]:
    """Return the gradient of `loss_function(critic, batch, target, *arguments)`, which returns a
    loss and TD errors, with the critics' metrics and the rows' priorities."""
    differentiate = jax.value_and_grad(loss_function, has_aux=True)
    (loss, error), gradient = differentiate(critic, batch, target, *arguments)
    metrics = {"critic_loss": loss, "q_mean": mean_over_steps(target + error, batch.weight)}
    return gradient, Aux(metrics, jnp.mean(jnp.abs(error), axis=0))


def differentiate_actor(
    algorithm: Algorithm, state: TrainState, batch: Any, objective: Objective, key: Key
) -> tuple[tuple[Any, Tree | None], Any, Metrics]:
    """Differentiate an actor's objective plus the users' add-ons.

    Returns the gradients of the actor and of the encoder that it shares with the critics (None if
    there is none, or if the actor does not train it), the objective's extras, and metrics."""

    def total(actor: Any) -> tuple[Scalar, Any]:
        loss, extras = objective(actor)
        added, metrics = add_terms(algorithm.loss_addons, actor, batch, key)
        return loss + added, (extras, {"actor_loss": loss + added, **metrics})

    actor, critic = state.params.actor, state.params.critic
    shares_encoder = isinstance(actor.observation_encoder, SharedEncoder)
    if not shares_encoder or not algorithm.config.actor_trains_encoder:
        own = jax.grad(lambda actor: total(share_encoder(actor, critic)), has_aux=True)
        gradient, (extras, metrics) = own(actor)
        return (gradient, None), extras, metrics
    both = jax.grad(
        lambda actor, encoder: total(with_observation_encoder(actor, encoder)),
        argnums=(0, 1),
        has_aux=True,
    )
    gradients, (extras, metrics) = both(actor, critic.observation_encoder)
    return gradients, extras, metrics


def encode_for_actor(state: TrainState, batch: Any, config: Any) -> Any:
    """Encode a batch's observations once for actor and critics, if they share an encoder that the
    actor does not train."""
    if config.actor_trains_encoder:
        return batch
    encoded = encode_shared(state.params.actor, state.params.critic, batch.observation)
    return batch._replace(observation=encoded)


def add_encoder_gradient(critic_gradient: Any, encoder_gradient: Tree | None) -> Any:
    """Add the actor's gradient of the shared encoder to that of the critics."""
    if encoder_gradient is None:
        return critic_gradient
    both = jax.tree.map(jnp.add, critic_gradient.observation_encoder, encoder_gradient)
    return with_observation_encoder(critic_gradient, both)


def unless_delayed(flag: Flag, compute: Callable[[], tuple[Tree, Metrics]]) -> tuple[Tree, Metrics]:
    """Return `compute()`, which are gradients and metrics. If the flag is not set, gradients are
    zero, metrics are NaN (means leave them out), and nothing is computed."""

    def absent() -> tuple[Tree, Metrics]:
        gradients, metrics = jax.eval_shape(compute)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), gradients)
        return zeros, jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), metrics)

    return when(flag, compute, absent)


def mean_over_steps(
    value: Float[Array, "*critics batch"], weight: Float[Array, " batch"]
) -> Scalar:
    """Return the mean over rows that are steps, for metrics; NaN if there are none."""
    return jnp.mean(value, where=weight > 0)


def mean_of_shards(shards: Sequence[Any]) -> Any:
    """Return the gradients of a whole batch from those of its equal shards. The mask is the same
    for all of them and is not averaged."""
    bare = [shard._replace(mask=None) for shard in shards]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *bare)
    return mean._replace(mask=shards[0].mask)
