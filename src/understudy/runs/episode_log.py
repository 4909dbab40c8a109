"""The log of episodes: a CSV file with one line for each episode of training.

It may have millions of lines, so it is never read into memory as a whole.
"""

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final

from understudy.errors import ConfigError
from understudy.runs.csv_log import LogRow
from understudy.runs.files import hidden, open_for_appending, refuse_link

COLUMNS = ("step", "seed", "env", "return", "length", "success", "seconds")  # then info/…


@final
class EpisodeLog:
    """Appends lines to a CSV file; an existing file is continued. A context manager."""

    def __init__(self, path: Path, step: int):
        """Lines of episodes that ended after `step` are removed: a resumed run logs them again."""
        self.path = path
        refuse_link(path)
        self._file = open_for_appending(path)
        try:
            self._columns = self._continue_existing(step)
        except BaseException:
            self._file.close()
            raise

    def append(self, lines: Sequence[LogRow]) -> None:
        """Add lines. A line may have names that earlier ones lack: the file gets new columns."""
        columns = list(dict.fromkeys([*self._columns, *(name for line in lines for name in line)]))
        if columns != self._columns:
            self._add_columns(columns)
        self._file.write(_format([line.get(name) for name in columns] for line in lines))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "EpisodeLog":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _continue_existing(self, step: int) -> list[str]:
        """Remove later lines and one that a crash has cut off; return the columns."""
        with self.path.open("rb") as file:
            header, keep = file.readline(), 0
            if header.endswith(b"\n"):
                keep = len(header)
                for line in file:
                    if not line.endswith(b"\n") or _step_of(line) > step:
                        break
                    keep += len(line)
            is_longer = keep < os.fstat(file.fileno()).st_size
        columns: list[str] = (
            next(csv.reader([header.decode(errors="replace")])) if keep else list(COLUMNS)
        )
        if tuple(columns[: len(COLUMNS)]) != COLUMNS:
            raise ConfigError(
                f"{self.path} is no log of episodes: expected the columns {', '.join(COLUMNS)}; "
                "move it, or set log_episodes=False"
            )
        if is_longer:
            os.ftruncate(self._file.fileno(), keep)
        if not keep:
            self._file.write(_format([columns]))
            self._file.flush()
        return columns

    def _add_columns(self, columns: list[str]) -> None:
        """Write the file again, line by line, with empty cells in the new columns."""
        refuse_link(self.path)
        fresh, empty = hidden(self.path), b"," * (len(columns) - len(self._columns))
        try:
            with self.path.open("rb") as old, fresh.open("xb") as new:
                old.readline()
                new.write(_format([columns]).encode())
                for line in old:
                    new.write(line[:-1] + empty + b"\n")
                new.flush()
                os.fsync(new.fileno())
            self._file.close()  # some operating systems replace no file that is open
            os.replace(fresh, self.path)
            self._columns = columns
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            if self._file.closed:
                self._file = open_for_appending(self.path)


def _step_of(line: bytes) -> float:
    try:
        return float(line.partition(b",")[0])
    except ValueError:  # changed by hand: it stays
        return 0.0


def _format(lines: Iterable[list[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()
