"""A repertoire as named arrays of a checkpoint: the filled cells with their numbers."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from understudy.errors import CheckpointError, ConfigError
from understudy.qd.repertoire import Repertoire, empty
from understudy.qd.tessellation import Cells, Cvt, Grid
from understudy.state_dict import StateDict, load_state_dict, state_dict
from understudy.types import Tree

CELL, CENTROIDS = "cell", "centroids"


def pack(repertoire: Repertoire) -> StateDict:
    """Return arrays by name, all finite: [filled, ...] each, and the centroids of a CVT."""
    cell = np.flatnonzero(repertoire.filled).astype(np.int32)
    arrays = {CELL: cell} | state_dict(jax.tree.map(lambda x: x[cell], _filled_arrays(repertoire)))
    if isinstance(repertoire.cells, Cvt):
        arrays[CENTROIDS] = np.array(repertoire.cells.centroids)
    return arrays


def unpack(arrays: StateDict, cells: Cells, policy_template: Tree) -> Repertoire:
    """Return the repertoire that was packed, bit for bit."""
    arrays = {name: array for name, array in arrays.items() if name != CENTROIDS}
    cell = arrays.pop(CELL, np.zeros(()))
    if cell.ndim != 1 or cell.dtype != np.int32:
        raise CheckpointError("the numbers of the filled cells are missing")
    if len(cell) and (cell[0] < 0 or cell[-1] >= cells.count or (np.diff(cell) <= 0).any()):
        raise CheckpointError(f"the numbers of the filled cells are not those of {cells}")
    fresh = empty(cells, policy_template)
    fields = _filled_arrays(fresh)
    stored = load_state_dict(
        jax.tree.map(lambda x: jax.ShapeDtypeStruct((len(cell), *x.shape[1:]), x.dtype), fields),
        arrays,
    )
    fields = jax.tree.map(lambda all_, some: all_.at[cell].set(some), fields, stored)
    return Repertoire(**fields, cells=fresh.cells)


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


def _filled_arrays(repertoire: Repertoire) -> dict[str, Tree]:
    names = ("policies", "fitness", "descriptor", "born")
    return {name: getattr(repertoire, name) for name in names}


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
