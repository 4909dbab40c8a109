"""Pieces that learners are put together from: step sizes, optimisers, parts that are not always
due."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from understudy.algorithms.base import Index
from understudy.algorithms.config import Config
from understudy.networks.encoders import Borrowed, lend, with_senses
from understudy.networks.ensembles import chosen, size_of
from understudy.types import Key, Scalar, Tree


def initial_hyper(config: Config) -> dict[str, Scalar]:
    """The moving hyper-parameters as arrays, for `state.hyper`."""
    return {name: jnp.float32(value) for name, value in config.moving().items()}


def learning_rate(hyper: dict[str, Scalar], network: str) -> Scalar:
    """The network's own learning rate, or the common one."""
    return hyper.get(f"{network}_learning_rate", hyper["learning_rate"])


def adam(max_grad_norm: float | None) -> optax.GradientTransformation:
    """Adam's direction; the step size comes from `state.hyper` when it is taken."""
    if max_grad_norm is None:
        return optax.scale_by_adam()
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.scale_by_adam())


def descend(
    optimiser: optax.GradientTransformation,
    gradients: Tree,
    moments: Tree,
    parameters: Tree,
    step_size: Scalar,
) -> tuple[Tree, Tree]:
    """One optimiser step: the new parameters and moments."""
    direction, moments = optimiser.update(gradients, moments)
    parameters = jax.tree.map(lambda p, d: p - step_size * d, parameters, direction)
    return parameters, moments


def every(index: Index, interval: int) -> Bool[Array, ""] | bool:
    """Whether update `index` is one of every `interval`; plainly True when each one is."""
    return True if interval == 1 else index % interval == 0


def when(due: Bool[Array, ""] | bool, compute: Callable[[], Any], otherwise: Callable[[], Any]):
    """`compute()` if due, else `otherwise()`: only the branch taken costs anything."""
    if isinstance(due, bool):
        return compute() if due else otherwise()
    return jax.lax.cond(due, compute, otherwise)


def absent(compute: Callable[[], tuple[Tree, Tree]]) -> tuple[Tree, Tree]:
    """What a skipped part contributes in place of `compute()`, a gradient and its metrics: no
    gradient, and metrics that no mean will count."""
    gradient, metrics = jax.eval_shape(compute)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), gradient)
    return zeros, jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), metrics)


def mean_over_steps(
    value: Float[Array, "*critics batch"], weight: Float[Array, " batch"]
) -> Scalar:
    """The mean over rows that are steps, for metrics. NaN, which no mean counts, if there are
    none."""
    return jnp.mean(value, where=weight > 0)


def hard_copy(tree: Tree) -> Tree:
    """The same values in buffers of their own: donated buffers must not be shared."""
    return jax.tree.map(jnp.copy, tree)


def drawn_critics(critics: Tree, count: int | None, key: Key) -> Tree:
    """`count` of the stacked critics, drawn at random; all of them without a count.

    The key must be the whole batch's, not a row's: every shard asks the same critics."""
    if count is None:
        return critics
    drawn = jax.random.choice(key, size_of(critics), (count,), replace=False)
    return chosen(critics, drawn)


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


def add_shared(critic_gradient: Any, shared: Tree | None) -> Any:
    """The critics' gradient, with the actor's share in their senses."""
    if shared is None:
        return critic_gradient
    both = jax.tree.map(jnp.add, critic_gradient.senses, shared)
    return with_senses(critic_gradient, both)


def rmsprop(
    max_grad_norm: float | None, decay: float, epsilon: float, epsilon_inside_root: bool
) -> optax.GradientTransformation:
    """RMSprop's direction. Where ε stands decides how the first steps go, and with them whether
    A2C is stable: g/√(v + ε) inside the root, g/(√v + ε) outside."""
    direction = optax.scale_by_rms(decay, epsilon, eps_in_sqrt=epsilon_inside_root)
    if max_grad_norm is None:
        return direction
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), direction)
