"""A run as one HTML page: what was run, how it went, and how to continue."""

import re
import shlex
from html import escape
from pathlib import Path

import numpy as np

from understudy.algorithms import available
from understudy.ops.statistics import iqm, stratified_bootstrap_interval
from understudy.reports import page
from understudy.reports.charts import wide_chart
from understudy.reports.figures import spread_of
from understudy.reports.repertoire_report import describe_repertoire
from understudy.reports.run_log import EVALUATION, RETURNS, SUCCESS, TRAINING, Run, read_run
from understudy.runs.csv_log import STEPS
from understudy.runs.files import write_whole
from understudy.runs.progress import compact

MOST_SEEDS = 8  # with a column of their own in the table of evaluations
OPEN_EVALUATIONS = 10  # the newest ones; the rest unfolds


def report(
    run_dir: Path | str, out_html: Path | str | None = None, video: Path | str | None = None
) -> Path:
    """Write the page of a run (by default `report.html` in the run directory); returns its path."""
    run = read_run(run_dir)
    film = "" if video is None else page.film(Path(video))
    out = run.directory / "report.html" if out_html is None else Path(out_html)
    content = (describe_repertoire if run.illuminates else _describe_training)(run, film)
    sections = content.sections | {
        "Faults": page.faults(run),
        "Settings": page.settings(run, content.config_class),
        "Next commands": page.commands(content.commands),
    }
    body = [page.cards(content.cards), *(page.section(*item) for item in sections.items())]
    return write_whole(out, page.framed(run.title, content.subtitle, body))


def _describe_training(run: Run, film: str) -> page.Content:
    algorithm = available().get(str(run.about.get("algorithm")))
    return page.Content(
        _subtitle(run),
        _headline(run),
        {
            "Learning": _learning(run, RETURNS, "return"),
            "Success": _learning(run, SUCCESS, "success rate"),
            "An episode": film,
            "Evaluations": _evaluations(run),
            "Numbers that the environment reports": _reported(run),
            "Training in detail": _details(run),
        },
        None if algorithm is None else algorithm.config_class,
        _commands(run),
    )


def _subtitle(run: Run) -> list[str]:
    about = run.about
    first, count = run.first_seed, about.get("num_seeds", 1)
    several = isinstance(count, int) and count > 1
    seeds = f"seeds {first}–{first + count - 1}" if several else f"seed {first}"
    parts = [f"{_last_step(run):,.0f} steps{' each' if several else ''}", seeds]
    parts += run.facts("env_args", "preset")
    if about.get("num_envs", 1) != 1:
        parts.append(f"{about['num_envs']} environments")
    return parts + run.facts("understudy")


def _headline(run: Run) -> list[page.Card]:
    cards: list[page.Card] = []
    steps, scores = run.column(EVALUATION)
    if scores.size:
        _, spread = run.column("eval/std_reward")
        std = f"± {compact(float(spread[-1]))} " if spread.size == scores.size else ""
        best = int(scores.argmax())
        cards.append(("Last evaluation", compact(float(scores[-1])), std + _at(steps[-1])))
        cards.append(("Best evaluation", compact(float(scores[best])), _at(steps[best])))
        steps, rates = run.column(SUCCESS["evaluation"][0])
        if rates.size:
            cards.append(("Success rate", f"{rates[-1]:.0%}", _at(steps[-1])))
        cards += _across_seeds(run)
    else:
        steps, returns = run.column(TRAINING[0])
        if returns.size:
            cards.append(("Return in training", compact(float(returns[-1])), _at(steps[-1])))
    note = "overall" if run.about.get("num_seeds", 1) == 1 else "for each seed"
    return cards + page.speed_cards(run, _last_step(run), "Steps", note)


def _across_seeds(run: Run) -> list[page.Card]:
    """The IQM of the last evaluation, where there are several seeds."""
    last = [float(curve.returns[-1]) for curve in run.curves((EVALUATION,))]
    if len(last) < 2:
        return []
    low, high = stratified_bootstrap_interval(last, iqm)
    interval = f"of their means; its 95 % interval {compact(low)} … {compact(high)}"
    return [(f"IQM of {len(last)} seeds", compact(iqm(last)), interval)]


def _last_step(run: Run) -> float:
    steps, _ = run.column(STEPS)
    return float(steps.max()) if steps.size else 0.0


def _at(step: float) -> str:
    return f"at step {step:,.0f}"


def _learning(run: Run, stems: dict[str, tuple[str, ...]], quantity: str) -> str:
    """The curves of a quantity in training and in evaluations."""
    curves = {name: run.curves(each) for name, each in stems.items()}
    found = {name: known for name, known in curves.items() if known}
    if not found:
        return "" if stems is SUCCESS else "<p>No episode has ended yet.</p>\n"
    seeds = max(map(len, found.values()))
    note = f"; {spread_of(seeds)}" if seeds > 1 else ""
    keys = "".join(f'<span class="{name}">{name}</span>' for name in found)
    return (
        f'<figure class="wide">{wide_chart(found, narrow=False)}</figure>\n'
        f'<figure class="narrow">{wide_chart(found, narrow=True)}</figure>\n'
        f'<p class="key">{keys} {quantity} over environment steps{note}</p>\n'
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


def _evaluations(run: Run) -> str:
    scores = run.column(EVALUATION)[1]
    if not scores.size:
        return ""
    names = [name for name in run.log if name.startswith("eval/") and name != EVALUATION]
    per_seed = [name for name in names if name.startswith(f"{EVALUATION}/seed")]
    other = [name for name in names if not re.match("eval/info/|.*/seed[0-9]+$", name)]
    names = [re.sub("^eval/|_reward$|_rate$", "", name) for name in other]
    if len(per_seed) <= MOST_SEEDS:
        names += [f"seed {run.first_seed + i}" for i in range(len(per_seed))]
        other += per_seed
    lines = np.flatnonzero(np.isfinite(run.log[EVALUATION]) & np.isfinite(run.log[STEPS]))
    best = int(lines[scores.argmax()])
    rows = []
    for line in lines[::-1].tolist():
        cells = [f"{run.log[STEPS][line]:,.0f}"]
        cells += [escape(_cell(run, name, line)) for name in (EVALUATION, *other)]
        rows.append(page.row(cells, 'class="marked" title="the best"' if line == best else ""))
    heads = ["steps", "mean", *names]
    table = page.table(heads, rows[:OPEN_EVALUATIONS], "numbers")
    rest = rows[OPEN_EVALUATIONS:]
    if rest:
        table += f"<details><summary>{len(rest)} earlier ones</summary>"
        table += f"{page.table(heads, rest, 'numbers')}</details>\n"
    return table


def _reported(run: Run) -> str:
    """The means of the numbers in `info`: those of the last evaluation, and curves of training."""
    last = {
        name.removeprefix("eval/info/"): run.last(name)
        for name in run.log
        if name.startswith("eval/info/")
    }
    rows = [
        page.row([page.code(name), "–" if mean is None else f"{mean:.4g}"])
        for name, mean in last.items()
    ]
    charts = page.small_multiples(run, [name for name in run.log if name.startswith("info/")])
    heads = ["number", "mean in the last evaluation"]
    return (page.table(heads, rows, "numbers") if rows else "") + charts


def _cell(run: Run, name: str, line: int) -> str:
    value = run.log[name][line]
    if isinstance(value, str):
        return value
    if name.endswith("success_rate") and np.isfinite(value):
        return f"{value:.0%}"
    return compact(float(value)) if np.isfinite(value) else "–"


def _commands(run: Run) -> list[tuple[str, str]]:
    place = shlex.quote(str(run.directory))
    steps = 2 * int(_last_step(run)) or 10_000
    return [
        (f"continue until step {steps:,}", f"resume {place} --steps {steps}"),
        ("evaluate the agent", f"eval {place} --episodes 20 --json"),
        ("film an episode", f"eval {place} --video episode.mp4"),
        ("export the policy", f"export {place} policy.onnx"),
    ]
