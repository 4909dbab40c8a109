"""The parts of an HTML page: its frame, cards, charts and tables.

A page is one file: no network, no scripts, every picture inside. All text from files is escaped.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from understudy.algorithms.config import Config, by_topic, field_docs
from understudy.errors import ConfigError
from understudy.reports.charts import small_chart
from understudy.reports.run_log import Run
from understudy.runs.csv_log import STEPS
from understudy.runs.progress import compact

MOST_VIDEO_BYTES = 20_000_000
VIDEO_KINDS = {".mp4": "video/mp4", ".gif": "image/gif"}
STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
# Columns that count faults.
FAULTS = re.compile(
    r"^(faults?|envs?)/|discarded|diverged_seeds|rebuilds|restarts|dropped|clipped_values|^qd/(not_finite|clipped)"
)

Card = tuple[str, str, str]  # name, value, note


class Content(NamedTuple):
    """What differs between the pages of training and of quality-diversity."""

    subtitle: list[str]
    cards: list[Card]
    sections: dict[str, str]  # heading -> HTML; an empty one is left out
    config_class: type[Config] | None
    commands: list[tuple[str, str]]  # purpose and command


def framed(title: str, subtitle: Iterable[str], sections: Iterable[str]) -> str:
    """The whole page."""
    title, line = escape(title), " · ".join(map(escape, subtitle))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{title}</h1><p>{line}</p></header>
<main>
{"".join(sections)}
</main>
</body>
</html>
"""


def section(heading: str, body: str) -> str:
    return f"<section><h2>{heading}</h2>\n{body}</section>\n" if body else ""


def cards(found: Iterable[Card]) -> str:
    shown = []
    for card in found:
        name, value, note = map(escape, card)
        shown.append(f"<div><p>{name}</p><strong>{value}</strong><p>{note}</p></div>")
    half = -(-len(shown) // 2)
    # Rows of equal length, or nearly so: no card is alone in a row.
    columns = len(shown) if len(shown) <= 5 else half
    style = f"--columns: {columns}; --half: {half}"
    return f'<div class="cards" style="{style}">{"".join(shown)}</div>\n' if shown else ""


def speed_cards(run: Run, done: float | None, unit: str, note: str) -> list[Card]:
    """The time that a run took, and how much of the unit it has done a second."""
    seconds = run.last("time/time_elapsed")
    if done is None or not seconds:
        return []
    time, speed = str(timedelta(seconds=round(seconds))), f"{done / seconds:,.0f}"
    return [("Time", time, "h:mm:ss"), (f"{unit} a second", speed, note)]


def small_multiples(run: Run, names: Iterable[str], over: str = STEPS) -> str:
    """A small chart for each column."""
    charts = []
    for name in names:
        curve = run.curve(name, over)
        if curve is not None:
            last = compact(float(curve.returns[-1]))
            charts.append(
                f"<figure>{small_chart(curve)}<figcaption><code>{escape(name)}</code>"
                f"<span>{escape(last)}</span></figcaption></figure>\n"
            )
    return f'<div class="charts">{"".join(charts)}</div>\n' if charts else ""


def film(path: Path) -> str:
    kind = VIDEO_KINDS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"{path}: a video ends in .mp4 or .gif")
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such video")
    size = path.stat().st_size
    if size > MOST_VIDEO_BYTES:
        raise ConfigError(
            f"{path} has {size / 1e6:.0f} MB, and a page holds at most "
            f"{MOST_VIDEO_BYTES / 1e6:.0f}: record a shorter episode (or .mp4 instead of .gif)"
        )
    data = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    if kind == "image/gif":
        return f'<img class="film" alt="an episode" src="{data}">\n'
    return f'<video class="film" controls loop muted playsinline src="{data}"></video>\n'


def table(heads: Iterable[str], rows: Iterable[str], kind: str) -> str:
    """A table of `row`s."""
    head, body = "".join(f"<th>{escape(name)}</th>" for name in heads), "\n".join(rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def row(cells: Iterable[str], attributes: str = "") -> str:
    """A row of a table. The cells are HTML."""
    start = f"<tr {attributes}>" if attributes else "<tr>"
    return start + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def faults(run: Run) -> str:
    """Counts above zero; a run without faults has no such section."""
    rows = []
    for name in run.log:
        _, counts = run.column(name)
        if FAULTS.search(name) and counts.size and counts.max() > 0:
            rows.append(row([code(name), f"{counts.max():,.0f}"]))
    return table(["fault", "count"], rows, "numbers") if rows else ""


def settings(run: Run, config_class: type[Config] | None) -> str:
    """The whole config; values that differ from the algorithm's defaults are marked."""
    docs = field_docs(config_class) if config_class else {}
    topics = by_topic(config_class).values() if config_class else ()
    defaults = {field.name: field.default for fields in topics for field in fields}
    rows, marked, config = [], 0, run.about.get("config", {})
    for name in sorted(config, key=[*defaults, *config].index):
        value, default = _shown(config[name]), _shown(defaults.get(name))
        changed = name in defaults and value != default
        note = f" <small>default {escape(default)}</small>" if changed else ""
        cells = [code(name), escape(value) + note, escape(docs.get(name, ""))]
        rows.append(row(cells, 'class="marked"' if changed else ""))
        marked += changed
    note = f"<p>Marked: the {marked} that differ from the defaults.</p>\n" if marked else ""
    return note + table(["setting", "value", ""], rows, "settings") if rows else ""


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " × ".join(map(str, value))
    if type(value) is int:
        return f"{value:,}"
    return "–" if value is None else str(value)


def commands(lines: Sequence[tuple[str, str]]) -> str:
    """Commands to type, each with its purpose."""
    return "".join(
        f"<p>{purpose}</p><pre>understudy {escape(command)}</pre>\n" for purpose, command in lines
    )
