"""Check the weights that a user gives to an agent."""

from typing import Any

import jax
import numpy as np

from understudy.types import ConfigError


def check_weights(given: dict[str, Any], present: dict[str, Any]) -> None:
    """Refuse weights that do not have the structure and the shapes of the present ones."""
    if not isinstance(given, dict) or given.keys() != present.keys():
        raise ConfigError(f"weights must be a dict of {', '.join(present)}")
    for name in present:
        leaves, structure = jax.tree.flatten(present[name])
        if jax.tree.structure(given[name]) != structure:
            raise ConfigError(f"weights of {name}: not the structure of this network")
        for new, old in zip(jax.tree.leaves(given[name]), leaves, strict=True):
            shape, wanted = np.shape(new), np.shape(old)
            if shape != wanted:
                raise ConfigError(f"weights of {name}: shape {shape} where {wanted} is needed")
            if not np.all(np.isfinite(new)):
                raise ConfigError(f"weights of {name} are not all finite")
