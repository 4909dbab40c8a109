"""A run as one HTML page: what was run, how it went, and how to go on."""

import re
import shlex
from datetime import timedelta
from html import escape
from pathlib import Path

import numpy as np

from understudy.algorithms import available
from understudy.ops.statistics import iqm, stratified_bootstrap_interval
from understudy.reports import page
from understudy.reports.charts import wide_chart
from understudy.reports.curves import EVALUATION, TRAINING, Run, curves_of, read_run, spread_of
from understudy.reports.page import known
from understudy.runs.csv_log import STEPS
from understudy.runs.progress import compact

MOST_SEEDS = 8  # with a column of their own in the table of evaluations
OPEN_EVALUATIONS = 10  # the newest ones; the rest unfolds


def report(
    run_dir: Path | str, out_html: Path | str | None = None, video: Path | str | None = None
) -> Path:
    """Writes the page (by default `report.html` in the run directory) and says where."""
    run = read_run(run_dir)
    film = "" if video is None else page.film(Path(video))
    out = run.directory / "report.html" if out_html is None else Path(out_html)
    return page.write(out, _page(run, film))


def _page(run: Run, film: str) -> str:
    algorithm = available().get(str(run.about.get("algorithm")))
    config_class = None if algorithm is None else algorithm.config_class
    sections = [
        page.cards(_headline(run)),
        page.section("Learning", _learning(run)),
        page.section("An episode", film),
        page.section("Evaluations", _evaluations(run)),
        page.section("Training in detail", _details(run)),
        page.section("Faults", page.faults(run)),
        page.section("Settings", page.settings(run, config_class)),
        page.section("Go on", page.commands(_commands(run))),
    ]
    return page.framed(run.title, _subtitle(run), sections)


def _subtitle(run: Run) -> list[str]:
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
    return parts


# -- figures ------------------------------------------------------------------------------------


def _headline(run: Run) -> list[page.Card]:
    cards: list[page.Card] = []
    steps, scores = known(run, EVALUATION)
    if scores.size:
        _, spread = known(run, "eval/std_reward")
        std = f"± {compact(float(spread[-1]))} " if spread.size == scores.size else ""
        best = int(scores.argmax())
        cards.append(("Last evaluation", compact(float(scores[-1])), std + _at(steps[-1])))
        cards.append(("Best evaluation", compact(float(scores[best])), _at(steps[best])))
        cards += _across_seeds(run)
    else:
        steps, returns = known(run, TRAINING[0])
        if returns.size:
            cards.append(("Return in training", compact(float(returns[-1])), _at(steps[-1])))
    _, seconds = known(run, "time/time_elapsed")
    if seconds.size and seconds[-1] > 0:
        cards.append(("Time", str(timedelta(seconds=round(float(seconds[-1])))), "h:mm:ss"))
        speed = _last_step(run) / float(seconds[-1])
        several = run.about.get("num_seeds", 1) != 1
        cards.append(("Steps a second", f"{speed:,.0f}", "for each seed" if several else "overall"))
    return cards


def _across_seeds(run: Run) -> list[page.Card]:
    """Of the last evaluation, where there are several seeds."""
    last = [float(curve.returns[-1]) for curve in curves_of(run.log, (EVALUATION,))]
    if len(last) < 2:
        return []
    low, high = stratified_bootstrap_interval(last, iqm)
    interval = f"of their means; its 95 % interval {compact(low)} … {compact(high)}"
    return [(f"IQM of {len(last)} seeds", compact(iqm(last)), interval)]


def _last_step(run: Run) -> float:
    steps, _ = known(run, STEPS)
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
    note = f"; {spread_of(seeds)}" if seeds > 1 else ""
    keys = "".join(f'<span class="{name}">{name}</span>' for name in found)
    return (
        f'<figure class="wide">{wide_chart(found, narrow=False)}</figure>\n'
        f'<figure class="narrow">{wide_chart(found, narrow=True)}</figure>\n'
        f'<p class="key">{keys} return over environment steps{note}</p>\n'
    )


def _details(run: Run) -> str:
    names = [
        name
        for name in run.log
        if name.startswith(("train/", "time/fps", "rollout/ep_len"))
        and not page.FAULTS.search(name)
        and not re.search(r"/seed\d+$", name)
    ]
    order = sorted(names, key=lambda name: (not name.startswith("train/"), name))
    return page.small_multiples(run, order)


# -- tables -------------------------------------------------------------------------------------


def _evaluations(run: Run) -> str:
    scores = known(run, EVALUATION)[1]
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
    table = page.table(head, body[:OPEN_EVALUATIONS], "numbers")
    rest = body[OPEN_EVALUATIONS:]
    if rest:
        table += f"<details><summary>{len(rest)} earlier ones</summary>"
        table += f"{page.table(head, rest, 'numbers')}</details>\n"
    return table


def _cell(run: Run, name: str, row: int) -> str:
    value = run.log[name][row]
    if isinstance(value, str):
        return value
    return compact(float(value)) if np.isfinite(value) else "–"


def _commands(run: Run) -> list[tuple[str, str]]:
    place = shlex.quote(str(run.directory))
    steps = 2 * int(_last_step(run)) or 10_000
    return [
        (f"go on until step {steps:,}", f"resume {place} --steps {steps}"),
        ("play and measure", f"eval {place} --episodes 20 --json"),
        ("film an episode", f"eval {place} --video episode.mp4"),
        ("take the policy elsewhere", f"export {place} policy.onnx"),
    ]
