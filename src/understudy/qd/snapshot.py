"""The state of an illumination as arrays of a checkpoint, and back. Of a repertoire there are the
filled cells with their numbers."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from understudy.errors import CheckpointError, ConfigError
from understudy.qd.illuminators import Illuminator
from understudy.qd.repertoire import Repertoire
from understudy.qd.run import Position
from understudy.qd.tessellation import Cells, Cvt, Grid
from understudy.runs import checkpoint
from understudy.state_dict import StateDict, add_prefix, load_state_dict, select_prefix, state_dict

CELL, CENTROIDS = "cell", "centroids"  # names of arrays
FILLED = ("policies", "fitness", "descriptor", "born")  # fields of a repertoire
REST = ("key", "generation", "offset", "counts")  # fields of the state, small ones


def capture(
    illuminator: Illuminator, position: Position, experience: bool = True
) -> tuple[dict[str, StateDict], dict[str, Any]]:
    """Return the groups of arrays and a part of the manifest for a checkpoint. Without the
    experience its repertoire can be used, but the run cannot resume."""
    state = illuminator.state
    world = add_prefix("repertoire", pack(state.repertoire))
    world |= add_prefix("rest", state_dict(_fields(state, REST)))
    if state.experience is not None and experience:
        one_seed = jax.tree.map(lambda x: x[None], state.experience)
        world |= add_prefix("experience", illuminator.plan.buffer.state_dict(one_seed))
    learner = add_prefix("emitter", state_dict(state.emitter))
    about = {"position": asdict(position), "cells": describe_cells(state.repertoire.cells)}
    return {"learner": learner, "world": world}, about


def restore(illuminator: Illuminator, stored: checkpoint.Stored) -> bool:
    """Take over the state of a checkpoint, before the first generation; return whether the run can
    resume from it."""
    state, world = illuminator.state, stored.groups["world"]
    arrays = select_prefix(world, "repertoire")
    cells = read_cells(stored.place, stored.manifest.get("cells"), arrays)
    refuse_other_cells(stored.place, cells, state.repertoire.cells)
    rest = load_state_dict(_fields(state, REST), select_prefix(world, "rest"))
    experience, steps = state.experience, select_prefix(world, "experience")
    if experience is not None and steps:
        one_seed = jax.tree.map(lambda x: x[None], experience)
        one_seed = illuminator.plan.buffer.load_state_dict(one_seed, steps)
        experience = jax.tree.map(lambda x: x[0], one_seed)
    illuminator.state = state._replace(
        repertoire=unpack(arrays, state.repertoire),
        emitter=load_state_dict(state.emitter, select_prefix(stored.groups["learner"], "emitter")),
        experience=experience,
        **rest,
    )
    return experience is None or bool(steps)


def pack(repertoire: Repertoire) -> StateDict:
    """Return arrays by name, all finite: [filled, ...] each, and the centroids of a CVT."""
    cell = np.flatnonzero(repertoire.filled).astype(np.int32)
    filled = jax.tree.map(lambda x: x[cell], _fields(repertoire, FILLED))
    arrays = {CELL: cell} | state_dict(filled)
    if isinstance(repertoire.cells, Cvt):
        arrays[CENTROIDS] = np.array(repertoire.cells.centroids)
    return arrays


def unpack(arrays: StateDict, empty: Repertoire) -> Repertoire:
    """Return the repertoire that was packed, bit for bit, from an empty one."""
    arrays = {name: array for name, array in arrays.items() if name != CENTROIDS}
    cell, cells = arrays.pop(CELL, np.zeros(())), empty.cells
    if cell.ndim != 1 or cell.dtype != np.int32:
        raise CheckpointError("the numbers of the filled cells are missing")
    if len(cell) and (cell[0] < 0 or cell[-1] >= cells.count or (np.diff(cell) <= 0).any()):
        raise CheckpointError(f"the numbers of the filled cells are not those of {cells}")
    fields = _fields(empty, FILLED)
    stored = load_state_dict(jax.tree.map(lambda x: x[cell], fields), arrays)
    fields = jax.tree.map(lambda all_, some: all_.at[cell].set(some), fields, stored)
    return Repertoire(**fields, cells=cells)


def _fields(owner: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in names}


def refuse_other_cells(path: Path | str, found: Cells, wanted: Cells) -> None:
    """Refuse a file whose cells are not the wanted ones."""
    if str(found) != str(wanted):
        raise CheckpointError(
            f"{path} holds {found}, not {wanted}: ask for the same, or start anew"
        )
    same = (found.low, found.high) == (wanted.low, wanted.high)
    if not same or not np.array_equal(found.centers, wanted.centers):
        raise CheckpointError(
            f"{path} holds {found} with other {'centroids' if same else 'bounds'}: ask for the "
            "same (a CVT: its seed and samples), or start anew"
        )


def describe_cells(cells: Cells) -> dict[str, Any]:
    """Describe cells for a manifest. The centroids of a CVT are stored as an array."""
    bounds = {"low": cells.low, "high": cells.high}
    if isinstance(cells, Grid):
        return {"kind": "grid", "shape": cells.shape, **bounds}
    return {"kind": "cvt", **bounds}


def read_cells(path: Path | str, stored: Any, arrays: StateDict) -> Cells:
    """Return the cells that a manifest and the arrays describe."""
    try:
        bounds = [tuple(map(float, stored[name])) for name in ("low", "high")]
        if stored["kind"] == "grid":
            return Grid(tuple(map(int, stored["shape"])), *bounds)
        return Cvt(jnp.asarray(arrays[CENTROIDS], jnp.float32), *bounds)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"{path} does not say which cells it has: {error!r}") from error
