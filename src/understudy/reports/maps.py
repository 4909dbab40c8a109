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
from understudy.qd.repertoire import Repertoire, metrics
from understudy.reports.figures import INK, SOFT, new_figure, save_figure
from understudy.reports.outlines import NOTHING, Panel, panels
from understudy.reports.page import row, table

COLORS = colormaps["viridis"]
EMPTY = "#e3e6ea"


def heat_map(
    repertoire: Repertoire,
    out_png: Path | str,
    *,
    names: Sequence[str],
    title: str,
    offset: float | None = None,
) -> Path:
    """Draw a descriptor of one number as a strip, of two as a map, of more as a map for each pair.
    `names` are those of the descriptor's numbers. With an `offset` the QD-score is shown."""
    _check_names(repertoire, names)
    shown, scale = panels(repertoire), _scale(repertoire)
    each = (8.0, 2.0) if len(names) == 1 else (6.6, 5.6) if len(shown) == 1 else (4.0, 3.7)
    figure, grid = new_figure(len(shown), min(len(shown), 3), each, below=0.5)
    for axes, panel in zip(grid, shown, strict=True):
        _draw(axes, repertoire, panel, scale, names)
    bar = figure.colorbar(ScalarMappable(scale, COLORS), ax=figure.axes, pad=0.02, aspect=30)
    bar.set_label("fitness", color=INK)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.ax.tick_params(colors=INK, length=0)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontweight="bold", parse_math=False)
    summary = _summary(repertoire, offset)
    figure.supxlabel(summary, x=0.01, ha="left", color=SOFT, fontsize=8.5)
    return save_figure(figure, out_png)


def _draw(
    axes: Axes, repertoire: Repertoire, panel: Panel, scale: Normalize, names: Sequence[str]
) -> None:
    colors = _colors(repertoire, panel, scale)
    thin = 0.0 if len(panel.polygons) > 2_000 else 0.4
    axes.add_collection(
        PolyCollection(panel.polygons, facecolors=colors, edgecolors="white", linewidths=thin)
    )
    low, high = _bounds(repertoire, panel)
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


def _bounds(repertoire: Repertoire, panel: Panel) -> tuple[np.ndarray, np.ndarray]:
    """The lower left and the upper right corner; a strip is from 0 to 1."""
    cells = repertoire.cells
    low, high = ([bound[axis] for axis in panel.axes] for bound in (cells.low, cells.high))
    return np.array([*low, 0.0][:2]), np.array([*high, 1.0][:2])


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
    words = f"{filled:,} of {cells:,} cells filled ({filled / cells:.1%})"
    words += f", best fitness {_spell(float(numbers['max_fitness']))}"
    if offset is not None:
        words += f", QD-score {_spell(float(numbers['qd_score']))} above {_spell(offset)}"
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


def cells_svg(repertoire: Repertoire, names: Sequence[str], prefix: str = "cell") -> str:
    """The same map as HTML for a page: a cell under the pointer shows its numbers, a click shows
    them in the table beneath. Maps on one page need different `prefix`es."""
    _check_names(repertoire, names)
    prefix, scale = escape(prefix), _scale(repertoire)
    parts = repertoire.fitness, repertoire.descriptor, repertoire.born
    fitness, descriptor, born = map(np.asarray, parts)
    numbers = {
        cell: [
            f"{cell}",
            f"{fitness[cell]:.6g}",
            *(f"{number:.4g}" for number in descriptor[cell]),
            f"{born[cell]:,}",
        ]
        for cell in np.flatnonzero(repertoire.filled).tolist()
    }
    heads = ("cell", "fitness", *names, "evaluation")
    titles = {
        cell: escape(", ".join(f"{head} {number}" for head, number in zip(heads, own, strict=True)))
        for cell, own in numbers.items()
    }
    maps = [_map(repertoire, panel, scale, names, titles, prefix) for panel in panels(repertoire)]
    rows = [row(own, f'id="{prefix}-{cell}"') for cell, own in numbers.items()]
    return (
        f'<div class="repertoire"><p>{escape(_summary(repertoire))}. Click a cell to see what is '
        f'in it.</p>\n{_color_stops(prefix)}<div class="maps">\n{"".join(maps)}</div>\n'
        f"{table(heads, rows, 'numbers')}</div>\n"
    )


def _map(
    repertoire: Repertoire,
    panel: Panel,
    scale: Normalize,
    names: Sequence[str],
    titles: dict[int, str],
    prefix: str,
) -> str:
    """One map as SVG. `titles` are shown under the pointer."""
    height = SIDE if len(panel.axes) == 2 else STRIP
    low, high = _bounds(repertoire, panel)
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
                f'<a href="#{prefix}-{cell}"><path fill="{color}" d="M{corners}Z">'
                f"<title>{titles[cell]}</title></path></a>\n"
            )
    own = [escape(names[axis]) for axis in panel.axes]
    width, bottom = LEFT + SIDE + BAR, 10 + height + BELOW
    return (
        f'<svg viewBox="0 0 {width:.0f} {bottom:.0f}" role="img" '
        f'aria-label="fitness over {" and ".join(own)}">\n{"".join(parts)}'
        f"{_axes(low, high, own, height)}{_bar(scale, height, prefix)}</svg>\n"
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


def _bar(scale: Normalize, height: float, prefix: str) -> str:
    left = LEFT + SIDE + 22
    top, bottom = (_spell(float(end or 0.0)) for end in (scale.vmax, scale.vmin))
    return (
        f'<rect x="{left}" y="10" width="14" height="{height}" fill="url(#{prefix}-colors)"/>'
        + _text(left + 20, 22.0, "start", top)
        + _text(left + 20, 10 + height, "start", bottom)
        + _text(left + 34, 10 + height / 2, "middle", "fitness", turned=True)
    )


def _text(x: float, y: float, anchor: str, text: str, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.0f} {y:.0f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{text}</text>\n'


def _color_stops(prefix: str) -> str:
    """The colors from the best down, once for all maps."""
    stops = "".join(
        f'<stop offset="{share:g}" stop-color="{to_hex(COLORS(1 - share))}"/>'
        for share in np.linspace(0.0, 1.0, 9)
    )
    return (
        '<svg width="0" height="0" style="position:absolute"><defs>'
        f'<linearGradient id="{prefix}-colors" x1="0" y1="0" x2="0" y2="1">{stops}'
        "</linearGradient></defs></svg>\n"
    )
