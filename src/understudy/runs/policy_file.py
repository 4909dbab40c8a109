"""One policy in one file, `policy.safetensors`: what `understudy.runner` plays.

The arrays are the tensors; everything else (the graph, the spec, the config, where it comes from)
is one piece of JSON in the header, together with the checksum of the whole file.
"""

import json
from pathlib import Path

from safetensors.numpy import save as format_safetensors

from understudy.runner import FORMAT, METADATA, NO_CHECKSUM, Description, checksum_of
from understudy.runner import read_policy as read_policy
from understudy.runs.files import write_whole
from understudy.types import CheckpointError


def save_policy(path: str | Path, description: Description) -> Path:
    """Write the file whole or not at all; an older one stays until the new one is on disk."""
    stored = {"format": FORMAT, "sha256": NO_CHECKSUM, **description._asdict()}
    arrays = stored.pop("arrays")
    data = format_safetensors(arrays, {METADATA: json.dumps(stored)})
    checksum = checksum_of(data).encode()
    try:
        return write_whole(path, data.replace(NO_CHECKSUM.encode(), checksum, 1))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
