"""Acting on the device: actions by a policy or at random, the first state of acting, and the map
to a native environment's real bounds."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from understudy.algorithms.base import Algorithm, Memory
from understudy.algorithms.optim import Flag, when
from understudy.envs.spaces import place_values
from understudy.training.seed_axis import over_seeds
from understudy.training.step_packing import extras_of
from understudy.types import Continuous, Discrete, Joint, Key, MultiDiscrete, Spec, Tree


def choose_actions(
    algorithm: Algorithm, spec: Spec, policy: Any, memory: Tree, observation: Array, first: Array,
    key: Key, random: Flag,
) -> tuple[Array, Tree, dict[str, Array]]:  # fmt: skip
    """Actions of one seed that explores, or uniform ones; also the state of acting after them, and
    the extras that the algorithm asks for."""
    names = extras_of(algorithm)

    def act() -> tuple[Array, Tree, dict[str, Array]]:
        action, after, extras = algorithm.act(policy, memory, observation, first, key, True)
        return action, after, {name: extras[name] for name in names}

    def act_randomly() -> tuple[Array, Tree, dict[str, Array]]:
        # What was seen is remembered.
        after = act()[1] if isinstance(memory, Memory) else memory
        return uniform_actions(spec, len(first), key), after, {}

    # Algorithms that ask for extras never act at random.
    return act() if names else when(random, act_randomly, act)


def uniform_actions(spec: Spec, num_envs: int, key: Key) -> Array:
    """Random actions of the first `start_steps`, uniform over the action space."""
    if isinstance(spec.action, Continuous):
        return jax.random.uniform(key, (num_envs, spec.action.size), minval=-1.0, maxval=1.0)
    if isinstance(spec.action, Discrete):
        return jax.random.randint(key, (num_envs,), 0, spec.action.n)
    choices = jnp.array(spec.action.choices)
    return jax.random.randint(key, (num_envs, len(choices)), 0, choices)


def to_real(action: Array, spec: Spec) -> Array:
    """Map actions from [-1, 1]^size to the environment's real, possibly asymmetric, bounds. If one
    of them is infinite, actions are in real units, clipped to the finite bounds."""
    if isinstance(spec.action, Joint):
        own = spec.action.of
        action = action[:, None] // jnp.array(place_values(own)) % jnp.array(own.choices)
        return to_real(action, Spec(spec.observation, own))
    if isinstance(spec.action, Discrete):
        return action + spec.action.start
    if isinstance(spec.action, MultiDiscrete):
        return (action + jnp.array(spec.action.starts)).reshape(-1, *spec.action.shape)
    low, high = jnp.array(spec.action.low), jnp.array(spec.action.high)
    real = low + 0.5 * (action + 1.0) * (high - low) if spec.action.bounded else action
    return jnp.clip(real, low, high).reshape(-1, *spec.action.shape)


def initial_memory(algorithm: Algorithm, policy: Any, num_seeds: int, num_envs: int) -> Tree:
    """The state of acting before the first step, of every seed; `policy` has a seed axis."""
    return over_seeds(lambda one: algorithm.memory(one, num_envs), num_seeds)(policy)
