"""The pictures of a repertoire: the cells where they are, and what a page says of them."""

import re
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

from understudy.errors import ConfigError
from understudy.qd import repertoire as qd
from understudy.qd.tessellation import Cvt, make_cvt, make_grid
from understudy.reports.maps import EMPTY, cells_svg, heat_map
from understudy.reports.outlines import NOTHING, outlines, panels
from understudy.reports.page import STYLE

LOW, HIGH = (0.0, -10.0), (1.0, 10.0)
NAMES = ("front <b>foot</b>", 'back & "hind"')


def grown(cells, *elites):
    """Of (fitness, descriptor)s."""
    empty = qd.empty(cells, jnp.zeros(()))
    if not elites:
        return empty
    fitness, descriptor = (jnp.array(column) for column in zip(*elites, strict=True))
    born = jnp.arange(len(elites), dtype=jnp.int32)
    return add(empty, born.astype(jnp.float32), fitness, descriptor, born)[0]


add = jax.jit(qd.add)
CASES = {
    "grid": make_grid((4, 3), LOW, HIGH),
    "cvt": make_cvt(9, LOW, HIGH, samples=200),
    "strip": make_grid((5,), (0.0,), (2.0,)),
    "strip cvt": make_cvt(5, (0.0,), (2.0,), samples=100),
    "four": make_grid((2, 3, 2, 2), (0.0,) * 4, (1.0,) * 4),
    "three cvt": make_cvt(9, (0.0,) * 3, (1.0,) * 3, samples=200),
}
cases = pytest.mark.parametrize("cells", CASES.values(), ids=list(CASES))


def area(polygon):
    x, y = polygon.T
    return abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2


def contains(polygon, point):
    """Whether it lies on the same side of every edge."""
    edge, to = np.roll(polygon, -1, axis=0) - polygon, point - polygon
    side = edge[:, 0] * to[:, 1] - edge[:, 1] * to[:, 0]
    return (side >= -1e-5).all() or (side <= 1e-5).all()


@pytest.mark.parametrize("name", ["grid", "cvt", "strip", "strip cvt"])
def test_the_cells_fill_the_bounds_and_hold_their_points(name):
    cells = CASES[name]
    polygons = outlines(cells)
    low, high = np.array([*cells.low, 0.0][:2]), np.array([*cells.high, 1.0][:2])
    assert sum(map(area, polygons)) == pytest.approx(np.prod(high - low))
    places = np.random.default_rng(0).random((50, cells.size)).astype(np.float32)
    points = np.array(cells.low) + places * (np.array(cells.high) - cells.low)
    for point, cell in zip(points, cells.cell_of(jnp.float32(points)), strict=True):
        assert contains(polygons[int(cell)], np.append(point, 0.5)[:2])


def test_voronoi_cells_by_hand():
    left, right = outlines(Cvt(jnp.array([[0.25, 0.0], [0.75, 0.0]]), LOW, HIGH))
    assert {tuple(corner) for corner in left} == {(0, -10), (0.5, -10), (0.5, 10), (0, 10)}
    assert area(right) == area(left)
    whole, same = outlines(Cvt(jnp.zeros((2, 2)) + 0.5, LOW, HIGH))  # one in place of the other
    assert area(whole) == area(same) == 20


def test_of_cells_behind_one_another_the_best_is_seen():
    cells = make_grid((2, 2, 3), (0.0,) * 3, (1.0,) * 3)
    elites = (1.0, [0.1, 0.1, 0.1]), (3.0, [0.1, 0.1, 0.9]), (2.0, [0.1, 0.9, 0.5])
    first, second, third = panels(grown(cells, *elites))
    assert (first.axes, second.axes, third.axes) == ((0, 1), (0, 2), (1, 2))
    assert first.shown.tolist() == [2, 4, NOTHING, NOTHING]
    assert second.shown.tolist() == [0, 4, 2, *[NOTHING] * 3]
    assert third.shown.tolist() == [0, NOTHING, 2, NOTHING, 4, NOTHING]


def test_a_cvt_is_seen_from_the_side_by_what_its_policies_did():
    repertoire = grown(CASES["three cvt"], (1.0, [0.99, 0.01, 7.0]))
    for panel in panels(repertoire):
        [place] = np.flatnonzero(panel.shown != NOTHING)
        assert repertoire.born[panel.shown[place]] == 0
        point = np.clip(np.array([0.99, 0.01, 7.0]), 0, 1)[list(panel.axes)]
        assert contains(panel.polygons[place], point)


@cases
def test_each_kind_of_repertoire_can_be_drawn(tmp_path, cells):
    middle = [(a + b) / 2 for a, b in zip(cells.low, cells.high, strict=True)]
    repertoire = grown(cells, (1.0, list(cells.low)), (-2.0, middle))
    names = [f"number {axis} of $cells$" for axis in range(cells.size)]
    out = heat_map(repertoire, tmp_path / "new" / "map.png", names=names, title="a")
    assert [path.name for path in out.parent.iterdir()] == ["map.png"]
    red, green, blue = (matplotlib.image.imread(out)[:, :, :3] * 255).round().astype(int).T
    colors = set(np.unique(red << 16 | green << 8 | blue).tolist())
    for color in (EMPTY, "#fde725", "#440154"):  # of what is empty, the best and the worst
        assert int(color[1:], 16) in colors


@pytest.mark.parametrize("elites", [(), [(3.0, [0.5, 0.0])]], ids=["none", "one"])
def test_repertoires_with_hardly_anything_in_them(tmp_path, elites):
    repertoire = grown(CASES["grid"], *elites)
    heat_map(repertoire, tmp_path / "map.svg", names=NAMES, title="")
    text = (tmp_path / "map.svg").read_text()
    assert "nan" not in text.lower()
    assert ("none of 12 cells" in cells_svg(repertoire, NAMES)) == (not elites)


def test_what_cannot_be_drawn_is_refused(tmp_path):
    repertoire = grown(CASES["grid"])
    with pytest.raises(ConfigError, match=r"\.png, \.svg or \.pdf"):
        heat_map(repertoire, tmp_path / "map.txt", names=NAMES, title="")
    with pytest.raises(ConfigError, match="needs 2 names"):
        heat_map(repertoire, tmp_path / "map.png", names=["x"], title="")
    with pytest.raises(ConfigError, match="needs 2 names"):
        cells_svg(repertoire, ["x"])


def test_the_page_tells_of_each_cell():
    repertoire = grown(CASES["grid"], (1.25, [0.1, -9.0]), (-2.5, [0.9, 9.5]))
    page = ElementTree.fromstring(cells_svg(repertoire, NAMES))  # well formed, all escaped
    titles = ["".join(title.itertext()) for title in page.iter("title")]
    assert len(titles) == 12 and titles.count("empty") == 10
    told = f"cell 0, fitness 1.25, {NAMES[0]} 0.1, {NAMES[1]} -9, evaluation 0"
    assert told in titles
    rows = {row.get("id"): [*row.itertext()] for row in page.iter("tr") if row.get("id")}
    assert rows["cell-11"][:4] == ["11", "-2.5", "0.9", "9.5"]
    links = [link.get("href") for link in page.iter("a")]
    assert sorted(links) == ["#cell-0", "#cell-11"]


@cases
def test_every_click_leads_somewhere_without_scripts(cells):
    repertoire = grown(cells, (1.0, list(cells.low)), (2.0, list(cells.high)))
    html = cells_svg(repertoire, [f"n{axis}" for axis in range(cells.size)])
    links, places = (set(re.findall(mark, html)) for mark in (r'href="#([^"]+)"', r' id="([^"]+)"'))
    assert len(links) == 2 and places == links | {"cell-colors"}
    assert "<script" not in html and "://" not in html and "nan" not in html
    assert "tr:target" in STYLE
