"""Charts for a page: SVG in the page's own colors, so that they follow light and dark.

Matplotlib draws in placeholder colors, which become CSS variables.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from understudy.reports.figures import draw_curves, style_axes
from understudy.reports.run_log import Curve

MOST_POINTS = 500
FEW_POINTS = 12  # have markers

INK, LINE, BLUE, ORANGE = "#010203", "#010204", "#010205", "#010206"
VARIABLES = {INK: "--soft", LINE: "--line", BLUE: "--blue", ORANGE: "--orange"}
STYLES = {"evaluation": (BLUE, 2.0), "training": (ORANGE, 1.3)}  # color and width


def wide_chart(found: Mapping[str, Sequence[Curve]], narrow: bool) -> str:
    """Returns by name ("evaluation", "training"), for a wide screen or a narrow one."""
    drawn = [(curves, *STYLES[name]) for name, curves in found.items()]
    return _svg((4.6, 3.3) if narrow else (11.5, 4.2), drawn, "learning curve")


def small_chart(curve: Curve) -> str:
    return _svg((3.6, 1.9), [([curve], BLUE, 1.5)], "curve")


def _thin(curve: Curve) -> Curve:
    """Leave out points of a long curve, but never the newest one."""
    every = -(-len(curve.steps) // MOST_POINTS)
    return Curve(curve.steps[::-1][::every][::-1], curve.returns[::-1][::every][::-1])


def _svg(
    inches: tuple[float, float], drawn: Iterable[tuple[Sequence[Curve], str, float]], name: str
) -> str:
    """Draw curves of a color and a width."""
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "understudy",
        "font.size": 9.5,
    }
    buffer = io.StringIO()
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        for curves, color, width in drawn:
            draw_curves(axes, list(map(_thin, curves)), color, width, FEW_POINTS)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.margins(x=0.02)
        style_axes(axes, INK, LINE, LINE)
        figure.savefig(buffer, format="svg", transparent=True)
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Names of parts, which would occur once in every chart of the page.
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)
