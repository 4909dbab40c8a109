"""Write and remove files as a whole, never through a symbolic link, and lock directories.

A file has a hidden random name until it is complete. This module does not import JAX.
"""

import contextlib
import hashlib
import importlib
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from understudy.errors import CheckpointError, ConfigError

LOCK = "run.lock"  # in a run directory
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_LOCKED_BYTE = 2**30


def _optional(name: str) -> Any:
    """Import a module that some operating systems do not have."""
    with contextlib.suppress(ImportError):
        return importlib.import_module(name)
    return None


FCNTL, MSVCRT = _optional("fcntl"), _optional("msvcrt")
# Without locks, the existence of the file is the lock, and a killed process leaves it behind.
EXCLUSIVE = os.O_EXCL if FCNTL is None and MSVCRT is None else 0


def write_whole(path: str | Path, data: bytes | str) -> Path:
    """Write a file beside its place, sync it, and move it there. A link in its place is replaced;
    the file that the link points to stays as it is."""
    place = Path(path)
    data = data.encode() if isinstance(data, str) else data
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = hidden(place)
    try:
        write_synced(fresh, [data])
        os.replace(fresh, place)
        sync_directory(place.parent)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    return place


def write_synced(path: Path, blocks: list[Any]) -> dict[str, Any]:
    """Write blocks of bytes to a new file and sync it. Return its size and checksum."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for block in blocks:
            file.write(block)
            digest.update(block)
            size += len(block)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def make_directory(directory: Path) -> None:
    """Make a directory before the work starts whose results go there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made: {error.strerror}") from error


def fresh_directory(place: Path) -> Path:
    """Make an empty directory beside `place`, with the permissions of the user's umask."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = hidden(place)
    fresh.mkdir()
    return fresh


def remove(place: Path) -> None:
    """Rename a directory to a hidden name and then delete it; `tidy` deletes it if the process is
    killed in between. A link is removed, and its target stays."""
    with contextlib.suppress(OSError):
        if place.is_symlink() or not place.is_dir():
            place.unlink(missing_ok=True)
            return
        aside = hidden(place)
        os.rename(place, aside)
        shutil.rmtree(aside, ignore_errors=True)


def tidy(directory: Path) -> None:
    """Remove the hidden files that a killed process has left."""
    for left in directory.glob(".*.tmp"):
        remove(left)


def hidden(place: Path) -> Path:
    return place.with_name(f".{place.name}.{secrets.token_hex(8)}.tmp")


def open_for_appending(path: Path) -> IO[str]:
    """Open a text file at its end; make it if there is none."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK, 0o666)
    except OSError:
        refuse_link(path)
        raise
    return os.fdopen(file, "a", encoding="utf-8", newline="")


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ConfigError(f"{path} is a link: nothing is written through it; remove it first")


def sync_directory(path: Path) -> None:
    if os.name == "nt":  # Windows cannot open a directory
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def lock_directory(directory: Path) -> AbstractContextManager[None]:
    """Lock a directory against other runs."""

    def in_use(holder: str) -> CheckpointError:
        return CheckpointError(
            f"{directory} is in use by another run ({holder}): wait for it, stop it, or choose "
            "another directory"
        )

    return lock_file(directory / LOCK, in_use)


@contextlib.contextmanager
def lock_file(path: Path, in_use: Callable[[str], Exception]) -> Iterator[None]:
    """Lock a file, which is made for it. The operating system holds the lock as long as the process
    lives: a process that was killed leaves the file behind, but no lock. If another process holds
    it, raise `in_use` with the name of that process."""
    file = _acquire(path, in_use)
    try:
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        if FCNTL is None:  # Windows removes no open file; no other process can remove it either
            os.close(file)
        with contextlib.suppress(OSError):  # the directory itself may be gone
            path.unlink(missing_ok=True)
        if FCNTL is not None:
            os.close(file)


def _acquire(path: Path, in_use: Callable[[str], Exception]) -> int:
    while True:
        refuse_link(path)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK | EXCLUSIVE, 0o644)
        except FileExistsError:
            raise in_use(f"{path.read_text().strip()}; remove {path} if it has ended") from None
        try:
            _lock(file)
        except OSError:
            holder = os.read(file, 200).decode(errors="replace").strip()
            os.close(file)
            raise in_use(holder or "unknown") from None
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            return file
        os.close(file)  # the run that held the lock has just removed the file


def _lock(file: int) -> None:
    """Lock an open file; raise OSError if another process has locked it."""
    if FCNTL is not None:
        FCNTL.flock(file, FCNTL.LOCK_EX | FCNTL.LOCK_NB)
    elif MSVCRT is not None:  # a byte beyond the text, which others must be able to read
        os.lseek(file, _LOCKED_BYTE, os.SEEK_SET)
        try:
            MSVCRT.locking(file, MSVCRT.LK_NBLCK, 1)
        finally:
            os.lseek(file, 0, os.SEEK_SET)
