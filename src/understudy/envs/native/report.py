"""The report of a step, which is the same for all environments that count their steps."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from understudy.envs.base import NativeStep


def report_step(
    env: Any, state: Any, reward: Array, terminated: Array | bool = False
) -> NativeStep:
    """Report a step that led to `state`; it is truncated at the time limit.

    `env` has `observe(state)` and `max_steps`, and `state.steps` counts the steps of the episode.
    """
    truncated = state.steps >= env.max_steps
    return NativeStep(state, env.observe(state), reward, jnp.asarray(terminated), truncated)
