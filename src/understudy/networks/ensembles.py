"""Critics: several networks of one shape as one pytree with a leading axis."""

from collections.abc import Callable
from functools import partial
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, Shaped

from understudy.networks.custom import PerSample
from understudy.networks.dropout import Dropout
from understudy.networks.encoders import (
    Features,
    SharedEncoder,
    encode_each,
    with_observation_encoder,
)
from understudy.networks.mlp import MLP
from understudy.ops.return_distributions import ReturnForm, Returns
from understudy.ops.targets import Reduction, pessimistic
from understudy.types import Key, Observation, Tree


@final
class Critics(eqx.Module):
    """Critics that use one observation encoder. Critics of vectors are stacked without this."""

    observation_encoder: Any
    members: Tree  # [critics, ...]


def ensemble(make: Callable[[Key], Any], size: int, key: Key) -> Tree:
    """Make `size` networks, each initialized from a key of its own (never clones)."""
    return jax.vmap(make)(jax.random.split(key, size))


def encode(critics: Tree, observation: Observation) -> Observation:
    """Encode an observation once for all critics, and for all actions they are asked about."""
    if isinstance(critics, Critics):
        return Features(critics.observation_encoder(observation))
    return observation


def encode_shared(actor: Any, critics: Tree, *observations: Observation) -> tuple[Observation, ...]:
    """Encode observations once for an actor and the critics whose encoder it shares; a sequence is
    unrolled once for all of them. Do not use it if a gradient should reach the encoder."""
    if not isinstance(actor.observation_encoder, SharedEncoder):
        return observations
    return tuple(map(Features, encode_each(critics.observation_encoder, *observations)))


def evaluate_ensemble(
    critics: Tree, observation: Observation, *actions: Array
) -> Float[Array, "critics *batch"]:
    """Return every critic's output for the same inputs."""
    encoded = encode(critics, observation)
    return jax.vmap(lambda critic: critic(encoded, *actions))(_stacked(critics))


def q_of_action(
    critics: Tree, observation: Observation, action: Shaped[Array, "batch *action"]
) -> Float[Array, "critics *rows"]:
    """Return Q(s, a). A continuous action is an input of the critics, a discrete one an index into
    their output. (The index is a masked sum: the gradient of a gather would be a slow scatter.)"""
    if jnp.issubdtype(action.dtype, jnp.floating):
        return evaluate_ensemble(critics, observation, action)
    q = evaluate_ensemble(critics, observation)
    taken = action[:, None] == jnp.arange(q.shape[-1])
    return jnp.sum(jnp.where(taken, q, 0.0), axis=-1)


def return_form(critics: Tree) -> ReturnForm | None:
    """Return what distribution of returns the critics predict; None for scalar critics."""
    return getattr(_stacked(critics), "distribution", None)


def return_parameters(
    critics: Tree, observation: Observation, action: Shaped[Array, "batch *action"] | None = None
) -> Float[Array, "critics batch *rows"]:
    """Return the parameters of every critic's distribution of returns, for an action; without one,
    for each choice."""
    is_input = action is not None and jnp.issubdtype(action.dtype, jnp.floating)
    inputs, encoded = (action,) if is_input else (), encode(critics, observation)
    each = jax.vmap(lambda critic: critic.return_parameters(encoded, *inputs))(_stacked(critics))
    if action is None or is_input:
        return each
    taken = action[:, None] == jnp.arange(each.shape[-2])
    return jnp.sum(jnp.where(taken[..., None], each, 0.0), axis=-2)


def reduced_return(
    critics: Tree,
    observation: Observation,
    action: Shaped[Array, "batch *action"] | None = None,
    reduction: Reduction = pessimistic,
) -> Float[Array, "batch *rows"] | Returns:
    """Return one estimate of several critics, for an action or for each choice: the minimum of Q
    (or another reduction), or a distribution of returns, which is the lowest one."""
    form = return_form(critics)
    if form is not None:
        return form.pessimistic(return_parameters(critics, observation, action))
    if action is None:
        return reduction(evaluate_ensemble(critics, observation))
    return reduction(q_of_action(critics, observation, action))


def select_critics(critics: Tree, index: Any) -> Tree:
    """Return the critics at these indices; for an int, that critic without a leading axis."""
    selected = jax.tree.map(lambda stacked: stacked[index], _stacked(critics))
    if not isinstance(critics, Critics):
        return selected
    if isinstance(index, int):
        return with_observation_encoder(selected, critics.observation_encoder)
    return Critics(critics.observation_encoder, selected)


def drop_units(critics: Tree, rate: float, key: Key, row: Int32[Array, " batch"]) -> Tree:
    """Return critics whose hidden layers drop random units of these rows, other units in each
    critic. Users' own layers stay as they are."""

    parts, structure = jax.tree.flatten(critics, is_leaf=_is_hidden)
    for place, part in enumerate(parts):
        if isinstance(part, MLP):
            keys = jax.random.split(jax.random.fold_in(key, place), ensemble_size(critics))
            dropout = jax.vmap(partial(Dropout, row=row, rate=rate))(keys)
            parts[place] = _replace_dropout(part, dropout)
    return jax.tree.unflatten(structure, parts)


def without_dropout(critics: Tree) -> Tree:
    """Return critics, or their gradients, as they were before `drop_units`."""

    def remove(part: Tree) -> Tree:
        return _replace_dropout(part, None) if isinstance(part, MLP) else part

    return jax.tree.map(remove, critics, is_leaf=_is_hidden)


def hidden_layers(network: Any) -> Any:
    """Return the hidden layers of an actor or of critics, stacked."""
    return _stacked(network).encoder


def with_hidden_layers(network: Any, layers: Any) -> Any:
    """Return an actor or critics with these hidden layers."""
    return eqx.tree_at(hidden_layers, network, layers)


def shift_outputs(critics: Tree, amount: Float[Array, " outputs"]) -> Tree:
    """Return critics the outputs of whose heads are larger by an amount."""
    return eqx.tree_at(
        lambda critics: _stacked(critics).head.bias, critics, replace_fn=amount.__add__
    )


def ensemble_size(critics: Tree) -> int:
    """Return the number of critics."""
    return len(jax.tree.leaves(_stacked(critics))[0])


def _is_hidden(part: Tree) -> bool:
    return isinstance(part, MLP | PerSample)


def _replace_dropout(mlp: MLP, dropout: Dropout | None) -> MLP:
    return eqx.tree_at(
        lambda mlp: mlp.dropout, mlp, dropout, is_leaf=lambda part: part is mlp.dropout
    )


def _stacked(critics: Tree) -> Tree:
    return critics.members if isinstance(critics, Critics) else critics
