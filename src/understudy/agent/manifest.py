"""The manifest of a checkpoint, which is checked as a whole before anything is made from it.

Anybody can compute the checksum of a manifest, so it may hold anything. A manifest that this
library would not write is a CheckpointError, and the checkpoint before it is tried. Some inputs
cannot be stored in a file, or a file must not decide them: the caller of `load` gives those.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from understudy import __version__
from understudy.algorithms import available
from understudy.algorithms.base import LossAddon
from understudy.algorithms.config import shown_name
from understudy.distributed.config import Cluster
from understudy.envs import env_changes
from understudy.envs.arguments import check_env_args
from understudy.envs.fault_guard import Guard
from understudy.envs.make import resolve, without_environment
from understudy.envs.names import refuse_foreign_module
from understudy.networks import Networks
from understudy.ops.schedules import Curve, Schedule, from_description
from understudy.qd.config import MAPElitesConfig, PGAMEConfig
from understudy.qd.run import Position as QDPosition
from understudy.runs import callbacks, checkpoint, schema
from understudy.runs.schema import Kind, optional, table, text, whole
from understudy.training.snapshot import Position, Snapshot
from understudy.types import CheckpointError, EnvironmentError, Spec

LARGEST = 2**53  # of a count
MOST_NUMBERS = 2**28  # of one observation or action

# Method of quality-diversity -> the class that loads it, and its config.
QD_METHODS = {"pga-me": ("PGAME", PGAMEConfig), "map-elites": ("MAPElites", MAPElitesConfig)}

COMMON: dict[str, Kind] = {
    "format": whole(checkpoint.FORMAT, checkpoint.FORMAT),
    "files": table,
    "sha256": text,
    "understudy": text,
    "algorithm": text,
    "env": optional(text),
    "env_args": table,
    "preset": text,
    "seed": whole(0, 2**32 - 1),
    "env_workers": whole(0, 1_024),
    "guard": table,
    "cluster": optional(table),
    "run": text,
    "config": table,
    "spec": table,
    "position": table,
    "callbacks": callbacks.is_state,
}
AGENT = COMMON | {
    "num_seeds": whole(1, 2**16),
    "num_envs": whole(1, 2**20),
    "own_networks": schema.flag,
    "loss_addons": schema.list_of(text),
    "schedules": table,
    "set_by_hand": schema.list_of(text),
    "scores": optional(schema.list_of(lambda value: isinstance(value, int | float))),
    "scored_at": optional(whole(0, LARGEST)),
    "draws": whole(0, LARGEST),
    "env_changes": env_changes.is_state,
}
QD = COMMON | {"descriptor": optional(text), "described_by": table, "cells": table}


@final
@dataclasses.dataclass(frozen=True)
class Manifest:
    """The inputs from which an agent, or a quality-diversity run, is restored."""

    stored: checkpoint.Stored
    config: Any
    spec: Spec
    env_args: dict[str, Any]
    guard: Guard
    cluster: Cluster | None
    position: Any
    schedules: dict[str, Curve | None]  # None for a user's own function

    @property
    def about(self) -> dict[str, Any]:
        return self.stored.manifest

    @property
    def snapshot(self) -> Snapshot:
        groups = self.stored.groups
        stored = (groups["learner"], groups.get("world"), self.about["env_changes"])
        return Snapshot(self.position, *stored)

    @property
    def resources(self) -> dict[str, Any]:
        """The stored arguments of the constructor that need no further check."""
        names = ("seed", "num_seeds", "num_envs", "env_workers")
        stored = {name: self.about[name] for name in names if name in self.about}
        return stored | {"guard": self.guard}

    @property
    def curves(self) -> dict[str, Curve]:
        """The schedules that are stored: those that are not a user's own functions."""
        return {name: curve for name, curve in self.schedules.items() if curve is not None}

    def check_inputs(
        self,
        networks: Networks | None,
        loss_addons: tuple[LossAddon, ...],
        schedules: Mapping[str, Schedule],
    ) -> None:
        """Refuse an agent that needs inputs which were not given; name all of them."""
        missing, stored_addons = [], self.about["loss_addons"]
        if networks is None and self.about["own_networks"]:
            missing.append("networks")
        if [addon_name(addon) for addon in loss_addons] != stored_addons:
            missing.append(f"loss_addons ({', '.join(stored_addons) or 'none'})")
        not_stored = {name for name, curve in self.schedules.items() if curve is None}
        if absent := sorted(not_stored - schedules.keys()):
            missing.append(f"schedules ({', '.join(absent)})")
        self.refuse_missing(missing, "us.load")

    def refuse_missing(self, missing: list[str], function: str) -> None:
        """Refuse a checkpoint if inputs of `function` are missing."""
        if missing:
            raise CheckpointError(
                f"{self.stored.place} needs what cannot be stored in it: give {function}(…) its "
                f"{', '.join(missing)}"
            )

    def refuse_other_spec(self, done: str, found: Spec) -> None:
        """Refuse an environment that differs from the one of the checkpoint."""
        if found != self.spec:
            raise CheckpointError(
                f"{self.stored.place} was {done} on another environment: it expects {self.spec}, "
                f"this one has {found}"
            )

    def choose_cluster(self, given: Cluster | None) -> Cluster | None:
        """Return the given cluster, or else the stored one. A file must not decide which address
        this process connects to."""
        if given is None and self.cluster is not None and self.cluster.address is not None:
            raise CheckpointError(
                f"{self.stored.place} ran on the Ray at {self.cluster.address!r}, which a file "
                "alone must not decide: give cluster=us.Cluster(…, address=…) to go on there "
                "(--address), or us.Cluster() to use it here"
            )
        return self.cluster if given is None else given

    def choose_env_args(self, env: Any, given: Any, trusted: bool) -> dict[str, Any]:
        """Return the given arguments, or else the stored ones, unless another environment is
        given. A file alone must decide neither a module to import nor a file to open."""
        name, stored = self.about["env"], self.env_args
        if env is None and name is not None and not trusted:
            refuse_foreign_module(name, stored if given is None else {})
        if given is not None:
            return check_env_args(given)
        return stored if env is None or (isinstance(env, str) and env == name) else {}

    def choose_environment(self, given: Any, env_args: dict[str, Any]) -> Any:
        """Return the given environment, or else the stored one; one that cannot be made is replaced
        by a source that explains it when the agent needs an environment."""
        if given is not None:
            return given
        name = self.about["env"]
        if name is None:
            return without_environment(self.spec, "give us.load(…) its env (--env module:Class)")
        try:
            return resolve(name, self.about["num_envs"], env_args=env_args)
        except EnvironmentError as error:
            return without_environment(self.spec, str(error))


def addon_name(addon: LossAddon) -> str:
    """The name under which a checkpoint lists a loss addon."""
    return getattr(addon, "__name__", type(addon).__name__)


def describe_setup(owner: Any, algorithm: str, spec: Spec) -> dict[str, Any]:
    """Return the part of a manifest that agents and illuminations share, from their attributes."""
    return {
        "understudy": __version__,
        "algorithm": algorithm,
        "env": owner.env_name,
        "env_args": owner.env_args,
        "preset": owner.preset,
        "seed": owner.seed,
        "env_workers": owner.env_workers,
        "guard": dataclasses.asdict(owner.guard),
        "cluster": owner.cluster and dataclasses.asdict(owner.cluster),
        "run": owner.run_id,
        "config": dataclasses.asdict(owner.config),
        "spec": dataclasses.asdict(spec),
    }


def describe_agent(agent: Any) -> dict[str, Any]:
    """Return the part of a manifest that describes an agent, without its schedules."""
    algorithm = agent.algorithm
    return describe_setup(agent, algorithm.name, agent.spec) | {
        "num_seeds": agent.num_seeds,
        "num_envs": agent.num_envs,
        "own_networks": algorithm.networks != Networks(),
        "loss_addons": [addon_name(addon) for addon in algorithm.loss_addons],
    }


def read(path: str | Path, wanted: str | None = None, config_class: type | None = None) -> Manifest:
    """Read the newest good checkpoint of an agent, or of the `wanted` algorithm, whose
    `config_class` may be a user's own."""

    def check(stored: checkpoint.Stored) -> Manifest:
        found = _algorithm_name(stored)
        if wanted is not None and found != wanted:
            raise CheckpointError(
                f"{path} is a checkpoint of {shown_name(found)}, not of {shown_name(wanted)}"
            )
        if wanted is None and found in QD_METHODS:
            raise CheckpointError(
                f"{path} holds a repertoire: load it with us.{QD_METHODS[found][0]}.load, and "
                "select an agent"
            )
        return parse(stored, config_class)

    return checkpoint.read_checked(path, check)


def _algorithm_name(stored: checkpoint.Stored) -> str:
    name = stored.manifest.get("algorithm")
    return name if isinstance(name, str) else "an unknown algorithm"


def parse(stored: checkpoint.Stored, config_class: type | None = None) -> Manifest:
    """Return the whole manifest, or raise a CheckpointError."""
    about, place = stored.manifest, stored.place
    explores = _algorithm_name(stored) in QD_METHODS
    wrong = schema.problems(about, QD if explores else AGENT)
    if "learner" not in stored.groups:
        wrong.append("no arrays of a learner")
    if wrong:
        raise CheckpointError(f"{place} is no checkpoint of an agent: {'; '.join(wrong[:5])}")
    try:
        return _parse(stored, explores, config_class)
    except Exception as error:  # any error comes from a value in the file
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(f"{place} is damaged: {problem[:300]}") from error


def _parse(stored: checkpoint.Stored, explores: bool, config_class: Any) -> Manifest:
    about = stored.manifest
    name = about["algorithm"]
    if explores:
        config_class = QD_METHODS[name][1]
    elif config_class is None and name in available():
        config_class = available()[name].config_class
    elif config_class is None:
        raise ValueError(
            f"there is no algorithm {name!r:.60} (one of your own is loaded by its class: "
            "MyAgent.load)"
        )
    spec = Spec.from_dict(about["spec"])
    _check_spec(spec)
    curves = about.get("schedules", {})
    return Manifest(
        stored=stored,
        config=config_class(**about["config"]),
        spec=spec,
        env_args=check_env_args(about["env_args"]),
        guard=Guard(**about["guard"]),
        cluster=None if about["cluster"] is None else Cluster(**about["cluster"]),
        position=_position(QDPosition if explores else Position, about["position"]),
        schedules={
            name: None if curve is None else from_description(curve)
            for name, curve in curves.items()
        },
    )


def _position(kind: type, stored: Mapping[str, Any]) -> Any:
    """Check that counters are whole numbers from 0 on. An older file may lack some."""
    stored = dataclasses.asdict(kind()) | dict(stored)
    kinds: dict[type, Kind] = {
        int: whole(0, LARGEST),
        float: lambda value: schema.number(value) and value >= 0,
    }
    wanted = {field.name: kinds[field.type] for field in dataclasses.fields(kind)}  # type: ignore
    wrong = schema.problems(stored, wanted)
    if wrong:
        raise ValueError(f"position: {'; '.join(wrong)}")
    return kind(**stored)


def _check_spec(spec: Spec) -> None:
    """Check that observations and actions are such as environments have."""
    side = whole(0, MOST_NUMBERS)
    for what, array in (("observation", spec.observation), ("action", spec.action.stored)):
        good = isinstance(array.shape, tuple) and all(map(side, array.shape))
        if not good or math.prod(array.shape) > MOST_NUMBERS or not text(array.dtype):
            raise ValueError(f"an {what} of shape {array.shape!r:.60} and {array.dtype!r:.60}")
