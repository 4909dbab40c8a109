"""Pictures of how repertoires grew: QD-score, coverage and best fitness over evaluations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from understudy.reports.curves import (
    INK,
    Run,
    add_legend,
    by_environment,
    decorate,
    draw_group,
    grouped,
    legend_height,
    read_runs,
    save_figure,
    seeds_in,
)

EVALUATIONS, OFFSET = "time/evaluations", "qd/score_offset"
METRICS = {"qd_score": "QD-score", "coverage": "coverage", "max_fitness": "best fitness"}
CORRECTED = "after re-evaluation"
ORANGE = "#d55e00"


def growth(runs: Sequence[Path | str], out_png: Path | str) -> Path:
    """Draws three curves for one run; for several, a row of panels for each environment, and in
    it a curve for each method and setting, with the 95 % interval across seeds."""
    found = by_environment(read_runs(runs))
    labels = [group.label for members in found.values() for group in grouped(members, ())]
    labels, several = list(dict.fromkeys(labels)), sum(map(len, found.values())) > 1
    below = legend_height(labels, 3) if several else 0.0
    size = (12.0, 3.4 * len(found) + below)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    rows = figure.subplots(len(found), len(METRICS), squeeze=False)
    handles: dict[str, Any] = {}
    groups = []
    for row, (env, members) in zip(rows, found.items(), strict=True):
        for axes, metric in zip(row, METRICS, strict=True):
            groups = grouped(members, (f"qd/{metric}",), EVALUATIONS)
            for group in groups:
                handles[group.label] = draw_group(axes, group, labels.index(group.label))
            _decorate(axes, metric, members)
            if not several:
                _mark_corrected(axes, metric, members[0])
        title = env if several else members[0].title
        row[0].set_title(title, loc="left", color=INK, fontweight="bold", parse_math=False)
    if several:
        add_legend(figure, handles, 3, seeds_in(groups))
    return save_figure(figure, Path(out_png))


def _decorate(axes: Axes, metric: str, runs: list[Run]) -> None:
    name = METRICS[metric]
    if metric == "qd_score":
        name += _above({offset for run in runs if (offset := _last(run, OFFSET)) is not None})
    decorate(axes, "", "evaluations", name)
    if metric == "coverage":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    if metric != "max_fitness" and axes.lines:
        axes.set_ylim(bottom=0.0)
    if not any(len(line.get_xdata()) for line in axes.lines):  # type: ignore[arg-type]
        axes.text(0.5, 0.5, "nothing yet", transform=axes.transAxes, ha="center", color=INK)


def _above(offsets: set[float]) -> str:
    """Scores above unlike offsets are not to be compared: then the picture says so."""
    if not offsets:
        return ""
    low, high = min(offsets), max(offsets)
    return f" above {low:.4g}" if low == high else f" above {low:.4g} … {high:.4g}: not comparable"


def _mark_corrected(axes: Axes, metric: str, run: Run) -> None:
    value, place = _last(run, f"qd/corrected_{metric}"), _last(run, EVALUATIONS)
    if value is None or place is None:
        return
    axes.plot([place], [value], "o", color=ORANGE, ms=5, zorder=3, label=CORRECTED)
    if metric == "qd_score":
        axes.legend(loc="lower right", frameon=False, labelcolor=INK)


def _last(run: Run, column: str) -> float | None:
    values = run.log.get(column)
    if values is None or values.dtype.kind != "f":
        return None
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else None
