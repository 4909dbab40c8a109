"""Reading files that somebody else may have made: regular ones only, and not beyond a limit.

Free of JAX: the player of policy files imports it.
"""

import contextlib
import os
import stat
from pathlib import Path

from understudy.errors import CheckpointError


def read_bytes(path: Path, most: int) -> bytes:
    """Of a regular file that is not larger than that: a pipe or a device would never end."""
    try:
        # Without waiting: whoever opens a pipe that nobody writes to would wait for ever.
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(file, "rb") as opened:
            about = os.fstat(opened.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise CheckpointError(f"{path} is no regular file")
            if about.st_size > most:
                raise CheckpointError(f"{path} is too large: {about.st_size:,} bytes")
            return opened.read(most + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def is_regular(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(path.stat().st_mode)
    return False
