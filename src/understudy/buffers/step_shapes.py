"""Shapes of one stored step."""

from typing import Any

import jax
import jax.numpy as jnp

from understudy.types import ArraySpec, Spec, Step


def row_shapes(spec: Spec) -> Any:
    """Shape and dtype of each fact of one step, as a Step."""

    def shape(array: ArraySpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype)

    observation, flag = shape(spec.observation), jax.ShapeDtypeStruct((), jnp.bool_)
    reward = jax.ShapeDtypeStruct((), jnp.float32)
    facts: Any = (observation, shape(spec.action.stored), reward, flag, flag, observation)
    return Step(*facts)
