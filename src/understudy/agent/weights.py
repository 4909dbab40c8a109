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
        if jax.tree.structure(given[name]) != jax.tree.structure(present[name]):
            raise ConfigError(f"weights of {name}: not the structure of this network")
        pairs = zip(jax.tree.leaves(given[name]), jax.tree.leaves(present[name]), strict=True)
        for new, old in pairs:
            if np.shape(new) != np.shape(old):
                raise ConfigError(
                    f"weights of {name}: shape {np.shape(new)} where {np.shape(old)} is needed"
                )
            if not np.all(np.isfinite(new)):
                raise ConfigError(f"weights of {name} are not all finite")
