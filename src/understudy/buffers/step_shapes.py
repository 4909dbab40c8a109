"""What one stored step looks like, whichever container holds it."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from understudy.types import ArraySpec, Spec, Transition


def row_shapes(spec: Spec) -> Any:
    """Shape and dtype of each fact of one step, as a Transition."""

    def shape(array: ArraySpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype)

    observation, flag = shape(spec.observation), jax.ShapeDtypeStruct((), jnp.bool_)
    reward = jax.ShapeDtypeStruct((), jnp.float32)
    facts: Any = (observation, shape(spec.action.stored), reward, flag, flag, observation)
    return Transition(*facts)


def size_of_rows(spec: Spec) -> int:
    """Bytes of one stored step."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(row_shapes(spec)))
