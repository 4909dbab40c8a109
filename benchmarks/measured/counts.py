"""Counts of what the documentation lists."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def faults() -> str:
    """Count the numbered faults of docs/faults.md."""
    page = (REPOSITORY / "docs" / "faults.md").read_text(encoding="utf-8")
    return str(len(set(re.findall(r"^\| (\d+) \|", page, re.M))))
