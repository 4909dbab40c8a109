"""Learning curves: of one run, and of several runs side by side."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from understudy.reports import figures
from understudy.reports.run_log import EVALUATION, RETURNS, Run, read_runs
from understudy.runs.csv_log import STEPS, read_csv
from understudy.types import UnderstudyError

MOST_NAMED_FIELDS = 3  # of a config, in a legend
# Returns -> color, width and order of their curve.
STYLES = {"training": ("#e08a1e", 1.4, 2), "evaluation": ("#1f6feb", 2.0, 3)}
NO_EPISODE = "no episode has ended yet"


def learning_curve(run_dir: Path | str, out_png: Path | str, title: str = "") -> Path:
    """Draw mean and 95 % interval across seeds of evaluation and training returns. Seeds are
    columns of the log, such as `eval/mean_reward/seed0`."""
    path = Path(run_dir) / "progress.csv"
    if not path.is_file():
        raise UnderstudyError(f"no log to draw a learning curve from: {path}")
    run = Run(path, {}, read_csv(path))
    figure, [axes] = figures.new_figure(1, 1, (8, 4.5))
    figures.decorate(axes, title, "environment steps", "return of an episode")
    for name, stems in RETURNS.items():
        curves = run.curves(stems)
        if curves:
            color, width, order = STYLES[name]
            # The seeds themselves: an interval hides the one that never learned.
            each = name == "evaluation" and 1 < len(curves) <= 10
            line = figures.draw_curves(axes, curves, color, width, 30, each, zorder=order)
            several = f" ({figures.spread_of(len(curves))})" if len(curves) > 1 else ""
            line.set_label(f"{name}: {line.get_ydata()[-1]:,.1f} at the end{several}")
    if axes.lines:
        axes.margins(x=0.01)
        axes.legend(loc="best", frameon=True, framealpha=0.85, edgecolor="none")
    else:
        axes.text(0.5, 0.5, NO_EPISODE, transform=axes.transAxes, ha="center", color=figures.INK)
    return figures.save_figure(figure, out_png)


def compare(runs: Sequence[Path | str], out_png: Path | str, title: str = "") -> Path:
    """Draw the learning curves of several runs: a panel for each environment, a curve for each
    algorithm and setting, with the mean and 95 % interval across all their seeds."""
    panels, found = [], by_environment(read_runs(runs))
    for env, members in found.items():
        evaluated = all(run.curves((EVALUATION,)) for run in members)
        kind = "evaluation" if evaluated else "training"
        names = {run.algorithm for run in members}
        heading = members[0].title if len(names) == len(found) == 1 else env
        groups = grouped(members, RETURNS[kind])
        panels.append(figures.Panel(heading, "environment steps", f"return ({kind})", groups))
    count = len(panels)
    columns = 2 if count == 4 else min(count, 3)
    each = (8.0, 4.3) if count == 1 else (5.0, 3.4)
    figure, _ = figures.draw_panels(panels, columns, each, NO_EPISODE, legend=True)
    if title:
        figure.suptitle(title, x=0.01, ha="left", color=figures.INK, parse_math=False)
    return figures.save_figure(figure, out_png)


def by_environment(runs: list[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.env, []).append(run)
    return found


def grouped(runs: list[Run], stems: Sequence[str], over: str = STEPS) -> list[figures.Group]:
    """The curves of some columns over another. Runs that differ only in the seed are one group; a
    seed that was run twice counts once: the run that went further."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        what = [run.algorithm, run.settings] if run.about else str(run.directory.resolve())
        alike.setdefault(json.dumps(what, sort_keys=True, default=str), []).append(run)
    groups, labels = [], _labels([same[0] for same in alike.values()])
    for label, same in zip(labels, alike.values(), strict=True):
        by_seed = {}
        for run in same:
            for seed, curve in enumerate(run.curves(stems, over), run.first_seed):
                if seed not in by_seed or curve.steps[-1] > by_seed[seed].steps[-1]:
                    by_seed[seed] = curve
        groups.append(figures.Group(label, list(by_seed.values())))
    return groups


def _labels(runs: list[Run]) -> list[str]:
    """What distinguishes these runs: the algorithm, and the settings in which its runs differ."""
    several = len({run.algorithm for run in runs}) > 1
    labels = []
    for run in runs:
        siblings = [other.settings for other in runs if other.algorithm == run.algorithm]
        parts = [
            f"{name} {_spell(value)}"
            for name, value in run.settings.items()
            if any(settings.get(name) != value for settings in siblings)
        ]
        if len(parts) > MOST_NAMED_FIELDS:
            more = len(parts) - MOST_NAMED_FIELDS
            parts = [*parts[:MOST_NAMED_FIELDS], f"{more} more"]
        if several or not parts:
            parts = [run.algorithm, *parts]
        labels.append(", ".join(parts))
    return [
        label if labels.count(label) == 1 else f"{label} ({run.directory.name})"
        for label, run in zip(labels, runs, strict=True)
    ]


def _spell(value: Any) -> str:
    return "×".join(map(str, value)) if isinstance(value, list) else str(value).lower()
