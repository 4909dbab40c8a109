"""A repertoire on disk, in the format of checkpoints: the filled cells alone, with their numbers.

`pack` and `unpack` are for whoever keeps a repertoire among other arrays.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from understudy.errors import CheckpointError, ConfigError
from understudy.qd.repertoire import Repertoire, empty
from understudy.qd.tessellation import Cells, Cvt, Grid
from understudy.runs import checkpoint
from understudy.state_dict import StateDict, load_state_dict, state_dict
from understudy.types import Tree

CELL, CENTROIDS = "cell", "centroids"


class Kept(NamedTuple):
    repertoire: Repertoire
    about: dict[str, Any]


def save_repertoire(path: Path | str, repertoire: Repertoire, about: Mapping[str, Any]) -> Path:
    """Writes the directory `path`; `about` is for the reader, and must be fit for JSON."""
    groups = {"learner": pack(repertoire)}
    return checkpoint.write(
        path, groups, {"repertoire": describe_cells(repertoire.cells), "about": dict(about)}
    )


def load_repertoire(path: Path | str, policy_template: Tree, cells: Cells | None = None) -> Kept:
    """The repertoire at `path`, of policies like `policy_template`, a single one. Where `cells` are
    given, it must have these."""
    stored = checkpoint.read(path)
    if "repertoire" not in stored.manifest:
        raise CheckpointError(f"{path} is a checkpoint, but not of a repertoire")
    arrays = stored.groups.get("learner", {})
    found = read_cells(path, stored.manifest["repertoire"], arrays)
    if cells is not None:
        refuse_other_cells(path, found, cells)
    try:
        repertoire = unpack(arrays, found, policy_template)
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit: {error}") from error
    return Kept(repertoire, stored.manifest.get("about", {}))


def pack(repertoire: Repertoire) -> StateDict:
    """Arrays by name, all finite: [filled, ...] each, and the centroids of a CVT."""
    cell = np.flatnonzero(repertoire.filled).astype(np.int32)
    arrays = {CELL: cell} | state_dict(jax.tree.map(lambda x: x[cell], _held(repertoire)))
    if isinstance(repertoire.cells, Cvt):
        arrays[CENTROIDS] = np.array(repertoire.cells.centroids)
    return arrays


def unpack(arrays: StateDict, cells: Cells, policy_template: Tree) -> Repertoire:
    """The repertoire that was packed, to the bit."""
    arrays = {name: array for name, array in arrays.items() if name != CENTROIDS}
    cell = arrays.pop(CELL, np.zeros(()))
    if cell.ndim != 1 or cell.dtype != np.int32:
        raise CheckpointError("the numbers of the filled cells are missing")
    if len(cell) and (cell[0] < 0 or cell[-1] >= cells.count or (np.diff(cell) <= 0).any()):
        raise CheckpointError(f"the numbers of the filled cells are not those of {cells}")
    fresh = empty(cells, policy_template)
    held = _held(fresh)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((len(cell), *x.shape[1:]), x.dtype), held)
    stored = load_state_dict(shapes, arrays)
    return Repertoire(
        **jax.tree.map(lambda all_, some: all_.at[cell].set(some), held, stored), cells=fresh.cells
    )


def refuse_other_cells(path: Path | str, found: Cells, wanted: Cells) -> None:
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


def _held(repertoire: Repertoire) -> dict[str, Tree]:
    names = ("policies", "fitness", "descriptor", "born")
    return {name: getattr(repertoire, name) for name in names}


def describe_cells(cells: Cells) -> dict[str, Any]:
    bounds = {"low": cells.low, "high": cells.high}
    if isinstance(cells, Grid):
        return {"kind": "grid", "shape": cells.shape, **bounds}
    return {"kind": "cvt", **bounds}


def read_cells(path: Path | str, stored: Any, arrays: StateDict) -> Cells:
    try:
        bounds = [tuple(map(float, stored[name])) for name in ("low", "high")]
        if stored["kind"] == "grid":
            return Grid(tuple(map(int, stored["shape"])), *bounds)
        return Cvt(jnp.asarray(arrays[CENTROIDS], jnp.float32), *bounds)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"{path} does not say which cells it has: {error!r}") from error
