"""One run in one directory."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from understudy.errors import CheckpointError
from understudy.runs.files import refuse_link

LOCK = "run.lock"


@contextlib.contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock a directory against other runs. The operating system holds the lock as long as the
    process lives: a process that was killed leaves the file behind, but no lock."""
    path = directory / LOCK
    file = _acquire(path)
    try:
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        with contextlib.suppress(OSError):  # the directory itself may be gone
            path.unlink(missing_ok=True)
        os.close(file)


def _acquire(path: Path) -> int:
    while True:
        refuse_link(path)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(file, 200).decode(errors="replace").strip()
            os.close(file)
            raise CheckpointError(
                f"{path.parent} is in use by another run ({holder or 'unknown'}): wait for "
                "it, stop it, or choose another directory"
            ) from None
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            return file
        os.close(file)  # the run that held the lock has just removed the file
