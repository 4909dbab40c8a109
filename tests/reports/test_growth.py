import json

import matplotlib.image
import numpy as np
import pytest

from understudy.reports import growth as module
from understudy.reports.growth import CORRECTED, METRICS, growth
from understudy.runs.csv_log import CsvLog


def write_run(folder, rows=3, seed=0, offset=-50.0, corrected=False, **about):
    folder.mkdir(parents=True)
    said = {"algorithm": "pga-me", "env": "Walker2d-v5", "seed": seed, "config": {"cells": 64}}
    (folder / "run.json").write_text(json.dumps(said | {"described_by": {}} | about))
    with CsvLog(folder / "progress.csv") as log:
        for row in range(rows):
            log.append(
                {
                    "time/total_steps": 5000 * (row + 1),
                    "time/evaluations": 100 * (row + 1),
                    "qd/qd_score": 10.0 * row + seed,
                    "qd/coverage": 0.1 * row,
                    "qd/max_fitness": row - 5.0,
                    "qd/score_offset": offset,
                }
            )
        if corrected:
            facts = {"time/total_steps": 5000 * rows, "time/evaluations": 100 * rows}
            log.append(facts | {f"qd/corrected_{metric}": 0.5 for metric in METRICS})
    return folder


@pytest.fixture
def axes_of(monkeypatch, tmp_path):
    """The panels of a picture, as they are drawn."""
    figures, save = [], module.save_figure

    def keep(figure, path):
        figures.append(figure)
        return save(figure, path)

    monkeypatch.setattr(module, "save_figure", keep)

    def draw(*runs):
        growth(runs, tmp_path / "curves.png")
        return figures[-1].axes, figures[-1]

    return draw


def test_a_run_has_three_curves_over_evaluations(axes_of, tmp_path):
    axes, _ = axes_of(write_run(tmp_path / "run"))
    expected = {"qd_score": [0, 10, 20], "coverage": [0, 0.1, 0.2], "max_fitness": [-5, -4, -3]}
    for panel, metric in zip(axes, METRICS, strict=True):
        [line] = panel.lines
        np.testing.assert_allclose(line.get_xdata(), [100, 200, 300])
        np.testing.assert_allclose(line.get_ydata(), expected[metric])
        assert panel.get_xlabel() == "evaluations"
    assert [panel.get_ylabel() for panel in axes] == [
        "QD-score above -50", "coverage", "best fitness",
    ]  # fmt: skip
    assert axes[0].get_title(loc="left") == "PGA-ME on Walker2d-v5"
    pixels = matplotlib.image.imread(tmp_path / "curves.png")
    assert pixels.shape[1] > 1_500 and pixels.std() > 0.01


def test_what_luck_had_added_is_marked(axes_of, tmp_path):
    axes, _ = axes_of(write_run(tmp_path / "run", corrected=True))
    for panel in axes:
        curve, mark = panel.lines
        assert len(curve.get_xdata()) == 3 and mark.get_label() == CORRECTED
        assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([300], [0.5])


def test_seeds_of_one_setting_become_one_curve(axes_of, tmp_path):
    runs = [write_run(tmp_path / f"{seed}", seed=seed) for seed in (0, 2)]
    runs.append(write_run(tmp_path / "other", algorithm="map-elites", offset=-60.0))
    axes, figure = axes_of(*runs)
    score, *_ = axes
    *_, pooled, other = score.lines  # before them, each of the two seeds
    np.testing.assert_allclose(pooled.get_ydata(), [1, 11, 21])  # the mean of both seeds
    np.testing.assert_allclose(other.get_ydata(), [0, 10, 20])
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["PGA-ME", "MAP-Elites"]
    assert "of 1–2 seeds" in legend.get_title().get_text()
    assert score.get_ylabel() == "QD-score above -60 … -50: not comparable"


def test_environments_have_rows_of_their_own(axes_of, tmp_path):
    axes, _ = axes_of(write_run(tmp_path / "a"), write_run(tmp_path / "b", env="Ant-v5"))
    assert len(axes) == 2 * len(METRICS)
    assert [axes[row].get_title(loc="left") for row in (0, 3)] == ["Walker2d-v5", "Ant-v5"]


def test_a_run_that_has_hardly_begun(axes_of, tmp_path):
    axes, _ = axes_of(write_run(tmp_path / "run", rows=0))
    assert [text.get_text() for panel in axes for text in panel.texts] == ["nothing yet"] * 3
