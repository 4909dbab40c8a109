"""Read the result files, and write numbers as the pages show them."""

import csv
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

Row = dict[str, str]


@cache
def rows(name: str) -> tuple[Row, ...]:
    """Return the rows of a CSV file of the results."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def exists(name: str) -> bool:
    return (RESULTS / f"{name}.csv").exists()


def column(name: str, of: str, **where: str) -> list[float]:
    """Return the numbers of a column, in the rows that have the given values in other columns."""
    chosen = (row for row in rows(name) if all(row[key] == value for key, value in where.items()))
    numbers = [float(row[of]) for row in chosen if row[of]]
    if not numbers:
        raise KeyError(f"{name}.csv has no {of} where {where}")
    return numbers


@cache
def cell(page: str, row: str, place: int) -> str:
    """Return a cell of a Markdown table of the results: the row that starts with `row`."""
    for line in (RESULTS / page).read_text(encoding="utf-8").splitlines():
        cells = [part.strip() for part in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] == row:
            return cells[place]
    raise KeyError(f"{page} has no table row {row!r}")


def number(value: float, digits: int | str | None = None) -> str:
    """Write a number; without `digits`, one decimal below 1,000 and none from there on."""
    if digits is None:
        digits = 0 if abs(value) >= 999.95 else 1
    digits = int(digits)
    rounded = round(value, digits) + 0.0  # no negative zero
    return minus(f"{rounded:,.{digits}f}")


def minus(text: str) -> str:
    """Write the minus sign as in the text of the pages."""
    return text.replace("-", "−")


def significant(value: float, figures: int = 4) -> str:
    """Round to a number of significant figures."""
    return f"{float(f'{value:.{figures}g}'):,.0f}"


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def in_words(items: Iterable[str]) -> str:
    """Write "a, b and c"."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def row_of(cells: Iterable[str]) -> str:
    """Write a row of a Markdown table; an empty cell is one space wide."""
    return "|" + "|".join(f" {text} " if text else " " for text in cells) + "|"


def table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [row_of(header), "|" + "---|" * len(header), *(row_of(cells) for cells in body)]
    return "\n".join(lines)


def median(numbers: Iterable[float]) -> float:
    return statistics.median(numbers)
