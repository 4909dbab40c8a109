"""The one way in which files are written and removed: whole or not at all, under a name that nobody
can guess until it is complete, and never through a symbolic link.

This page is free of JAX.
"""

import contextlib
import os
import secrets
import shutil
from pathlib import Path
from typing import IO

from understudy.errors import ConfigError

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def write_whole(path: str | Path, data: bytes | str) -> Path:
    """Beside its place first, and moved there when the disk has it. A link there is replaced, and
    what it points to stays as it is."""
    place = Path(path)
    data = data.encode() if isinstance(data, str) else data
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = hidden(place)
    try:
        with fresh.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, place)
        sync_directory(place.parent)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    return place


def fresh_directory(place: Path) -> Path:
    """An empty directory beside `place`, with the permissions that the user's umask asks for."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = hidden(place)
    fresh.mkdir()
    return fresh


def remove(place: Path) -> None:
    """In one move for whoever looks, then for good; `tidy` ends what a kill in between leaves. A
    link is removed, and what it points to stays."""
    with contextlib.suppress(OSError):
        if place.is_symlink() or not place.is_dir():
            place.unlink(missing_ok=True)
            return
        aside = hidden(place)
        os.rename(place, aside)
        shutil.rmtree(aside, ignore_errors=True)


def tidy(directory: Path) -> None:
    """Remove what a process that was killed has left under a hidden name."""
    for left in directory.glob(".*.tmp"):
        remove(left)


def hidden(place: Path) -> Path:
    return place.with_name(f".{place.name}.{secrets.token_hex(8)}.tmp")


def open_for_appending(path: Path) -> IO[str]:
    """A text file that is continued, or begun."""
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
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
