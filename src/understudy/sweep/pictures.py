"""A sweep as a picture: for each field, the return against its value, and the learning curves
colored by it. Drawn without pyplot, which keeps global state."""

import itertools
from pathlib import Path
from typing import Any, final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from understudy.reports.figures import COLORS, GRID, INK, SPINE, save_figure, style_axes
from understudy.sweep.result import DIVERGED, FAILED, PRUNED, Outcome, SweepResult
from understudy.sweep.space import Range, spell_value

BRIGHTEST = 0.9  # of the color map: its last yellow is hard to see on white


def draw(result: SweepResult, out: Path) -> Path:
    """Draw a row of two panels for each varied field. Settings that failed are left out."""
    fields = [Field(result, name) for name in result.vary]
    figure = Figure(figsize=(10, 0.5 + 3.1 * len(fields)), dpi=150, layout="constrained")
    grid = figure.subplots(len(fields), 2, squeeze=False, sharey="col")
    for (left, right), varied in zip(grid, fields, strict=True):
        draw_returns(left, varied)
        draw_curves(right, varied)
    what = f"{result.algorithm.upper()} on {result.env}, {result.train_steps:,} steps"
    title = f"{what}; the best setting is ringed"
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontweight="bold", parse_math=False)
    return save_figure(figure, out)


@final
class Field:
    """One varied field, with the position and the color of its values."""

    def __init__(self, result: SweepResult, name: str):
        varied = result.vary[name]
        self.name, self.best = name, result.best
        self.outcomes = [one for one in result.outcomes if one.state not in (DIVERGED, FAILED)]
        self.choices: list[str] = []
        if isinstance(varied, Range):
            self.scale: Any = (LogNorm if varied.log else Normalize)(varied.low, varied.high)
        else:
            self.choices = [spell_value(value) for value in varied]

    def position(self, outcome: Outcome) -> float:
        value = outcome.settings[self.name]
        return float(self.choices.index(spell_value(value)) if self.choices else value)

    def color(self, outcome: Outcome) -> Any:
        if self.choices:
            return COLORS[int(self.position(outcome)) % len(COLORS)]
        return colormaps["viridis"](BRIGHTEST * self.scale(self.position(outcome)))

    def add_legend(self, axes: Axes) -> None:
        """Add a legend of the colors, or a color bar."""
        if self.choices:
            colors = itertools.islice(itertools.cycle(COLORS), len(self.choices))
            shown = [Line2D([], [], color=color, lw=2) for color in colors]
            beside = dict(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
            axes.legend(shown, self.choices, title=self.name, labelcolor=INK, **beside)  # type: ignore
            return
        trimmed = colormaps["viridis"](np.linspace(0, BRIGHTEST, 256))
        mappable = ScalarMappable(self.scale, ListedColormap(trimmed))
        axes.figure.colorbar(mappable, ax=axes, label=self.name)


def draw_returns(axes: Axes, varied: Field) -> None:
    for outcome in varied.outcomes:
        at = varied.position(outcome)
        each = outcome.returns.mean(axis=1)
        color = varied.color(outcome)  # as its curve beside it
        face = "white" if outcome.state == PRUNED else color
        if len(each) > 1:
            axes.plot([at] * len(each), each, "_", color=color, alpha=0.5, ms=9)
        axes.plot(at, outcome.mean, "o", color=color, mfc=face, ms=6)
        if outcome is varied.best:
            axes.plot(at, outcome.mean, "o", color=INK, mfc="none", ms=13, mew=1.8)
    if varied.choices:
        axes.set_xticks(range(len(varied.choices)), varied.choices)
        axes.set_xlim(-0.5, len(varied.choices) - 0.5)
    elif isinstance(varied.scale, LogNorm):
        axes.set_xscale("log")
    _decorate(axes, varied.name, "return at the end")


def draw_curves(axes: Axes, varied: Field) -> None:
    for outcome in reversed(varied.outcomes):  # the best one on top
        best = outcome is varied.best
        axes.plot(
            outcome.steps,
            outcome.curve.mean(axis=0),
            color=varied.color(outcome),
            lw=2.6 if best else 1.3,
            ls="--" if outcome.state == PRUNED else "-",
        )
    varied.add_legend(axes)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _decorate(axes, "environment steps", "return of evaluations")


def _decorate(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    style_axes(axes, INK, GRID, SPINE)
    axes.tick_params(labelleft=True)
