"""What pages of all kinds of runs are made of: a frame, cards, charts and tables.

A page stands alone: no network, no scripts, every picture inside. Whatever comes from a file is
escaped.
"""

import base64
import itertools
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from understudy.algorithms.config import Config, by_topic, field_docs
from understudy.errors import ConfigError
from understudy.reports.charts import small_chart
from understudy.reports.curves import Run
from understudy.runs.csv_log import STEPS
from understudy.runs.files import write_whole
from understudy.runs.progress import compact

MOST_VIDEO_BYTES = 20_000_000
VIDEO_KINDS = {".mp4": "video/mp4", ".gif": "image/gif"}
# Columns that count what went wrong.
FAULTS = re.compile(
    r"^(faults?|envs?)/|discarded|diverged_seeds|rebuilds|restarts|dropped|clipped_values|^qd/(not_finite|clipped)"
)

Card = tuple[str, str, str]  # name, value, note


def write(out: Path, html: str) -> Path:
    """Into place in one move."""
    return write_whole(out, html)


def framed(title: str, subtitle: Iterable[str], sections: Iterable[str]) -> str:
    title, said = escape(title), " · ".join(map(escape, subtitle))
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
<header><h1>{title}</h1><p>{said}</p></header>
<main>
{"".join(sections)}
</main>
</body>
</html>
"""


def section(heading: str, body: str) -> str:
    return f"<section><h2>{heading}</h2>\n{body}</section>\n" if body else ""


def cards(found: Iterable[Card]) -> str:
    shown = list(map(_card, found))
    half = -(-len(shown) // 2)
    # In rows of equal length, or nearly so: no card stands alone.
    columns = len(shown) if len(shown) <= 5 else half
    style = f"--columns: {columns}; --half: {half}"
    return f'<div class="cards" style="{style}">{"".join(shown)}</div>\n' if shown else ""


def _card(card: Card) -> str:
    name, value, note = map(escape, card)
    return f"<div><p>{name}</p><strong>{value}</strong><p>{note}</p></div>"


def known(run: Run, name: str, over: str = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a column where both are numbers."""
    values, steps = run.log.get(name), run.log.get(over)
    if values is None or steps is None or values.dtype.kind != "f" or steps.dtype.kind != "f":
        return np.array([]), np.array([])
    known = np.isfinite(values) & np.isfinite(steps)
    return steps[known], values[known]


def small_multiples(run: Run, names: Iterable[str], over: str = STEPS) -> str:
    """A small chart for each column."""
    charts = []
    for name in names:
        steps, values = known(run, name, over)
        if steps.size:
            charts.append(
                f"<figure>{small_chart(steps, values)}<figcaption><code>{escape(name)}</code>"
                f"<span>{escape(compact(float(values[-1])))}</span></figcaption></figure>\n"
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


def table(head: str, rows: Iterable[str], kind: str) -> str:
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def faults(run: Run) -> str:
    """Counts that grew; a run in which nothing went wrong has no such section."""
    rows = []
    for name in run.log:
        _, counts = known(run, name)
        if FAULTS.search(name) and counts.size and counts.max() > 0:
            rows.append(
                f"<tr><td><code>{escape(name)}</code></td><td>{counts.max():,.0f}</td></tr>"
            )
    return table("<th>what</th><th>how many</th>", rows, "numbers") if rows else ""


def settings(run: Run, config_class: type[Config] | None) -> str:
    """The whole config; what differs from the algorithm's defaults is marked."""
    defaults: dict[str, Any] = {}
    docs: dict[str, str] = {}
    if config_class is not None:
        docs = field_docs(config_class)
        fields = itertools.chain.from_iterable(by_topic(config_class).values())
        defaults = {field.name: field.default for field in fields}
    rows, config = [], run.about.get("config", {})
    for name in sorted(config, key=[*defaults, *config].index):
        value = config[name]
        changed = name in defaults and _shown(value) != _shown(defaults[name])
        mark = ' class="marked"' if changed else ""
        note = f" <small>default {escape(_shown(defaults[name]))}</small>" if changed else ""
        rows.append(
            f"<tr{mark}><td><code>{escape(name)}</code></td><td>{escape(_shown(value))}{note}</td>"
            f"<td>{escape(docs.get(name, ''))}</td></tr>"
        )
    marked = sum("marked" in row[:20] for row in rows)
    note = f"<p>Marked: the {marked} that differ from the defaults.</p>\n" if marked else ""
    head = "<th>setting</th><th>value</th><th></th>"
    return note + table(head, rows, "settings") if rows else ""


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " × ".join(map(str, value))
    if type(value) is int:
        return f"{value:,}"
    return "–" if value is None else str(value)


def commands(lines: Sequence[tuple[str, str]]) -> str:
    """What for, and what to type."""
    return "".join(
        f"<p>{what}</p><pre>understudy {escape(command)}</pre>\n" for what, command in lines
    )


STYLE = """
:root { --ink: #1f2430; --soft: #5c6470; --line: #dfe3e8; --page: #f6f7f9; --card: #ffffff;
  --blue: #1f6feb; --orange: #c96f10; --mark: #fff4d6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaee; --soft: #a2abb8; --line: #343b46;
  --page: #14171c; --card: #1d2127; --blue: #6cb0ff; --orange: #f0a34a; --mark: #3a3219; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header, main { max-width: 980px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 36px; }
h1 { margin: 0; font-size: 28px; line-height: 1.2; overflow-wrap: anywhere; }
header p { margin: 6px 0 22px; color: var(--soft); overflow-wrap: anywhere; }
h2 { margin: 0 0 12px; font-size: 17px; }
section, .cards > div { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
section { margin: 0 0 18px; padding: 18px 20px; }
.cards { display: grid; gap: 12px; margin: 0 0 18px;
  grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); }
.cards > div { padding: 12px 16px; }
.cards p { margin: 0; font-size: 13px; color: var(--soft); }
.cards strong { font-size: 23px; font-variant-numeric: tabular-nums; white-space: nowrap; }
a { color: var(--blue); }
figure { margin: 0; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
.narrow { display: none; }
.key { margin: 8px 0 0; font-size: 13px; color: var(--soft); }
.key span { margin-right: 14px; color: var(--ink); }
.key span::before { content: ""; display: inline-block; width: 18px; height: 3px;
  margin: 0 6px 3px 0; border-radius: 2px; background: currentColor; }
.key .evaluation::before { background: var(--blue); }
.key .training::before { background: var(--orange); }
.charts { display: grid; gap: 18px 22px;
  grid-template-columns: repeat(auto-fill, minmax(260px, 1fr)); }
figcaption { display: flex; justify-content: space-between; gap: 8px; font-size: 13px; }
figcaption span { color: var(--soft); font-variant-numeric: tabular-nums; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Consolas, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; }
pre { margin: 2px 0 12px; padding: 9px 12px; overflow-x: auto; border-radius: 6px;
  background: var(--page); border: 1px solid var(--line); }
section > p { margin: 0 0 4px; font-size: 13px; color: var(--soft); }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 14px; }
th { text-align: left; white-space: nowrap; font-weight: 600; color: var(--soft); font-size: 13px; }
th, td { padding: 5px 12px 5px 8px; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
.numbers td { font-variant-numeric: tabular-nums; white-space: nowrap; }
.numbers th:not(:first-child), .numbers td:not(:first-child) { text-align: right; }
.settings code { white-space: nowrap; }
.settings td:nth-child(2) { min-width: 90px; font-variant-numeric: tabular-nums; }
.settings td:nth-child(3), small { color: var(--soft); font-size: 13px; }
small { display: block; white-space: nowrap; }
.marked td { background: var(--mark); }
summary { cursor: pointer; padding: 8px; color: var(--soft); font-size: 13px; }
.film { display: block; max-width: 100%; max-height: 480px; margin: 0 auto; border-radius: 6px;
  border: 1px solid var(--line); }
@media (max-width: 940px) {
  .cards { grid-template-columns: repeat(var(--half), minmax(0, 1fr)); }
}
@media (max-width: 620px) {
  header, main { padding-left: 12px; padding-right: 12px; }
  header { padding-top: 22px; } h1 { font-size: 22px; } section { padding: 14px 12px; }
  .cards { grid-template-columns: 1fr 1fr; gap: 8px; } .cards > div { padding: 10px 12px; }
  .cards strong { font-size: 19px; white-space: normal; }
  .wide { display: none; } .narrow { display: block; }
  .settings td:nth-child(3), .settings th:nth-child(3) { display: none; }
}
@media print { body { background: none; } section { break-inside: avoid; } }
"""
