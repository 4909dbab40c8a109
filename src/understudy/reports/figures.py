"""How every chart looks: colors, axes, curves with their intervals, legends.

Drawn without pyplot, which keeps global state and may look for a screen.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from understudy.ops.statistics import mean_with_band
from understudy.reports.run_log import Curve
from understudy.runs.files import write_whole
from understudy.types import ConfigError

INK, SOFT, GRID, SPINE = "#30343b", "#6b7280", "#d9dce1", "#aab0b8"
# The colors of Okabe and Ito, which color-blind readers can distinguish; dashes help, too.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#30343b", "#8f6a3a",
          "#7b3fb5")  # fmt: skip
DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)))
FEWEST_IN_A_BAND = 3  # seeds; fewer are drawn one by one


class Group(NamedTuple):
    """Runs that differ only in the seed: one curve with an interval."""

    label: str
    curves: list[Curve]


class Panel(NamedTuple):
    """One chart of a figure."""

    title: str
    along: str  # the label of the horizontal axis
    up: str  # the label of the vertical axis
    groups: list[Group]


def new_figure(
    panels: int, columns: int, each: tuple[float, float], below: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """A figure with panels of a size in inches, and so many inches more below them."""
    rows = math.ceil(panels / columns)
    size = (each[0] * columns, each[1] * rows + below)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[panels:]:
        axes.set_visible(False)
    return figure, grid[:panels]


def draw_panels(
    panels: Sequence[Panel], columns: int, each: tuple[float, float], empty: str, legend: bool
) -> tuple[Figure, list[Axes]]:
    """Draw the curves of every group, one color for a label in all panels. A panel without curves
    says `empty`."""
    groups = [group for panel in panels for group in panel.groups]
    labels = list(dict.fromkeys(group.label for group in groups))
    below = legend_height(labels, columns) if legend else 0.0
    figure, grid = new_figure(len(panels), columns, each, below)
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid, panels, strict=True):
        for group in panel.groups:
            handles[group.label] = draw_group(axes, group, labels.index(group.label))
        decorate(axes, panel.title, panel.along, panel.up)
        if any(group.curves for group in panel.groups):
            axes.margins(x=0.01)
        else:
            axes.text(0.5, 0.5, empty, transform=axes.transAxes, ha="center", color=INK)
    if legend:
        add_legend(figure, handles, columns, seeds_in(groups))
    return figure, grid


def draw_group(axes: Axes, group: Group, index: int) -> Any:
    """Draw a group in the color and dash of its index; returns the line."""
    color, dash = COLORS[index % len(COLORS)], DASHES[index // 4 % len(DASHES)]
    if not group.curves:
        return axes.plot([], [], ls=dash, color=color, lw=2)[0]
    return draw_curves(axes, group.curves, color, ls=dash)


def draw_curves(
    axes: Axes,
    curves: Sequence[Curve],
    color: str,
    width: float = 2.0,
    markers: int = 1,
    every_seed: bool = False,
    **style: Any,
) -> Any:
    """Draw the mean of the curves with its 95 % interval, or with each curve where there are too
    few for an interval (or `every_seed` is wanted). Curves of at most `markers` points have
    markers. Returns the line of the mean."""
    steps, returns = on_common_steps(curves)
    center, low, high = mean_with_band(returns)
    seeds = len(curves)
    if seeds >= FEWEST_IN_A_BAND:
        axes.fill_between(steps, low, high, color=color, alpha=0.2, lw=0, zorder=1)
    if every_seed or 1 < seeds < FEWEST_IN_A_BAND:
        marker = "o" if steps.size == 1 else None
        axes.plot(steps, returns.T, marker=marker, ms=3, color=color, lw=0.8, alpha=0.45, zorder=1)
    marker = "o" if steps.size <= markers else None
    style = {"zorder": 2, **style}
    return axes.plot(steps, center, marker=marker, ms=4, color=color, lw=width, **style)[0]


def on_common_steps(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Steps [points] and returns [seeds, points], interpolated, NaN where a seed has no data."""
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    returns = [
        np.interp(steps, curve.steps, curve.returns, left=np.nan, right=np.nan) for curve in curves
    ]
    return steps, np.stack(returns)


def seeds_in(groups: Sequence[Group]) -> str:
    """The note of a legend: what is drawn of several seeds."""
    seeds = sorted({len(group.curves) for group in groups})
    if seeds[-1] < 2:
        return ""
    fewest = f"{seeds[0]}–" if seeds[0] < seeds[-1] else ""
    return spread_of(seeds[-1], f"{fewest}{seeds[-1]}")


def spread_of(seeds: int, written: str = "") -> str:
    """What is drawn of several seeds. An interval of two would mean nothing."""
    what = "95 % interval" if seeds >= FEWEST_IN_A_BAND else "each"
    return f"mean and {what} of {written or seeds} seeds"


def decorate(axes: Axes, title: str, along: str, up: str) -> None:
    """Set the title, the labels and the style of the axes."""
    # A name is not mathematics, whatever signs are in it.
    axes.set_title(title, loc="left", color=INK, fontweight="bold", parse_math=False)
    axes.set_xlabel(along, color=INK)
    axes.set_ylabel(up, color=INK)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    style_axes(axes, INK, GRID, SPINE)


def style_axes(axes: Axes, ink: str, grid: str, spine: str) -> None:
    """Draw a light grid and the lower spine alone."""
    axes.grid(True, color=grid, lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=ink, length=0)
    for side, line in axes.spines.items():
        line.set_visible(side == "bottom")
        line.set_color(spine)


def add_legend(figure: Figure, handles: dict[str, Any], panel_columns: int, note: str) -> None:
    """Add one legend for all panels, under them."""
    legend = figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", frameon=False,
        ncols=_legend_columns(list(handles), panel_columns), handlelength=2.6, labelcolor=INK,
        title=note,
    )  # fmt: skip
    legend.get_title().set(color=SOFT, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)


def legend_height(labels: list[str], panel_columns: int) -> float:
    """In inches."""
    return 0.22 * (math.ceil(len(labels) / _legend_columns(labels, panel_columns)) + 1) + 0.2


def _legend_columns(labels: list[str], panel_columns: int) -> int:
    """As many as fit beside one another."""
    characters = 100 if panel_columns == 1 else 62 * panel_columns
    return max(1, min(4, len(labels), characters // (max(map(len, labels)) + 8)))


def save_figure(figure: Figure, out: Path | str) -> Path:
    """Write a picture in one move, so that a reader sees a whole one."""
    out = Path(out)
    kind = out.suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise ConfigError(f"{out}: a picture ends in .png, .svg or .pdf")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind)
    return write_whole(out, buffer.getvalue())
