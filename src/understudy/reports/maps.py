"""A repertoire as a picture: each cell in the color of its fitness, what is empty in gray.

As a file by matplotlib, without pyplot, which keeps global state; and as SVG for a page without
scripts, whose cells can be clicked.
"""

import io
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure

from understudy.errors import ConfigError
from understudy.qd.repertoire import Repertoire, metrics
from understudy.reports.curves import INK
from understudy.reports.outlines import NOTHING, Panel, panels
from understudy.runs.files import write_whole

COLORS = colormaps["viridis"]
EMPTY = "#e3e6ea"
SOFT = "#6b7280"


def heat_map(
    repertoire: Repertoire,
    out_png: Path | str,
    *,
    names: Sequence[str],
    title: str,
    offset: float | None = None,
) -> Path:
    """Draws one number of the descriptor as a strip, two as a map, more as a map for each pair of
    them. `names` are those of the descriptor's numbers. With an `offset` the QD-score is told."""
    out, kind = Path(out_png), Path(out_png).suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise ConfigError(f"{out}: a picture ends in .png, .svg or .pdf")
    _check_names(repertoire, names)
    seen = panels(repertoire)
    columns = min(len(seen), 3)
    rows = math.ceil(len(seen) / columns)
    each = (8.0, 2.0) if len(names) == 1 else (6.6, 5.6) if len(seen) == 1 else (4.0, 3.7)
    size = (each[0] * columns, each[1] * rows + 0.5)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    scale = _scale(repertoire)
    for axes, panel in zip(grid, seen, strict=False):
        _draw(axes, repertoire, panel, scale, names)
    for axes in grid[len(seen) :]:
        axes.set_visible(False)
    bar = figure.colorbar(ScalarMappable(scale, COLORS), ax=grid, pad=0.02, aspect=30)
    bar.set_label("fitness", color=INK)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.ax.tick_params(colors=INK, length=0)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontweight="bold", parse_math=False)
    told = _summary(repertoire, offset)
    figure.supxlabel(told, x=0.01, ha="left", color=SOFT, fontsize=8.5)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind)
    return write_whole(out, buffer.getvalue())


def _draw(
    axes: Axes, repertoire: Repertoire, panel: Panel, scale: Normalize, names: Sequence[str]
) -> None:
    colors = _colors(repertoire, panel, scale)
    thin = 0.0 if len(panel.polygons) > 2_000 else 0.4
    axes.add_collection(
        PolyCollection(panel.polygons, facecolors=colors, edgecolors="white", linewidths=thin)
    )
    low, high = repertoire.cells.low, repertoire.cells.high
    horizontal = panel.axes[0]
    axes.set_xlim(low[horizontal], high[horizontal])
    axes.set_xlabel(names[horizontal], color=INK, parse_math=False)
    if len(panel.axes) == 2:
        vertical = panel.axes[1]
        axes.set_ylim(low[vertical], high[vertical])
        axes.set_ylabel(names[vertical], color=INK, parse_math=False)
        axes.set_box_aspect(1)
    else:
        axes.set_ylim(0, 1)
        axes.set_yticks([])
    axes.tick_params(colors=INK, length=0, pad=5)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _colors(repertoire: Repertoire, panel: Panel, scale: Normalize) -> list[str]:
    fitness = np.asarray(repertoire.fitness)[panel.shown]
    return [
        EMPTY if cell == NOTHING else to_hex(COLORS(float(scale(number))))
        for cell, number in zip(panel.shown, fitness, strict=True)
    ]


def _scale(repertoire: Repertoire) -> Normalize:
    """From the worst fitness to the best."""
    known = np.asarray(repertoire.fitness)[np.asarray(repertoire.filled)]
    if not known.size:
        return Normalize(0.0, 1.0)
    low, high = float(known.min()), float(known.max())
    # A bar needs some height, where all are equally fit.
    return Normalize(low, high) if low < high else Normalize(low - 0.5, high + 0.5)


def _summary(repertoire: Repertoire, offset: float | None = None) -> str:
    cells, filled = repertoire.cells.count, int(repertoire.filled.sum())
    if not filled:
        return f"none of {cells:,} cells is filled yet"
    numbers = metrics(repertoire, 0.0 if offset is None else offset)
    told = f"{filled:,} of {cells:,} cells filled ({filled / cells:.1%})"
    told += f", best fitness {_spell(float(numbers['max_fitness']))}"
    if offset is not None:
        told += f", QD-score {_spell(float(numbers['qd_score']))} above {_spell(offset)}"
    return told if repertoire.cells.size <= 2 else f"{told}; the best of cells behind one another"


def _spell(number: float) -> str:
    """Five digits or all before the point, and a minus that is one."""
    digits = f"{number:,.0f}" if 1e4 <= abs(number) < 1e12 else f"{number:.5g}"
    return digits.replace("-", "−")


def _check_names(repertoire: Repertoire, names: Sequence[str]) -> None:
    size = repertoire.cells.size
    if len(names) != size:
        raise ConfigError(f"a descriptor of {size} numbers needs {size} names, got {list(names)}")


# -- for a page ---------------------------------------------------------------------------------

SIDE, LEFT, BELOW, STRIP, BAR = 600.0, 90.0, 60.0, 90.0, 140.0

STYLE = """
.repertoire svg { display: block; width: 100%; max-width: 660px; height: auto; margin: 0 auto; }
.repertoire .maps { display: grid; gap: 8px;
  grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); }
.repertoire .maps svg:not(:only-child) text { font-size: 22px; }
.repertoire text { fill: var(--soft, #5c6470); font: 15px system-ui, sans-serif; }
@media (max-width: 620px) { .repertoire text { font-size: 21px; } }
.repertoire path { stroke: var(--card, #fff); stroke-width: 0.8; }
.repertoire .none { fill: var(--line, #e3e6ea); }
.repertoire a { cursor: pointer; }
.repertoire a:hover path, .repertoire a:focus path { stroke: #e0332c; stroke-width: 3; }
.repertoire tbody tr { display: none; scroll-margin-top: 85vh; }
.repertoire tbody tr:target { display: table-row; }
"""


def cells_svg(repertoire: Repertoire, names: Sequence[str], prefix: str = "cell") -> str:
    """The same map as HTML for a page: pointing at a cell tells of it, clicking shows it in the
    table beneath. Maps on one page need different `prefix`es."""
    _check_names(repertoire, names)
    scale = _scale(repertoire)
    about = _Told(repertoire, names, prefix)
    maps = "".join(_map(repertoire, panel, scale, about) for panel in panels(repertoire))
    head = "".join(f"<th>{escape(name)}</th>" for name in ("cell", "fitness", *names, "evaluation"))
    return (
        f'<div class="repertoire"><p>{escape(_summary(repertoire))}. Click a cell to see what is '
        f'in it.</p>\n{_color_stops(prefix)}<div class="maps">\n{maps}</div>\n'
        f'<div class="scroll"><table class="numbers"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{about.rows()}</tbody></table></div></div>\n"
    )


@final
class _Told:
    """What there is to tell of each filled cell."""

    def __init__(self, repertoire: Repertoire, names: Sequence[str], prefix: str):
        self.names, self.prefix = names, prefix
        self._fitness = np.asarray(repertoire.fitness)
        self._descriptor = np.asarray(repertoire.descriptor)
        self._born = np.asarray(repertoire.born)

    def title(self, cell: int) -> str:
        numbers = zip(self.names, self._descriptor[cell], strict=True)
        where = ", ".join(f"{name} {number:.4g}" for name, number in numbers)
        return escape(
            f"cell {cell}: fitness {self._fitness[cell]:.6g}, {where}, "
            f"evaluation {self._born[cell]:,}"
        )

    def link(self, cell: int) -> str:
        return escape(f"{self.prefix}-{cell}")

    def rows(self) -> str:
        return "".join(self._row(cell) for cell in np.flatnonzero(self._born >= 0).tolist())

    def _row(self, cell: int) -> str:
        numbers = "".join(f"<td>{number:.4g}</td>" for number in self._descriptor[cell])
        return (
            f'<tr id="{self.link(cell)}"><td>{cell}</td><td>{self._fitness[cell]:.6g}</td>'
            f"{numbers}<td>{self._born[cell]:,}</td></tr>\n"
        )


def _map(repertoire: Repertoire, panel: Panel, scale: Normalize, about: _Told) -> str:
    flat = len(panel.axes) == 1
    height = STRIP if flat else SIDE
    low = np.array([*(repertoire.cells.low[axis] for axis in panel.axes), 0.0][:2])
    high = np.array([*(repertoire.cells.high[axis] for axis in panel.axes), 1.0][:2])
    parts = []
    for polygon, cell, color in zip(
        panel.polygons, panel.shown.tolist(), _colors(repertoire, panel, scale), strict=True
    ):
        places = (polygon - low) / (high - low)
        corners = " ".join(f"{LEFT + SIDE * x:.1f},{10 + height * (1 - y):.1f}" for x, y in places)
        if cell == NOTHING:
            parts.append(f'<path class="none" d="M{corners}Z"><title>empty</title></path>\n')
        else:
            parts.append(
                f'<a href="#{about.link(cell)}"><path fill="{color}" d="M{corners}Z">'
                f"<title>{about.title(cell)}</title></path></a>\n"
            )
    names = [escape(about.names[axis]) for axis in panel.axes]
    width, bottom = LEFT + SIDE + BAR, 10 + height + BELOW
    return (
        f'<svg viewBox="0 0 {width:.0f} {bottom:.0f}" role="img" '
        f'aria-label="fitness over {" and ".join(names)}">\n{"".join(parts)}'
        f"{_axes(low, high, names, height)}{_bar(scale, height, about.prefix)}</svg>\n"
    )


def _axes(low: np.ndarray, high: np.ndarray, names: list[str], height: float) -> str:
    parts = []
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        x, y = LEFT + SIDE * share, 10 + height * (1 - share)
        number = low + share * (high - low)
        parts.append(_text(x, 10 + height + 20, anchor, f"{number[0]:.4g}"))
        if len(names) == 2:
            parts.append(_text(LEFT - 8, y + 12 * share, "end", f"{number[1]:.4g}"))
    parts.append(_text(LEFT + SIDE / 2, 10 + height + 46, "middle", names[0]))
    if len(names) == 2:
        middle = 10 + height / 2
        turned = f'transform="rotate(-90 16 {middle:.0f})"'
        parts.append(_text(16.0, middle, "middle", names[1], turned))
    return "".join(parts)


def _bar(scale: Normalize, height: float, prefix: str) -> str:
    left = LEFT + SIDE + 22
    top, bottom = (_spell(float(end or 0.0)) for end in (scale.vmax, scale.vmin))
    middle = 10 + height / 2
    return (
        f'<rect x="{left}" y="10" width="14" height="{height}" '
        f'fill="url(#{escape(prefix)}-colors)"/>'
        + _text(left + 20, 22.0, "start", top)
        + _text(left + 20, 10 + height, "start", bottom)
        + _text(left + 34, middle, "middle", "fitness",
                f'transform="rotate(-90 {left + 34} {middle:.0f})"')
    )  # fmt: skip


def _text(x: float, y: float, anchor: str, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{text}</text>\n'


def _color_stops(prefix: str) -> str:
    """The colors from the best down, and the style of the maps: once for all of them."""
    shares = np.linspace(0.0, 1.0, 9)
    stops = "".join(
        f'<stop offset="{share:g}" stop-color="{to_hex(COLORS(1 - share))}"/>' for share in shares
    )
    return (
        f'<svg width="0" height="0" style="position:absolute"><style>{STYLE}</style><defs>'
        f'<linearGradient id="{escape(prefix)}-colors" x1="0" y1="0" x2="0" y2="1">{stops}'
        "</linearGradient></defs></svg>\n"
    )
