"""The log that every run has: one CSV file, one row per log, readable by everything.

A row is on its way to the disk when `append` returns, so a crash loses nothing that was logged.
Algorithms may report new facts in the middle of a run; the file then gets new columns.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, final

import numpy as np

from understudy.runs.files import open_for_appending, refuse_link, write_whole

STEPS = "time/total_steps"


@final
class CsvLog:
    """Appends dictionaries to a CSV file; an existing file is continued."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        refuse_link(self.path)
        self._columns = self._continue_existing() if self.path.exists() else []
        self._file = open_for_appending(self.path)

    def append(self, facts: Mapping[str, Any]) -> None:
        """Adds one row. LogRow that are missing stay empty; `x_per_seed` lists become columns."""
        row = flatten(facts)
        unknown = [name for name in row if name not in self._columns]
        if unknown:
            self._add_columns(unknown)
        self._file.write(_line([row.get(name, "") for name in self._columns]))
        self._file.flush()

    def rewind(self, steps: int | float) -> None:
        """Drops the rows beyond `steps`: a run that goes back to a checkpoint logs them again."""
        rows = self._rows()
        if not rows or STEPS not in rows[0]:
            return
        place = rows[0].index(STEPS)
        kept = [row for row in rows[1:] if not row[place] or float(row[place]) <= steps]
        if len(kept) < len(rows) - 1:
            self._rewrite([rows[0], *kept])

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "CsvLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _continue_existing(self) -> list[str]:
        text = self.path.read_text(encoding="utf-8")
        whole = _without_torn_row(text)
        if whole != text:
            self._replace(whole)
        return next(csv.reader(io.StringIO(whole, newline="")), [])

    def _add_columns(self, names: list[str]) -> None:
        columns = [*self._columns, *names]
        body = [row + [""] * (len(columns) - len(row)) for row in self._rows()[1:]]
        # If the disk is full this raises, and the log still holds the old file with its columns.
        self._rewrite([columns, *body])
        self._columns = columns

    def _rows(self) -> list[list[str]]:
        text = self.path.read_text(encoding="utf-8")
        return list(csv.reader(io.StringIO(text, newline="")))

    def _rewrite(self, rows: list[list[str]]) -> None:
        self._replace("".join(map(_line, rows)))
        self._file.close()
        self._file = open_for_appending(self.path)

    def _replace(self, text: str) -> None:
        """The old file or the new one, at every instant: never half of one."""
        write_whole(self.path, text)


def read_csv(path: Path | str) -> dict[str, np.ndarray]:
    """All columns by name: float64 with NaN where empty, or text where a value is no number."""
    text = _without_torn_row(Path(path).read_text(encoding="utf-8"))
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if not rows:
        return {}
    names, body = rows[0], rows[1:]
    return {name: _column([row[i] for row in body]) for i, name in enumerate(names)}


def flatten(facts: Mapping[str, Any]) -> dict[str, str]:
    """As text. `eval/mean_reward_per_seed: [a, b]` becomes `eval/mean_reward/seed0`, `…/seed1`."""
    flat = {}
    for name, value in facts.items():
        if isinstance(value, str) or value is None or np.ndim(value) == 0:
            flat[name] = _text(value)
        else:
            stem = name.removesuffix("_per_seed")
            flat |= {f"{stem}/seed{i}": _text(item) for i, item in enumerate(value)}
    return flat


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    # The shortest text that reads back as the same number, at the precision the value has.
    return str(np.asarray(value)[()])


def _line(cells: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _without_torn_row(text: str) -> str:
    """Every row is written with its line end, so a last line without one was cut by a crash."""
    return text[: text.rfind("\n") + 1]


def _column(cells: list[str]) -> np.ndarray:
    try:
        return np.array([float(cell) if cell else np.nan for cell in cells], dtype=np.float64)
    except ValueError:
        return np.array(cells, dtype=np.str_)
