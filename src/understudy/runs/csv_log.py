"""The log of a run: one CSV file that every program can read.

`append` gives a row to the operating system before it returns, so a crash loses no row. A row may
have names that earlier rows lack; the file then gets new columns.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from understudy.runs.files import open_for_appending, refuse_link, write_whole

LogRow = dict[str, Any]
"""The values of one row of the log, by name. Names end in `_per_seed` for a list of one each."""


class Unit(NamedTuple):
    """The names under which a run logs its progress."""

    count: str
    rate: str  # per second


STEPS = "time/total_steps"
UNITS = {
    "steps": Unit(STEPS, "time/fps"),
    "evaluations": Unit("time/evaluations", "time/evaluations_per_second"),
}


@final
class CsvLog:
    """Appends dictionaries to a CSV file; an existing file is continued."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        refuse_link(self.path)
        self._columns: list[str] = []
        if self.path.exists():
            self._continue_existing()
        self._file = open_for_appending(self.path)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row. Columns that it lacks stay empty; `x_per_seed` lists become columns."""
        cells = flatten(row)
        columns = list(dict.fromkeys([*self._columns, *cells]))
        if columns != self._columns:
            # If the disk is full this raises, and the log still has the old file with its columns.
            self._rewrite(columns, self._rows())
        self._file.write(_format(columns, [cells]))
        self._file.flush()

    def rewind(self, count: int | float, column: str = STEPS) -> None:
        """Drop the rows whose value of `column` is above `count`: a resumed run logs them again."""
        rows = self._rows()
        earlier = [row for row in rows if not row.get(column) or float(row[column]) <= count]
        if len(earlier) < len(rows):
            self._rewrite(self._columns, earlier)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "CsvLog":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _continue_existing(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        whole = _without_torn_row(text)
        if whole != text:
            write_whole(self.path, whole)
        self._columns = list(_parse(whole).fieldnames or ())

    def _rows(self) -> list[dict[str, str]]:
        return list(_parse(self.path.read_text(encoding="utf-8")))

    def _rewrite(self, columns: list[str], rows: list[dict[str, str]]) -> None:
        header = {name: name for name in columns}
        write_whole(self.path, _format(columns, [header, *rows]))
        self._columns = columns
        self._file.close()
        self._file = open_for_appending(self.path)


def read_csv(path: Path | str) -> dict[str, np.ndarray]:
    """Read all columns by name: float64 with NaN for empty cells, or text if one is no number."""
    reader = _parse(_without_torn_row(Path(path).read_text(encoding="utf-8")))
    rows = list(reader)
    return {name: _column([row[name] for row in rows]) for name in reader.fieldnames or ()}


def flatten(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row as text. `eval/mean_reward_per_seed: [a, b]` becomes `eval/mean_reward/seed0`
    and `eval/mean_reward/seed1`."""
    flat = {}
    for name, value in row.items():
        if np.ndim(value) == 0:
            flat[name] = _text(value)
        else:
            stem = name.removesuffix("_per_seed")
            flat |= {f"{stem}/seed{i}": _text(item) for i, item in enumerate(value)}
    return flat


def _text(value: Any) -> str:
    # The shortest text that reads back as the same number, at the precision the value has.
    return "" if value is None else str(np.asarray(value)[()])


def _parse(text: str) -> csv.DictReader:
    return csv.DictReader(io.StringIO(text, newline=""))


def _format(columns: list[str], rows: list[dict[str, str]]) -> str:
    """Return lines of cells in the order of the columns; cells of no column are left out."""
    buffer = io.StringIO()
    csv.DictWriter(buffer, columns, "", "ignore", lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _without_torn_row(text: str) -> str:
    """Drop a last line without a line end, which a crash has cut off."""
    return text[: text.rfind("\n") + 1]


def _column(cells: list[str]) -> np.ndarray:
    try:
        return np.array([float(cell) if cell else np.nan for cell in cells], dtype=np.float64)
    except ValueError:
        return np.array(cells, dtype=np.str_)
