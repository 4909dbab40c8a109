"""A policy in one file, `policy.safetensors`, which `understudy.runner` plays.

The tensors are the arrays. The graph, the spec, the config and the origin are JSON in the header,
with the checksum of the whole file.
"""

import json
from pathlib import Path

from safetensors.numpy import save as format_safetensors

from understudy.runner import FORMAT, METADATA, NO_CHECKSUM, Description, checksum_of
from understudy.runs.files import write_whole
from understudy.types import CheckpointError


def save_policy(path: str | Path, description: Description) -> Path:
    """Write a policy. A file in its place stays until the new one is complete."""
    stored = {"format": FORMAT, "sha256": NO_CHECKSUM, **description._asdict()}
    arrays = stored.pop("arrays")
    data = format_safetensors(arrays, {METADATA: json.dumps(stored)})
    checksum = checksum_of(data).encode()
    try:
        return write_whole(path, data.replace(NO_CHECKSUM.encode(), checksum, 1))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
