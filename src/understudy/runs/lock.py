"""One run in one directory."""

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import final

from understudy.errors import CheckpointError
from understudy.runs.files import refuse_link

LOCK = "run.lock"


@final
class RunLock:
    """Held by the operating system for as long as the process lives, so a lock never outlives
    its run: one that was killed leaves the file, but no lock."""

    def __init__(self, directory: Path):
        self._path = directory / LOCK

    def __enter__(self) -> "RunLock":
        while True:
            refuse_link(self._path)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._file = os.open(self._path, flags, 0o644)
            self._acquire()
            if self._path.exists() and os.path.samestat(os.fstat(self._file), self._path.stat()):
                break
            os.close(self._file)  # its holder has just left and taken the file away
        os.ftruncate(self._file, 0)
        os.write(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        return self

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._file, 200).decode(errors="replace").strip()
            os.close(self._file)
            raise CheckpointError(
                f"{self._path.parent} is in use by another run ({holder or 'unknown'}): wait for "
                "it, stop it, or choose another directory"
            ) from None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # the directory itself may be gone
            self._path.unlink(missing_ok=True)
        os.close(self._file)
