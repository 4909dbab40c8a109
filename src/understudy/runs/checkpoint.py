"""Checkpoints: safetensors for arrays, JSON for the rest, no pickle anywhere.

A checkpoint is a directory. It has a file for each group of arrays, and a manifest with their
checksums and its own. It is written beside its place and moved there when it is complete, so that a
reader finds the old one or the new one, never a part of one.

This module does not import JAX.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from safetensors import safe_open

from understudy.errors import CheckpointError
from understudy.reading import DTYPES, read_bytes
from understudy.runs import files
from understudy.runs.files import fresh_directory, remove, sync_directory, write_synced
from understudy.runs.schema import problems, table, text, whole

FORMAT = 4  # 3: other names of encoders; 2: the first edition
MANIFEST = "checkpoint.json"
FILES = {"learner.safetensors", "world.safetensors"}
DIRECTORY, BEST = "checkpoints", "best"  # in a run directory
LARGEST_MANIFEST = 2**24  # bytes
LARGEST_READ = 2**26  # bytes of an array; a larger one stays in its file

Arrays = Mapping[str, np.ndarray]
Checked = TypeVar("Checked")

_log = logging.getLogger("understudy.runs")


class Stored(NamedTuple):
    place: Path
    groups: dict[str, dict[str, np.ndarray]]
    manifest: dict[str, Any]


def write(place: Path | str, groups: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Path:
    """Write groups of arrays and a manifest to the directory `place`, replacing what was there."""
    place = Path(place)
    for group, arrays in groups.items():
        _check_arrays(group, arrays)
    fresh = fresh_directory(place)
    try:
        named = {f"{group}.safetensors": arrays for group, arrays in groups.items()}
        listed = {file: _write_arrays(fresh / file, arrays) for file, arrays in named.items()}
        signed = {"format": FORMAT, **manifest, "files": listed}
        signed["sha256"] = checksum(signed)
        write_synced(fresh / MANIFEST, [json.dumps(signed, indent=2).encode()])
        sync_directory(fresh)
        _move_into_place(fresh, place)
    except BaseException:
        remove(fresh)
        raise
    return place


def read(place: Path | str) -> Stored:
    """Read and verify the checkpoint directory `place`."""
    place = Path(place)
    manifest = _read_manifest(place)
    listed = manifest["files"].items()
    groups = {Path(file).stem: read_arrays(place / file, entry) for file, entry in listed}
    return Stored(place, groups, manifest)


def read_newest(path: Path | str) -> Stored:
    """Read a checkpoint, or the newest good one of a run directory."""
    return read_checked(path, lambda stored: stored)


def read_checked(path: Path | str, check: Callable[[Stored], Checked]) -> Checked:
    """Read the newest checkpoint that passes the check; return the result of the check."""
    path, refused = Path(path), []
    for place in candidates(path):
        try:
            checked = check(read(place))
        except CheckpointError as error:
            refused.append(str(error))
            continue
        for problem in refused:
            _log.warning("%s; going on from %s", problem, place)
        return checked
    if refused:
        raise CheckpointError("; ".join(dict.fromkeys(refused)))
    policy = path.suffix in (".safetensors", ".onnx") and path.is_file()
    hint = ": it is a policy, which understudy.runner.load plays" if policy else ""
    raise CheckpointError(f"there is no checkpoint in {path}{hint}")


def candidates(path: Path) -> list[Path]:
    """Return the checkpoints that `path` stands for, in the order in which to try them."""
    path = Path(os.path.abspath(path))  # "." has no name of its own
    own = [place for place in (path, _previous(path)) if (place / MANIFEST).exists()]
    aside = sorted((path / DIRECTORY).glob(".[0-9]*.previous"), reverse=True)
    return own or [*reversed(numbered(path)), *aside]


def numbered(run: Path) -> list[Path]:
    """Return the checkpoints of a run directory, oldest first."""
    places = (run / DIRECTORY).glob("[0-9]*")
    return sorted(place for place in places if (place / MANIFEST).exists())


def place_of(run: Path, steps: int) -> Path:
    """Return the place of the checkpoint at a step, or at a number of evaluations."""
    return run / DIRECTORY / f"{steps:012d}"


def prune(run: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints of a run directory."""
    if (run / DIRECTORY).is_symlink():
        return
    own = [place for place in numbered(run) if not place.is_symlink()]
    for place in own[:-keep]:
        remove(place)


def tidy(run: Path) -> None:
    """Remove what a killed process has left incomplete: hidden files, and numbered directories
    without a manifest."""
    files.tidy(run)
    if (run / DIRECTORY).is_symlink():
        return
    files.tidy(run / DIRECTORY)
    for place in (run / DIRECTORY).glob("[0-9]*"):
        if place.is_dir() and not place.is_symlink() and not os.path.lexists(place / MANIFEST):
            remove(place)


def _check_arrays(group: str, arrays: Arrays) -> None:
    """Refuse types that NumPy cannot read from safetensors (bfloat16, say), and what was learned if
    it is not finite. The state of an environment may be anything."""
    for name, array in arrays.items():
        if str(array.dtype) not in DTYPES:
            raise CheckpointError(f"{name} is {array.dtype}: a checkpoint cannot hold that")
        if group == "learner" and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(f"{name} is not finite: the checkpoint was not written")


def _write_arrays(path: Path, arrays: Arrays) -> dict[str, Any]:
    """Write arrays as safetensors, one by one: the library's writer first copies all of them.
    Return size and checksum."""
    header: dict[str, Any] = {}
    blocks, offset = [], 0
    for name, array in sorted(arrays.items()):  # the same arrays make the same file
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        header[name] = {
            "dtype": DTYPES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + data.nbytes],
        }
        offset += data.nbytes
        blocks.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return write_synced(path, [len(text).to_bytes(8, "little"), text, *blocks])


def read_arrays(path: Path, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read and verify a file of arrays; `entry` is the manifest's, with size and checksum."""
    try:
        if not os.path.isfile(path):
            raise CheckpointError(f"{path} is missing, or no regular file")
        if path.stat().st_size != entry["bytes"]:
            raise CheckpointError(f"{path} is damaged: it is not as long as it was written")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if digest != entry["sha256"]:
        raise CheckpointError(f"{path} is damaged: its checksum does not match")
    try:
        with safe_open(path, framework="numpy"):  # refuses a header that does not fit the file
            return _map_arrays(path)
    except Exception as error:  # any error comes from the header of the file
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _map_arrays(path: Path) -> dict[str, np.ndarray]:
    """Map the arrays that may be too large for memory, and copy the others. The file may be removed
    meanwhile, and writing to the arrays does not change it. Windows cannot remove a mapped file:
    there all arrays are copied."""
    data = np.memmap(path, np.uint8, "c")
    start = 8 + int.from_bytes(data[:8], "little")
    kinds, arrays = {kind: dtype for dtype, kind in DTYPES.items()}, {}
    for name, entry in json.loads(bytes(data[8:start])).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            mapped = data[start + begin : start + end].view(kinds[entry["dtype"]])
            large = mapped.nbytes > LARGEST_READ and mapped.flags.aligned and os.name != "nt"
            arrays[name] = (mapped if large else np.array(mapped)).reshape(entry["shape"])
    return arrays


def _read_manifest(place: Path) -> dict[str, Any]:
    path = place / MANIFEST
    try:
        manifest = json.loads(read_bytes(path, LARGEST_MANIFEST).decode())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise CheckpointError(f"{path} is no manifest of a checkpoint")
    if manifest["format"] != FORMAT:
        age = "newer" if manifest["format"] > FORMAT else "older"
        raise CheckpointError(
            f"{place} has format {manifest['format']}, {age} than this version's {FORMAT}: "
            f"use {'a newer' if age == 'newer' else 'the'} understudy that wrote it"
        )
    try:
        signed = checksum(manifest)
    except RecursionError as error:
        raise CheckpointError(f"{path} is damaged: it is nested too deeply") from error
    if signed != manifest.get("sha256"):
        raise CheckpointError(f"{path} is damaged: its checksum does not match")
    listed: Any = manifest.get("files")
    entry = {"bytes": whole(0, 2**53), "sha256": text}
    known = isinstance(listed, dict) and listed.keys() <= FILES
    if not known or not all(table(one) and not problems(one, entry) for one in listed.values()):
        raise CheckpointError(f"{path} is damaged: it does not say which files belong to it")
    return manifest


def checksum(manifest: Mapping[str, Any]) -> str:
    """Return the checksum of a manifest, without the entry of the checksum itself."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _previous(place: Path) -> Path:
    return place.with_name(f".{place.name}.previous")


def _move_into_place(fresh: Path, place: Path) -> None:
    """Move a directory to its place. Two directories cannot be exchanged in one step: the old one
    is renamed first, and `candidates` finds it if the process dies in between."""
    previous = _previous(place)
    if place.exists():
        foreign = not place.is_dir() or any(place.iterdir())
        if foreign and not (place / MANIFEST).is_file():
            raise CheckpointError(f"{place} holds something else: nothing was written")
        # Only now: if `place` is missing, the renamed directory is the only checkpoint.
        remove(previous)
        os.rename(place, previous)
    os.rename(fresh, place)
    sync_directory(place.parent)
    remove(previous)
