"""Parts of the gradients of several algorithms."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from understudy.algorithms.aux_losses import add_terms
from understudy.algorithms.base import Algorithm, Aux
from understudy.algorithms.joint_pass import Online, normalize_by_batch
from understudy.algorithms.optim import Flag, Gradients, UpdateMask, when
from understudy.algorithms.train_state import TrainState
from understudy.networks.batch_norm import with_changes
from understudy.networks.encoders import (
    SharedEncoder,
    share_encoder,
    with_observation_encoder,
)
from understudy.networks.ensembles import (
    drop_units,
    encode_shared,
    ensemble_size,
    hidden_layers,
    return_form,
    return_parameters,
    select_critics,
    with_hidden_layers,
    without_dropout,
)
from understudy.ops.return_distributions import Returns
from understudy.ops.targets import Target, mean_target
from understudy.types import Key, Metrics, Scalar, Tree

DROPOUT = 2**30  # derives the key of dropout: no split of the key gives the same
Part = tuple[Tree, Metrics]  # gradients, and metrics
ActorLoss = Callable[[Any, Any], tuple[Scalar, Any]]  # actor, batch -> its loss, and extras


def with_dropout(state: TrainState, config: Any, batch: Any, key: Key) -> TrainState:
    """Return the state with dropout in the critics and in their targets, which drop other units;
    without targets the critics take their place. The gradient of the critics that
    `differentiate_critic` returns is that of the state itself."""
    if not config.critic_dropout:
        return state
    online_key, target_key = jax.random.split(jax.random.fold_in(key, DROPOUT))
    drop = partial(drop_units, rate=config.critic_dropout, row=batch.row)
    params = state.params._replace(critic=drop(state.params.critic, key=online_key))
    target = target_params(state).critic
    targets = state.targets._replace(critic=drop(target, key=target_key))
    return state._replace(params=params, targets=targets)


def target_params(state: TrainState) -> Any:
    """Return the targets, and in place of those that do not exist the networks themselves."""
    pairs = zip(state.params, state.targets, strict=True)
    return type(state.params)(*(own if target is None else target for own, target in pairs))


def target_networks(
    state: TrainState, batch: Any, critic_subset: int | None, key: Key
) -> tuple[Any, Tree, Any]:
    """Return the target actor, the target critics (or a random subset), and the batch with its
    observations encoded for both."""
    actor, critics = target_params(state)[:2]
    if state.targets.actor is None:  # then its encoder is that of the critics that learn
        actor = share_encoder(actor, state.params.critic)
        return actor, sample_critics(critics, critic_subset, key), batch
    here, there = encode_shared(actor, critics, batch.observation, batch.next_observation)
    subset = sample_critics(critics, critic_subset, key)
    encoded = batch._replace(observation=here, next_observation=there)
    return share_encoder(actor, critics), subset, encoded


def sample_critics(critics: Tree, count: int | None, key: Key) -> Tree:
    """Draw `count` of the stacked critics at random; None is all of them.

    The key must be the whole batch's, not a row's: every shard uses the same critics."""
    if count is None:
        return critics
    drawn = jax.random.choice(key, ensemble_size(critics), (count,), replace=False)
    return select_critics(critics, drawn)


def distributional_loss(
    critics: Tree, batch: Any, target: Returns
) -> tuple[Scalar, Float[Array, "critics batch"]]:
    """The distance of each critic's distribution of returns from the target, by cross-entropy or by
    the quantile Huber loss, summed over critics, averaged over the batch. Errors are of means."""
    form = return_form(critics)
    assert form is not None
    parameters = return_parameters(critics, batch.observation, batch.action)
    loss = jnp.sum(jnp.mean(batch.weight * form.loss(parameters, target), axis=-1))
    return loss, form.mean(parameters) - target.mean


def differentiate_critic(
    loss_function: Callable[..., Any], online: Online, target: Target, *arguments: Any
) -> tuple[Any, Aux]:
    """Return the gradient of `loss_function(critic, batch, target, *arguments)`, which returns a
    loss and TD errors, with the critics' metrics and the rows' priorities. Distributional critics
    have one loss for all algorithms instead."""
    if isinstance(target, Returns):
        loss_function, arguments = distributional_loss, ()
    # Integers among the leaves are those of dropout.
    differentiate = jax.value_and_grad(loss_function, has_aux=True, allow_int=True)
    (loss, error), gradient = differentiate(online.critic, online.batch, target, *arguments)
    q_mean = mean_over_steps(mean_target(target) + error, online.batch.weight)
    metrics = {"critic_loss": loss, "q_mean": q_mean}
    gradient = online.pull_back(without_dropout(gradient))
    return gradient, Aux(metrics, jnp.mean(jnp.abs(error), axis=0))


def join_gradients(
    algorithm: Algorithm,
    state: TrainState,
    online: Online,
    key: Key,
    mask: UpdateMask,
    critic_part: tuple[Any, Aux],
    actor_loss: ActorLoss,
    differentiate_numbers: Callable[[Any], Part] | None = None,
) -> tuple[Gradients, Aux]:
    """Differentiate the actor's loss, and join its gradient with what `differentiate_critic` has
    returned. The actor's is taken at the current critic, before this update moves it. If the actor
    is delayed, nothing is computed for it.

    The params are the actor, the critics and, if there are any, learned numbers, whose gradient
    `differentiate_numbers` computes from the extras of the actor's loss. The key is for the users'
    add-ons."""
    critic_gradient, aux = critic_part
    encoded = batch = online.batch
    if not algorithm.config.actor_trains_encoder:  # encode once for both, if they share an encoder
        (shared,) = encode_shared(state.params.actor, online.critic, batch.observation)
        encoded = batch._replace(observation=shared)

    def total(actor: Any) -> tuple[Scalar, Any]:
        normalized, changes = normalize_by_batch(actor, encoded)
        loss, extras = actor_loss(normalized, encoded)
        added, metrics = add_terms(algorithm.loss_addons, actor, batch, key)
        return loss + added, (extras, changes, {"actor_loss": loss + added, **metrics})

    def differentiate_rest() -> Part:
        gradients, output = _differentiate_actor(state, algorithm.config, total)
        extras, changes, metrics = output
        if changes is not None:
            layers = with_changes(hidden_layers(gradients[0]), changes)
            gradients = with_hidden_layers(gradients[0], layers), gradients[1]
        if differentiate_numbers is None:
            return (*gradients, ()), metrics
        numbers, more_metrics = differentiate_numbers(extras)
        return (*gradients, (numbers,)), metrics | more_metrics

    gradients, metrics = _unless_delayed(mask.policy, differentiate_rest)
    actor_gradient, encoder_gradient, numbers = gradients
    if encoder_gradient is not None:
        both = jax.tree.map(jnp.add, critic_gradient.observation_encoder, encoder_gradient)
        critic_gradient = with_observation_encoder(critic_gradient, both)
    params = type(state.params)(actor_gradient, critic_gradient, *numbers)
    return Gradients(params, mask), aux._replace(metrics=aux.metrics | metrics)


def _differentiate_actor(
    state: TrainState, config: Any, loss: Callable[[Any], tuple[Scalar, Any]]
) -> tuple[tuple[Any, Tree | None], Any]:
    """Return the gradients of the actor and of the encoder that it shares with the critics (None if
    there is none, or if the actor does not train it), and the loss's second output."""
    actor, critic = state.params.actor, state.params.critic
    if config.actor_trains_encoder and isinstance(actor.observation_encoder, SharedEncoder):
        both = jax.grad(
            lambda actor, encoder: loss(with_observation_encoder(actor, encoder)),
            argnums=(0, 1),
            has_aux=True,
        )
        return both(actor, critic.observation_encoder)
    own = jax.grad(lambda actor: loss(share_encoder(actor, critic)), has_aux=True)
    gradient, output = own(actor)
    return (gradient, None), output


def _unless_delayed(flag: Flag, compute: Callable[[], Part]) -> Part:
    """Return `compute()`, which are gradients and metrics. If the flag is not set, gradients are
    zero, metrics are NaN (means leave them out), and nothing is computed."""

    def absent() -> Part:
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
