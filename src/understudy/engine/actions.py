"""Actions on the device: uniform ones, and the map to a native environment's real bounds."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from understudy.types import Continuous, Key, Spec, Tree


def uniform_actions(spec: Spec, num_envs: int, key: Key) -> Array:
    """What `start_steps` asks for: uniform over the action space."""
    if isinstance(spec.action, Continuous):
        return jax.random.uniform(key, (num_envs, spec.action.size), minval=-1.0, maxval=1.0)
    return jax.random.randint(key, (num_envs,), 0, spec.action.n)


def to_real(action: Array, spec: Spec) -> Array:
    """From [-1, 1]^size to the environment's own, possibly asymmetric, bounds."""
    if not isinstance(spec.action, Continuous):
        return action + spec.action.start
    if not spec.action.bounded:
        return action.reshape(-1, *spec.action.shape)
    low, high = jnp.array(spec.action.low), jnp.array(spec.action.high)
    real = jnp.clip(low + 0.5 * (action + 1.0) * (high - low), low, high)
    return real.reshape(-1, *spec.action.shape)


def with_members(tree: Tree, members: int) -> Tree:
    """The same values for every member."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (members, *x.shape)), tree)
