"""The inputs of a stored agent or repertoire that a file cannot hold, or must not decide."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from understudy.algorithms.base import LossAddon
from understudy.distributed.config import Cluster
from understudy.envs.make import resolve, without_environment
from understudy.envs.names import refuse_foreign_module
from understudy.networks import Networks
from understudy.ops.schedules import Schedule
from understudy.types import CheckpointError, EnvironmentError, Spec


def addon_name(addon: LossAddon) -> str:
    """The name under which a checkpoint lists a loss addon."""
    return getattr(addon, "__name__", type(addon).__name__)


def check_inputs(
    path: Path,
    about: Mapping[str, Any],
    networks: Networks | None,
    loss_addons: tuple[LossAddon, ...],
    schedules: Mapping[str, Schedule],
) -> None:
    """Refuse a checkpoint that needs inputs which were not given; name all of them."""
    missing = []
    if networks is None and about["own_networks"]:
        missing.append("networks")
    if [addon_name(addon) for addon in loss_addons] != about["loss_addons"]:
        missing.append(f"loss_addons ({', '.join(about['loss_addons']) or 'none'})")
    not_stored = {name for name, curve in about["schedules"].items() if curve is None}
    if absent := sorted(not_stored - schedules.keys()):
        missing.append(f"schedules ({', '.join(absent)})")
    refuse_missing(path, missing, "us.load")


def refuse_missing(path: Path, missing: list[str], function: str) -> None:
    """Refuse a checkpoint if inputs of `function` are missing."""
    if missing:
        raise CheckpointError(
            f"{path} needs what cannot be stored in it: give {function}(…) its {', '.join(missing)}"
        )


def refuse_other_spec(path: Path, done: str, expected: Spec, found: Spec) -> None:
    """Refuse an environment that differs from the one of the checkpoint."""
    if found != expected:
        raise CheckpointError(
            f"{path} was {done} on another environment: it expects {expected}, this one has {found}"
        )


def choose_cluster(path: Path, stored: Cluster | None, given: Cluster | None) -> Cluster | None:
    """Return the given cluster, or else the stored one. A file must not decide which address this
    process connects to."""
    if given is None and stored is not None and stored.address is not None:
        raise CheckpointError(
            f"{path} ran on the Ray at {stored.address!r}, which a file alone must not decide: "
            "give cluster=us.Cluster(…, address=…) to go on there (--address), or us.Cluster() to "
            "use it here"
        )
    return stored if given is None else given


def choose_environment(about: Mapping[str, Any], given: Any, spec: Spec, trusted: bool) -> Any:
    """Return the given environment, or else the stored one; one that cannot be made is replaced by
    a source that explains it when the agent needs an environment."""
    if given is not None:
        return given
    if about["env"] is None:
        return without_environment(spec, "give us.load(…) its env (--env module:Class)")
    if not trusted:
        refuse_foreign_module(about["env"])
    try:
        return resolve(about["env"], about["num_envs"])
    except EnvironmentError as error:
        return without_environment(spec, str(error))
