"""Read files from untrusted sources: regular ones only, and not beyond a limit.

Free of JAX: the player of policy files imports it.
"""

import os
import stat
from pathlib import Path

from understudy.errors import CheckpointError


def read_bytes(path: Path, most: int, count: int = -1) -> bytes:
    """Read a regular file of at most that many bytes (or its first `count`). A pipe or a device is
    refused, because it may never end."""
    try:
        # Opening a pipe without a writer would block.
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(file, "rb") as opened:
            about = os.fstat(opened.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise CheckpointError(f"{path} is no regular file")
            if about.st_size > most:
                raise CheckpointError(f"{path} is too large: {about.st_size:,} bytes")
            return opened.read(count)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
