"""The growth of repertoires: QD-score, coverage and best fitness over evaluations."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from understudy.reports.curves import by_environment, grouped
from understudy.reports.figures import COLORS, INK, Panel, draw_panels, save_figure
from understudy.reports.run_log import Run, read_runs

EVALUATIONS, OFFSET = "time/evaluations", "qd/score_offset"
METRICS = {"qd_score": "QD-score", "coverage": "coverage", "max_fitness": "best fitness"}
CORRECTED = "after re-evaluation"


def growth(runs: Sequence[Path | str], out_png: Path | str) -> Path:
    """Draw three curves for one run; for several, a row of panels for each environment, and in
    it a curve for each method and setting, with the 95 % interval across seeds."""
    found = read_runs(runs)
    panels = []
    for env, members in by_environment(found).items():
        titles = [env if len(found) > 1 else members[0].title, "", ""]
        for title, (metric, name) in zip(titles, METRICS.items(), strict=True):
            up = name + _above(members) if metric == "qd_score" else name
            groups = grouped(members, (f"qd/{metric}",), EVALUATIONS)
            panels.append(Panel(title, "evaluations", up, groups))
    each = (12.0 / len(METRICS), 3.4)
    figure, grid = draw_panels(panels, len(METRICS), each, "nothing yet", legend=len(found) > 1)
    for index, axes in enumerate(grid):
        metric = list(METRICS)[index % len(METRICS)]
        if metric == "coverage":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        if metric != "max_fitness" and axes.lines:
            axes.set_ylim(bottom=0.0)
        if len(found) == 1:
            _mark_corrected(axes, metric, found[0])
    return save_figure(figure, out_png)


def _above(runs: list[Run]) -> str:
    """The offset of the QD-score. Scores above different offsets cannot be compared."""
    offsets = [offset for run in runs if (offset := run.last(OFFSET)) is not None]
    if not offsets:
        return ""
    low, high = min(offsets), max(offsets)
    return f" above {low:.4g}" if low == high else f" above {low:.4g} … {high:.4g}: not comparable"


def _mark_corrected(axes: Axes, metric: str, run: Run) -> None:
    value, place = run.last(f"qd/corrected_{metric}"), run.last(EVALUATIONS)
    if value is None or place is None:
        return
    axes.plot([place], [value], "o", color=COLORS[1], ms=5, zorder=3, label=CORRECTED)
    if metric == "qd_score":
        axes.legend(loc="lower right", frameon=False, labelcolor=INK)
