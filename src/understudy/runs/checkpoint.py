"""Checkpoints: safetensors for arrays, JSON for the rest, no pickle anywhere.

A checkpoint is a directory of two files. It is written beside its place and moved there whole,
so that whoever looks finds the old one or the new one, never half of one.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse_safetensors
from safetensors.numpy import save as format_safetensors

from understudy.types import CheckpointError, Tree

FORMAT = 1
ARRAYS, MANIFEST = "state.safetensors", "checkpoint.json"


class Checkpoint(NamedTuple):
    arrays: dict[str, np.ndarray]
    manifest: dict[str, Any]


def save(path: Path | str, tree: Tree, manifest: dict[str, Any]) -> Path:
    """Write `tree` and `manifest` to the directory `path`, replacing what was there."""
    place = Path(path)
    arrays = name_leaves(tree)
    refuse_unreadable(arrays)
    refuse_non_finite(arrays)
    data = format_safetensors(arrays)
    manifest = {"format": FORMAT, **manifest, "sha256": hashlib.sha256(data).hexdigest()}
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        _write(fresh / ARRAYS, data)
        _write(fresh / MANIFEST, json.dumps(manifest, indent=2).encode())
        _move_into_place(fresh, place)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return place


def load(path: Path | str) -> Checkpoint:
    """Read and verify a checkpoint directory, or the one inside a run directory."""
    place = locate(Path(path))
    try:
        manifest = json.loads((place / MANIFEST).read_text())
        data = (place / ARRAYS).read_bytes()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{place} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise CheckpointError(f"{place / MANIFEST} is no manifest of a checkpoint")
    if manifest["format"] > FORMAT:
        raise CheckpointError(
            f"{place} has format {manifest['format']}, newer than this version's {FORMAT}: "
            "update understudy"
        )
    if hashlib.sha256(data).hexdigest() != manifest.get("sha256"):
        raise CheckpointError(f"{place / ARRAYS} is damaged: its checksum does not match")
    try:
        return Checkpoint(parse_safetensors(data), manifest)
    except SafetensorError as error:
        raise CheckpointError(f"{place / ARRAYS} is damaged: {error}") from error


def locate(path: Path) -> Path:
    """The directory that holds the manifest: `path` itself, or its `checkpoint`."""
    for candidate in (path, path / "checkpoint"):
        for place in (candidate, _previous(candidate)):
            if (place / MANIFEST).is_file():
                return place
    raise CheckpointError(f"there is no checkpoint in {path}")


def name_leaves(tree: Tree) -> dict[str, np.ndarray]:
    """Every leaf by its path, as NumPy on the host."""
    named, _ = jax.tree_util.tree_flatten_with_path(tree)
    # In C order: safetensors writes the bytes of a view as they lie in memory.
    arrays = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf, order="C")
        for path, leaf in named
    }
    if len(arrays) != len(named):
        raise CheckpointError("two arrays of the state have the same name: nothing was written")
    return arrays


def restore(template: Tree, arrays: dict[str, np.ndarray]) -> Tree:
    """A tree like `template` (shapes and dtypes) with the stored values; never a part of one."""
    named, structure = jax.tree_util.tree_flatten_with_path(template)
    expected = {jax.tree_util.keystr(p, simple=True, separator="."): leaf for p, leaf in named}
    differences = [f"{name} is missing" for name in expected if name not in arrays]
    differences += [f"{name} is unknown" for name in arrays if name not in expected]
    for name in expected.keys() & arrays.keys():
        want, got = expected[name], arrays[name]
        if (tuple(want.shape), want.dtype) != (got.shape, got.dtype):
            differences.append(
                f"{name} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
            )
    if differences:
        shown = "; ".join(sorted(differences)[:5])
        more = f" and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise CheckpointError(f"the checkpoint does not fit this agent: {shown}{more}")
    return jax.tree.unflatten(structure, [jax.numpy.asarray(arrays[name]) for name in expected])


def refuse_unreadable(arrays: dict[str, np.ndarray]) -> None:
    """safetensors writes bfloat16 and its kin, but its NumPy side cannot read them again."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise CheckpointError(f"{name} is {array.dtype}: a checkpoint cannot hold that")


def refuse_non_finite(arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(f"{name} is not finite: the checkpoint was not written")


def _previous(place: Path) -> Path:
    return place.with_name(f".{place.name}.previous")


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _move_into_place(fresh: Path, place: Path) -> None:
    """Directories cannot be exchanged in one move: the old one steps aside first, and `locate`
    finds it there should the process die in between."""
    previous = _previous(place)
    if place.exists():
        foreign = not place.is_dir() or any(place.iterdir())
        if foreign and not (place / MANIFEST).is_file():
            raise CheckpointError(f"{place} holds something else: nothing was written")
        # Only now: where `place` is missing, the one that stepped aside is all there is.
        shutil.rmtree(previous, ignore_errors=True)
        os.rename(place, previous)
    os.rename(fresh, place)
    directory = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    shutil.rmtree(previous, ignore_errors=True)
