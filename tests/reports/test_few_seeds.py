"""What pictures make of few seeds, of the settings of a sweep, and of few cards."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from understudy.algorithms.config import shown_name
from understudy.reports import page
from understudy.reports.figures import Group, draw_group, spread_of
from understudy.reports.run_log import Curve
from understudy.sweep import pictures

STEPS = np.arange(5.0)


@pytest.fixture
def axes():
    return Figure().subplots()


@pytest.mark.parametrize(("seeds", "bands", "lines"), [(1, 0, 1), (2, 0, 3), (3, 1, 1)])
def test_a_band_needs_three_seeds(axes, seeds, bands, lines):
    curves = [Curve(STEPS, STEPS * seed) for seed in range(seeds)]
    draw_group(axes, Group("x", curves), 0)
    assert (len(axes.collections), len(axes.lines)) == (bands, lines)


def test_what_is_drawn_is_said():
    assert spread_of(2) == "mean and each of 2 seeds"
    assert spread_of(3) == "mean and 95 % interval of 3 seeds"
    assert [shown_name(name) for name in ("map-elites", "pga-me")] == ["MAP-Elites", "PGA-ME"]


def test_a_setting_has_one_color_in_both_panels():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    outcomes = [
        SimpleNamespace(returns=np.full((1, 2), i), mean=float(i), state="finished",
                        steps=STEPS, curve=STEPS[None] + i) for i in range(3)
    ]  # fmt: skip
    varied = SimpleNamespace(
        outcomes=outcomes, best=None, choices=["a", "b", "c"], name="x",
        position=lambda outcome: outcome.mean, color=lambda outcome: f"C{int(outcome.mean)}",
        add_legend=lambda axes: None,
    )  # fmt: skip
    pictures.draw_returns(left, varied)
    pictures.draw_curves(right, varied)
    points = [to_hex(line.get_color()) for line in left.lines]
    curves = [to_hex(line.get_color()) for line in right.lines]
    assert points == curves[::-1] and len(set(points)) == 3


@pytest.mark.parametrize(("cards", "columns", "half"), [(4, 4, 2), (5, 5, 3), (6, 3, 3), (7, 4, 4)])
def test_no_card_stands_alone(cards, columns, half):
    html = page.cards([("name", "1", "note")] * cards)
    assert f"--columns: {columns}; --half: {half}" in html
    assert cards % columns != 1 and cards % half != 1
