import matplotlib.image
import numpy as np
import pytest

from understudy.runs import plots
from understudy.runs.csv_log import CsvLog
from understudy.types import UnderstudyError


def write_run(folder, seeds=1, rows=40, offset=0.0):
    rng = np.random.default_rng(0)
    with CsvLog(folder / "progress.csv") as log:
        for i in range(rows):
            level = -1200 * np.exp(-i / 8) + offset
            returns = level + rng.normal(0, 60, seeds)
            facts = {"time/total_steps": 500 * (i + 1), "rollout/ep_rew_mean": returns.mean()}
            if seeds > 1:
                facts["rollout/ep_rew_per_seed"] = returns
            if i % 4 == 3:
                facts["eval/mean_reward"] = float(returns.mean() + 50)
                if seeds > 1:
                    facts["eval/mean_reward_per_seed"] = returns + 50
            log.append(facts)
    return folder


def drawn_lines(monkeypatch, source, out_png):
    """The picture's solid mean curves by name, as the reader would see them."""
    figures = []
    save = plots._save

    def keep(figure, path):
        figures.append(figure)
        return save(figure, path)

    monkeypatch.setattr(plots, "_save", keep)
    plots.learning_curve(source, out_png)
    axes = figures[0].axes[0]
    named = {line.get_label().split(":")[0]: line for line in axes.lines}
    return {name: line for name, line in named.items() if name in plots.STYLES}, axes


@pytest.mark.parametrize("seeds", [1, 4])
def test_a_picture_is_drawn(tmp_path, seeds):
    out = plots.learning_curve(write_run(tmp_path, seeds), tmp_path / "curve.png", title="SAC")
    pixels = matplotlib.image.imread(out)
    assert pixels.shape[0] > 500 and pixels.shape[1] > 1000
    assert pixels.std() > 0.01  # something is on it
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curve.png", "progress.csv"]


def test_the_curve_is_the_mean_of_the_seeds(tmp_path, monkeypatch):
    with CsvLog(tmp_path / "progress.csv") as log:
        for step, values in [(100, [1.0, 3.0]), (200, [5.0, 9.0])]:
            log.append({"time/total_steps": step, "eval/mean_reward_per_seed": values})
    lines, axes = drawn_lines(monkeypatch, tmp_path, tmp_path / "curve.png")
    np.testing.assert_array_equal(lines["evaluation"].get_xdata(), [100, 200])
    np.testing.assert_array_equal(lines["evaluation"].get_ydata(), [2.0, 7.0])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (1.0, 9.0)


def test_files_logged_at_different_steps_are_pooled(tmp_path, monkeypatch):
    paths = []
    for name, steps, values in [("a", [0, 200], [0.0, 2.0]), ("b", [100, 200], [5.0, 6.0])]:
        paths.append(tmp_path / f"{name}.csv")
        with CsvLog(paths[-1]) as log:
            for step, value in zip(steps, values, strict=True):
                log.append({"time/total_steps": step, "rollout/ep_rew_mean": value})
    lines, _ = drawn_lines(monkeypatch, paths, tmp_path / "curve.png")
    np.testing.assert_array_equal(lines["training"].get_xdata(), [0, 100, 200])
    np.testing.assert_array_equal(lines["training"].get_ydata(), [0.0, 3.0, 4.0])


def test_a_step_logged_again_after_a_resume_counts_once(tmp_path, monkeypatch):
    with CsvLog(tmp_path / "progress.csv") as log:
        for step, value in [(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0), (3, 30.0)]:
            log.append({"time/total_steps": step, "rollout/ep_rew_mean": value})
    lines, _ = drawn_lines(monkeypatch, tmp_path, tmp_path / "curve.png")
    np.testing.assert_array_equal(lines["training"].get_ydata(), [1.0, 20.0, 30.0])


def test_a_run_without_episodes_still_has_a_picture(tmp_path, monkeypatch):
    with CsvLog(tmp_path / "progress.csv") as log:
        log.append({"time/total_steps": 10, "rollout/ep_rew_mean": float("nan")})
    lines, axes = drawn_lines(monkeypatch, tmp_path, tmp_path / "curve.png")
    assert not lines
    assert axes.texts[0].get_text() == "no episode has ended yet"


@pytest.mark.parametrize("source", ["nowhere", []])
def test_a_missing_log_is_said_in_one_line(tmp_path, source):
    with pytest.raises(UnderstudyError, match="no log"):
        plots.learning_curve(source, tmp_path / "curve.png")
