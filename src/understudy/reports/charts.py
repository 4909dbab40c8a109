"""Charts for a page: SVG in the page's own colors, so that they follow light and dark.

Matplotlib draws in placeholder colors, which become CSS variables.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from understudy.ops.statistics import mean_with_band
from understudy.reports.curves import FEWEST_IN_A_BAND, Curve, draw_seeds, on_common_steps

MOST_POINTS = 500

INK, LINE, BLUE, ORANGE = "#010203", "#010204", "#010205", "#010206"
VARIABLES = {INK: "--soft", LINE: "--line", BLUE: "--blue", ORANGE: "--orange"}
COLORS = {"evaluation": BLUE, "training": ORANGE}


def wide_chart(found: Mapping[str, Sequence[Curve]], narrow: bool) -> str:
    """Returns by name ("evaluation", "training"), for a wide screen or a narrow one."""

    def draw(axes: Axes) -> None:
        for name, curves in found.items():
            steps, returns = on_common_steps(list(curves))
            center, low, high = mean_with_band(returns)
            width = 2.0 if name == "evaluation" else 1.3
            _line(axes, steps, center, COLORS[name], width)
            if len(curves) >= FEWEST_IN_A_BAND:
                axes.fill_between(steps, low, high, color=COLORS[name], alpha=0.2, lw=0)
            elif len(curves) > 1:
                draw_seeds(axes, steps, returns, COLORS[name])

    return _svg((4.6, 3.3) if narrow else (11.5, 4.2), draw, "learning curve")


def small_chart(steps: np.ndarray, values: np.ndarray) -> str:
    return _svg((3.6, 1.9), lambda axes: _line(axes, steps, values, BLUE, 1.5), "curve")


def _line(axes: Axes, steps: np.ndarray, values: np.ndarray, color: str, width: float) -> None:
    every = -(-len(steps) // MOST_POINTS)
    # From the end: the newest value is always among them.
    steps, values = steps[::-1][::every], values[::-1][::every]
    marker = "o" if len(steps) <= 12 else None
    axes.plot(steps, values, color=color, lw=width, marker=marker, ms=2.5 * width**0.5)


def _svg(inches: tuple[float, float], draw: Callable[[Axes], None], name: str) -> str:
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "understudy",
        "font.size": 9.5,
    }
    buffer = io.StringIO()
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        _decorate(axes)
        figure.savefig(buffer, format="svg", transparent=True)
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Names of parts, which would occur once in every chart of the page.
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def _decorate(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(True, color=LINE, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=INK)
    axes.margins(x=0.02)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(LINE)
