"""What a user hands in again: things that no file can hold, and weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import jax
import numpy as np

from understudy.algorithms.base import LossAddon
from understudy.networks import Networks
from understudy.ops.schedules import Schedule
from understudy.types import CheckpointError, ConfigError


@final
@dataclass(frozen=True)
class Handed:
    """To `us.load`: what its checkpoint can only name."""

    env: Any
    networks: Networks | None
    loss_addons: tuple[LossAddon, ...]
    schedules: dict[str, Schedule]
    cluster: Any = None
    trust_environment: bool = False

    def check(self, path: str | Path, about: dict[str, Any]) -> None:
        """Refuse, naming all of it, a checkpoint that needs more than was handed in."""
        missing = []
        if self.networks is None and about["own_networks"]:
            missing.append("networks")
        if [name_of(addon) for addon in self.loss_addons] != about["loss_addons"]:
            missing.append(f"loss_addons ({', '.join(about['loss_addons']) or 'none'})")
        unwritten = {name for name, curve in about["schedules"].items() if curve is None}
        forgotten = sorted(unwritten - self.schedules.keys())
        if forgotten:
            missing.append(f"schedules ({', '.join(forgotten)})")
        if missing:
            raise CheckpointError(
                f"{path} needs what cannot be stored in it: "
                f"give us.load(…) its {', '.join(missing)}"
            )


def name_of(addon: LossAddon) -> str:
    return getattr(addon, "__name__", type(addon).__name__)


def check_weights(given: dict[str, Any], present: dict[str, Any]) -> None:
    """Refuse weights that are not the networks' own shape."""
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
