"""A run as one HTML page: what was run, how it went, and how to go on.

The page stands alone: no network, no scripts, every picture inside. Whatever comes from a file is
escaped.
"""

import base64
import itertools
import os
import re
import shlex
from collections.abc import Iterable
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from understudy.algorithms import available
from understudy.algorithms.settings import by_topic, field_docs
from understudy.errors import ConfigError
from understudy.math.statistics import iqm, stratified_bootstrap_interval
from understudy.runs.charts import small_chart, wide_chart
from understudy.runs.csv_log import STEPS
from understudy.runs.plots import EVALUATION, TRAINING, Run, curves_of, read_run
from understudy.runs.progress import compact

MOST_VIDEO_BYTES = 20_000_000
MOST_SEEDS = 8  # with a column of their own in the table of evaluations
OPEN_EVALUATIONS = 10  # the newest ones; the rest unfolds
VIDEO_KINDS = {".mp4": "video/mp4", ".gif": "image/gif"}
# Columns that count what went wrong.
FAULTS = re.compile(r"^(faults?|envs?)/|discarded|rebuilds|restarts|dropped|clipped_values")


def report(
    run_dir: Path | str, out_html: Path | str | None = None, video: Path | str | None = None
) -> Path:
    """Writes the page (by default `report.html` in the run directory) and says where."""
    run = read_run(run_dir)
    film = "" if video is None else _video(Path(video))
    out = run.directory / "report.html" if out_html is None else Path(out_html)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.tmp")
    temporary.write_text(_page(run, film), encoding="utf-8")
    os.replace(temporary, out)
    return out


def _page(run: Run, film: str) -> str:
    title = escape(f"{run.algorithm} on {run.about.get('env') or 'your environment'}")
    sections = [
        _headline(run),
        _section("Learning", _learning(run)),
        _section("An episode", film),
        _section("Evaluations", _evaluations(run)),
        _section("Training in detail", _small_multiples(run)),
        _section("Faults", _faults(run)),
        _section("Settings", _settings(run)),
        _section("Go on", _commands(run)),
    ]
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
<header><h1>{title}</h1><p>{_subtitle(run)}</p></header>
<main>
{"".join(sections)}
</main>
</body>
</html>
"""


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{heading}</h2>\n{body}</section>\n" if body else ""


def _subtitle(run: Run) -> str:
    about = run.about
    first, count = run.first_seed, about.get("num_seeds", 1)
    several = isinstance(count, int) and count > 1
    seeds = f"seeds {first}–{first + count - 1}" if several else f"seed {first}"
    parts = [f"{_last_step(run):,.0f} steps{' each' if several else ''}", seeds]
    if about.get("preset"):
        parts.append(f"preset {about['preset']}")
    if about.get("num_envs", 1) != 1:
        parts.append(f"{about['num_envs']} environments")
    if about.get("understudy"):
        parts.append(f"understudy {about['understudy']}")
    return " · ".join(escape(part) for part in parts)


# -- figures ------------------------------------------------------------------------------------


def _headline(run: Run) -> str:
    cards = []
    steps, scores = _known(run, EVALUATION)
    if scores.size:
        _, spread = _known(run, "eval/std_reward")
        std = f"± {compact(float(spread[-1]))} " if spread.size == scores.size else ""
        best = int(scores.argmax())
        cards.append(("Last evaluation", compact(float(scores[-1])), std + _at(steps[-1])))
        cards.append(("Best evaluation", compact(float(scores[best])), _at(steps[best])))
        cards += _across_seeds(run)
    else:
        steps, returns = _known(run, TRAINING[0])
        if returns.size:
            cards.append(("Return in training", compact(float(returns[-1])), _at(steps[-1])))
    _, seconds = _known(run, "time/time_elapsed")
    if seconds.size and seconds[-1] > 0:
        cards.append(("Time", str(timedelta(seconds=round(float(seconds[-1])))), "h:mm:ss"))
        speed = _last_step(run) / float(seconds[-1])
        several = run.about.get("num_seeds", 1) != 1
        cards.append(("Steps a second", f"{speed:,.0f}", "for each seed" if several else "overall"))
    return f'<div class="cards">{"".join(map(_card, cards))}</div>\n' if cards else ""


def _across_seeds(run: Run) -> list[tuple[str, str, str]]:
    """Of the last evaluation, where there are several seeds."""
    last = [float(curve.returns[-1]) for curve in curves_of(run.log, (EVALUATION,))]
    if len(last) < 2:
        return []
    low, high = stratified_bootstrap_interval(last, iqm)
    interval = f"95 % interval {compact(low)} … {compact(high)}"
    return [(f"IQM of {len(last)} seeds", compact(iqm(last)), interval)]


def _card(card: tuple[str, str, str]) -> str:
    name, value, note = map(escape, card)
    return f"<div><p>{name}</p><strong>{value}</strong><p>{note}</p></div>"


def _known(run: Run, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a column where both are numbers."""
    values, steps = run.log.get(name), run.log.get(STEPS)
    if values is None or steps is None or values.dtype.kind != "f" or steps.dtype.kind != "f":
        return np.array([]), np.array([])
    known = np.isfinite(values) & np.isfinite(steps)
    return steps[known], values[known]


def _last_step(run: Run) -> float:
    steps, _ = _known(run, STEPS)
    return float(steps.max()) if steps.size else 0.0


def _at(step: float) -> str:
    return f"at step {step:,.0f}"


# -- pictures -----------------------------------------------------------------------------------


def _learning(run: Run) -> str:
    found = {
        name: found
        for name, stems in (("training", TRAINING), ("evaluation", (EVALUATION,)))
        if (found := curves_of(run.log, stems))
    }
    if not found:
        return "<p>No episode has ended yet.</p>\n"
    seeds = max(map(len, found.values()))
    note = f"; mean and 95 % interval of {seeds} seeds" if seeds > 1 else ""
    keys = "".join(f'<span class="{name}">{name}</span>' for name in found)
    return (
        f'<figure class="wide">{wide_chart(found, narrow=False)}</figure>\n'
        f'<figure class="narrow">{wide_chart(found, narrow=True)}</figure>\n'
        f'<p class="key">{keys} return over environment steps{note}</p>\n'
    )


def _small_multiples(run: Run) -> str:
    names = [
        name
        for name in run.log
        if name.startswith(("train/", "time/fps", "rollout/ep_len"))
        and not FAULTS.search(name)
        and not re.search(r"/seed\d+$", name)
    ]
    charts = []
    for name in sorted(names, key=lambda name: (not name.startswith("train/"), name)):
        steps, values = _known(run, name)
        if steps.size:
            charts.append(
                f"<figure>{small_chart(steps, values)}<figcaption><code>{escape(name)}</code>"
                f"<span>{escape(compact(float(values[-1])))}</span></figcaption></figure>\n"
            )
    return f'<div class="charts">{"".join(charts)}</div>\n' if charts else ""


def _video(path: Path) -> str:
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


# -- tables -------------------------------------------------------------------------------------


def _evaluations(run: Run) -> str:
    scores = _known(run, EVALUATION)[1]
    if not scores.size:
        return ""
    other = [name for name in run.log if name.startswith("eval/") and name != EVALUATION]
    per_seed = [name for name in other if name.startswith(f"{EVALUATION}/seed")]
    other = [name for name in other if name not in per_seed]
    names = [name.removeprefix("eval/").removesuffix("_reward") for name in other]
    if len(per_seed) <= MOST_SEEDS:
        names += [f"seed {run.first_seed + i}" for i in range(len(per_seed))]
        other += per_seed
    rows = np.flatnonzero(np.isfinite(run.log[EVALUATION]) & np.isfinite(run.log[STEPS]))
    best = int(rows[scores.argmax()])
    head = "".join(f"<th>{escape(name)}</th>" for name in ["steps", "mean", *names])
    body = []
    for row in rows[::-1].tolist():
        cells = [f"{run.log[STEPS][row]:,.0f}", *(_cell(run, n, row) for n in [EVALUATION, *other])]
        mark = ' class="marked" title="the best"' if row == best else ""
        body.append(f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    table = _table(head, body[:OPEN_EVALUATIONS], "numbers")
    rest = body[OPEN_EVALUATIONS:]
    if rest:
        table += f"<details><summary>{len(rest)} earlier ones</summary>"
        table += f"{_table(head, rest, 'numbers')}</details>\n"
    return table


def _cell(run: Run, name: str, row: int) -> str:
    value = run.log[name][row]
    if isinstance(value, str):
        return value
    return compact(float(value)) if np.isfinite(value) else "–"


def _table(head: str, rows: Iterable[str], kind: str) -> str:
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def _faults(run: Run) -> str:
    """Counts that grew; a run in which nothing went wrong has no such section."""
    rows = []
    for name in run.log:
        _, counts = _known(run, name)
        if FAULTS.search(name) and counts.size and counts.max() > 0:
            rows.append(
                f"<tr><td><code>{escape(name)}</code></td><td>{counts.max():,.0f}</td></tr>"
            )
    return _table("<th>what</th><th>how many</th>", rows, "numbers") if rows else ""


def _settings(run: Run) -> str:
    """The whole config; what differs from the algorithm's defaults is marked."""
    algorithm = available().get(str(run.about.get("algorithm")))
    defaults: dict[str, Any] = {}
    docs: dict[str, str] = {}
    if algorithm is not None:
        kind = algorithm.config_class
        docs = field_docs(kind)
        fields = itertools.chain.from_iterable(by_topic(kind).values())
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
    return note + _table(head, rows, "settings") if rows else ""


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " × ".join(map(str, value))
    if type(value) is int:
        return f"{value:,}"
    return "–" if value is None else str(value)


def _commands(run: Run) -> str:
    place = shlex.quote(str(run.directory))
    steps = 2 * int(_last_step(run)) or 10_000
    lines = [
        (f"go on until step {steps:,}", f"resume {place} --steps {steps}"),
        ("play and measure", f"eval {place} --episodes 20 --json"),
        ("film an episode", f"eval {place} --video episode.mp4"),
        ("take the policy elsewhere", f"export {place} policy.onnx"),
    ]
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
  grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); }
.cards > div { padding: 12px 16px; }
.cards p { margin: 0; font-size: 13px; color: var(--soft); }
.cards strong { font-size: 23px; font-variant-numeric: tabular-nums; white-space: nowrap; }
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
