"""One policy in one file, `policy.safetensors`: what `understudy.runner` plays.

The arrays are the tensors; everything else (the graph, the spec, the config, where it comes from)
is one piece of JSON in the header, together with the checksum of the whole file.
"""

import contextlib
import json
import os
import secrets
from pathlib import Path

from safetensors.numpy import save as format_safetensors

from understudy.runner import FORMAT, METADATA, NO_CHECKSUM, Description, checksum_of
from understudy.runner import read_policy as read_policy
from understudy.types import CheckpointError


def save_policy(path: str | Path, description: Description) -> Path:
    """Write the file whole or not at all; an older one stays until the new one is on disk."""
    stored = {"format": FORMAT, "sha256": NO_CHECKSUM, **description._asdict()}
    arrays = stored.pop("arrays")
    data = format_safetensors(arrays, {METADATA: json.dumps(stored)})
    checksum = checksum_of(data).encode()
    return write_whole(path, data.replace(NO_CHECKSUM.encode(), checksum, 1))


def write_whole(path: str | Path, data: bytes) -> Path:
    """Beside its place first, and moved there when the disk has it."""
    place = Path(path)
    fresh = place.with_name(f".{place.name}.{secrets.token_hex(4)}.tmp")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, place)
        directory = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise CheckpointError(f"{place} cannot be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    return place
