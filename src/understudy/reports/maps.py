"""A repertoire as a map: each cell in the color of its fitness, empty ones in gray.

As a file by matplotlib; and as SVG for a page without scripts, whose cells can be clicked.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize, to_hex

from understudy.errors import ConfigError
from understudy.qd.repertoire import Repertoire
from understudy.reports.figures import INK, SOFT, new_figure, save_figure
from understudy.reports.outlines import NOTHING, Panel, bounds, panels
from understudy.reports.page import row, table

COLORS = colormaps["viridis"]
EMPTY = "#e3e6ea"


def heat_map(
    repertoire: Repertoire, out_png: Path | str, *, names: Sequence[str], title: str
) -> Path:
    """Draw a descriptor of one number as a strip, of two as a map, of more as a map for each pair.
    `names` are those of the descriptor's numbers."""
    _check_names(repertoire, names)
    shown = panels(repertoire)
    each = (8.0, 2.0) if len(names) == 1 else (6.6, 5.6) if len(shown) == 1 else (4.0, 3.7)
    figure, grid = new_figure(len(shown), min(len(shown), 3), each, below=0.5)
    for axes, panel in zip(grid, shown, strict=True):
        _draw(axes, repertoire, panel, names)
    colors = ScalarMappable(_scale(repertoire), COLORS)
    bar = figure.colorbar(colors, ax=figure.axes, pad=0.02, aspect=30)
    bar.set_label("fitness", color=INK)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.ax.tick_params(colors=INK, length=0)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontweight="bold", parse_math=False)
    figure.supxlabel(_summary(repertoire), x=0.01, ha="left", color=SOFT, fontsize=8.5)
    return save_figure(figure, out_png)


def _draw(axes: Axes, repertoire: Repertoire, panel: Panel, names: Sequence[str]) -> None:
    colors, thin = _colors(repertoire, panel), 0.0 if len(panel.polygons) > 2_000 else 0.4
    axes.add_collection(
        PolyCollection(panel.polygons, facecolors=colors, edgecolors="white", linewidths=thin)
    )
    low, high = bounds(repertoire.cells, panel.axes)
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    axes.set_xlabel(names[panel.axes[0]], color=INK, parse_math=False)
    if len(panel.axes) == 2:
        axes.set_ylabel(names[panel.axes[1]], color=INK, parse_math=False)
        axes.set_box_aspect(1)
    else:
        axes.set_yticks([])
    axes.tick_params(colors=INK, length=0, pad=5)
    axes.spines[:].set_visible(False)


def _colors(repertoire: Repertoire, panel: Panel) -> list[str]:
    scaled = _scale(repertoire)(np.asarray(repertoire.fitness)[panel.shown])
    return [
        EMPTY if cell == NOTHING else to_hex(COLORS(float(number)))
        for cell, number in zip(panel.shown, scaled, strict=True)
    ]


def _scale(repertoire: Repertoire) -> Normalize:
    """From the worst fitness to the best."""
    known = np.asarray(repertoire.fitness)[np.asarray(repertoire.filled)]
    if not known.size:
        return Normalize(0.0, 1.0)
    low, high = float(known.min()), float(known.max())
    # A bar needs some height, where all are equally fit.
    return Normalize(low, high) if low < high else Normalize(low - 0.5, high + 0.5)


def _summary(repertoire: Repertoire) -> str:
    cells, filled = repertoire.cells.count, int(repertoire.filled.sum())
    if not filled:
        return f"none of {cells:,} cells is filled yet"
    words = f"{filled:,} of {cells:,} cells filled ({filled / cells:.1%})"
    words += f", best fitness {_spell(float(repertoire.fitness.max()))}"
    return words if repertoire.cells.size <= 2 else f"{words}; the best of cells behind one another"


def _spell(number: float) -> str:
    """Five digits or all before the point, with a true minus sign."""
    digits = f"{number:,.0f}" if 1e4 <= abs(number) < 1e12 else f"{number:.5g}"
    return digits.replace("-", "−")


def _check_names(repertoire: Repertoire, names: Sequence[str]) -> None:
    size = repertoire.cells.size
    if len(names) != size:
        raise ConfigError(f"a descriptor of {size} numbers needs {size} names, got {list(names)}")


# -- for a page ---------------------------------------------------------------------------------

SIDE, LEFT, BELOW, STRIP, BAR = 600.0, 90.0, 60.0, 90.0, 140.0


def cells_svg(repertoire: Repertoire, names: Sequence[str]) -> str:
    """The same map as HTML for a page: a cell under the pointer shows its numbers, a click shows
    them in the table beneath."""
    _check_names(repertoire, names)
    parts = repertoire.fitness, repertoire.descriptor, repertoire.born
    fitness, descriptor, born = map(np.asarray, parts)
    heads, titles, rows = ("cell", "fitness", *names, "evaluation"), {}, []
    for cell in np.flatnonzero(repertoire.filled).tolist():
        measured = [f"{number:.4g}" for number in descriptor[cell]]
        numbers = [f"{cell}", f"{fitness[cell]:.6g}", *measured, f"{born[cell]:,}"]
        rows.append(row(numbers, f'id="cell-{cell}"'))
        titles[cell] = escape(", ".join(map(" ".join, zip(heads, numbers, strict=True))))
    maps = [_map(repertoire, panel, names, titles) for panel in panels(repertoire)]
    return (
        f'<div class="repertoire"><p>{escape(_summary(repertoire))}. Click a cell to see what is '
        f'in it.</p>\n{_color_stops()}<div class="maps">\n{"".join(maps)}</div>\n'
        f"{table(heads, rows, 'numbers')}</div>\n"
    )


def _map(repertoire: Repertoire, panel: Panel, names: Sequence[str], titles: dict[int, str]) -> str:
    """One map as SVG. `titles` are shown under the pointer."""
    height = SIDE if len(panel.axes) == 2 else STRIP
    low, high = bounds(repertoire.cells, panel.axes)
    parts, colors = [], _colors(repertoire, panel)
    for polygon, cell, color in zip(panel.polygons, panel.shown.tolist(), colors, strict=True):
        places = (polygon - low) / (high - low)
        corners = " ".join(f"{LEFT + SIDE * x:.1f},{10 + height * (1 - y):.1f}" for x, y in places)
        if cell == NOTHING:
            parts.append(f'<path class="none" d="M{corners}Z"><title>empty</title></path>\n')
        else:
            shown = f'<path fill="{color}" d="M{corners}Z"><title>{titles[cell]}</title></path>'
            parts.append(f'<a href="#cell-{cell}">{shown}</a>\n')
    own = [escape(names[axis]) for axis in panel.axes]
    width, bottom = LEFT + SIDE + BAR, 10 + height + BELOW
    return (
        f'<svg viewBox="0 0 {width:.0f} {bottom:.0f}" role="img" '
        f'aria-label="fitness over {" and ".join(own)}">\n{"".join(parts)}'
        f"{_axes(low, high, own, height)}{_bar(_scale(repertoire), height)}</svg>\n"
    )


def _axes(low: np.ndarray, high: np.ndarray, names: list[str], height: float) -> str:
    parts = [_text(LEFT + SIDE / 2, 10 + height + 46, "middle", names[0])]
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        number = low + share * (high - low)
        parts.append(_text(LEFT + SIDE * share, 10 + height + 20, anchor, f"{number[0]:.4g}"))
        if len(names) == 2:
            y = 10 + height * (1 - share) + 12 * share
            parts.append(_text(LEFT - 8, y, "end", f"{number[1]:.4g}"))
    if len(names) == 2:
        parts.append(_text(16.0, 10 + height / 2, "middle", names[1], turned=True))
    return "".join(parts)


def _bar(scale: Normalize, height: float) -> str:
    left = LEFT + SIDE + 22
    top, bottom = (_spell(float(end or 0.0)) for end in (scale.vmax, scale.vmin))
    return (
        f'<rect x="{left}" y="10" width="14" height="{height}" fill="url(#cell-colors)"/>'
        + _text(left + 20, 22.0, "start", top)
        + _text(left + 20, 10 + height, "start", bottom)
        + _text(left + 34, 10 + height / 2, "middle", "fitness", turned=True)
    )


def _text(x: float, y: float, anchor: str, text: str, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.0f} {y:.0f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{text}</text>\n'


def _color_stops() -> str:
    """The colors from the best down, once for all maps."""
    stops = "".join(
        f'<stop offset="{share:g}" stop-color="{to_hex(COLORS(1 - share))}"/>'
        for share in np.linspace(0.0, 1.0, 9)
    )
    return (
        '<svg width="0" height="0" style="position:absolute"><defs>'
        f'<linearGradient id="cell-colors" x1="0" y1="0" x2="0" y2="1">{stops}'
        "</linearGradient></defs></svg>\n"
    )
