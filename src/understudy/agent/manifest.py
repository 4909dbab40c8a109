"""What the manifest of a checkpoint says, checked as a whole before anything is made from it.

A manifest is signed by a checksum that anybody can compute, so it may say anything. Whatever is not
what this library writes is a CheckpointError, and the checkpoint before it is tried.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from understudy.algorithms import available
from understudy.algorithms.config import shown_name
from understudy.distributed.config import Cluster
from understudy.envs.fault_guard import Guard
from understudy.ops.schedules import Curve, from_description
from understudy.qd.config import MAPElitesConfig, PGAMEConfig
from understudy.qd.run import Position as QDPosition
from understudy.runs import checkpoint
from understudy.runs.schema import (
    Kind,
    flag,
    list_of,
    number,
    optional,
    problems,
    table,
    text,
    whole,
)
from understudy.training.snapshot import Position
from understudy.types import CheckpointError, Spec

LARGEST = 2**53  # a count beyond it is no count
MOST_NUMBERS = 2**28  # of one observation or action

# What is no agent: which class loads it, and its config.
EXPLORERS = {"pga-me": ("PGAME", PGAMEConfig), "map-elites": ("MAPElites", MAPElitesConfig)}

COMMON: dict[str, Kind] = {
    "format": whole(checkpoint.FORMAT, checkpoint.FORMAT),
    "files": table,
    "sha256": text,
    "understudy": text,
    "algorithm": text,
    "env": optional(text),
    "preset": text,
    "seed": whole(0, 2**32 - 1),
    "env_workers": whole(0, 1_024),
    "guard": table,
    "cluster": optional(table),
    "run": text,
    "config": table,
    "spec": table,
    "position": table,
}
AGENT = COMMON | {
    "num_seeds": whole(1, 2**16),
    "num_envs": whole(1, 2**20),
    "own_networks": flag,
    "loss_addons": list_of(text),
    "schedules": table,
    "set_by_hand": list_of(text),
    "scores": optional(list_of(lambda value: isinstance(value, int | float))),
    "draws": whole(0, LARGEST),
}
QD = COMMON | {"descriptor": optional(text), "described_by": table, "cells": table}


class Manifest(NamedTuple):
    """What an agent, or a quality-diversity run, is made from again."""

    about: dict[str, Any]
    config: Any
    spec: Spec
    guard: Guard
    cluster: Cluster | None
    position: Any
    schedules: dict[str, Curve | None]  # None for one that only its name is known of


def read(
    path: str | Path, wanted: str | None = None, config_class: type | None = None
) -> tuple[checkpoint.Stored, Manifest]:
    """The newest good checkpoint of an agent, or of the algorithm that is `wanted`, whose
    `config_class` may be a user's own."""

    def check(stored: checkpoint.Stored) -> Manifest:
        theirs = stored.manifest.get("algorithm")
        if wanted is not None and theirs != wanted:
            raise CheckpointError(
                f"{path} is a checkpoint of {shown_name(str(theirs))}, not of {shown_name(wanted)}"
            )
        if wanted is None and isinstance(theirs, str) and theirs in EXPLORERS:
            loader = EXPLORERS[theirs][0]
            raise CheckpointError(
                f"{path} holds a repertoire: load it with us.{loader}.load, and select an agent"
            )
        return parse(stored, config_class)

    return checkpoint.read_checked(path, check)


def parse(stored: checkpoint.Stored, config_class: type | None = None) -> Manifest:
    """All of it, or a CheckpointError."""
    about, place = stored.manifest, stored.place
    name = about.get("algorithm")
    explores = isinstance(name, str) and name in EXPLORERS
    wrong = problems(about, QD if explores else AGENT)
    if "learner" not in stored.groups:
        wrong.append("no arrays of a learner")
    if wrong:
        raise CheckpointError(f"{place} is no checkpoint of an agent: {'; '.join(wrong[:5])}")
    try:
        return _parse(about, explores, config_class)
    except Exception as error:  # whatever a value leads to, it is the file that is wrong
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(f"{place} is damaged: {problem[:300]}") from error


def _parse(about: dict[str, Any], explores: bool, config_class: Any) -> Manifest:
    name = about["algorithm"]
    if explores:
        config_class = EXPLORERS[name][1]
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
        about=about,
        config=config_class(**about["config"]),
        spec=spec,
        guard=Guard(**about["guard"]),
        cluster=None if about["cluster"] is None else Cluster(**about["cluster"]),
        position=_position(QDPosition if explores else Position, about["position"]),
        schedules={
            name: None if curve is None else from_description(curve)
            for name, curve in curves.items()
        },
    )


def _position(kind: type, stored: Mapping[str, Any]) -> Any:
    """Counters are whole numbers from 0 on. An older file may lack some."""
    stored = dataclasses.asdict(kind()) | dict(stored)
    count = whole(0, LARGEST)
    schema = {
        field.name: (lambda value: number(value) and value >= 0) if field.type is float else count
        for field in dataclasses.fields(kind)
    }
    wrong = problems(stored, schema)
    if wrong:
        raise ValueError(f"position: {'; '.join(wrong)}")
    return kind(**stored)


def _check_spec(spec: Spec) -> None:
    """Its arrays are such as environments have."""
    side = whole(0, MOST_NUMBERS)
    for what, array in (("observation", spec.observation), ("action", spec.action.stored)):
        good = isinstance(array.shape, tuple) and all(map(side, array.shape))
        if not good or math.prod(array.shape) > MOST_NUMBERS or not text(array.dtype):
            raise ValueError(f"an {what} of shape {array.shape!r:.60} and {array.dtype!r:.60}")
