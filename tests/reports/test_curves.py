import json

import matplotlib.image
import numpy as np
import pytest

from understudy.reports import curves as plots
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


def drawn_lines(monkeypatch, run_dir, out_png):
    """The picture's solid mean curves by name, as the reader would see them."""
    figures = []
    save = plots.figures.save_figure

    def keep(figure, path):
        figures.append(figure)
        return save(figure, path)

    monkeypatch.setattr(plots.figures, "save_figure", keep)
    plots.learning_curve(run_dir, out_png)
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
        for step, values in [(100, [1.0, 2.0, 3.0]), (200, [5.0, 7.0, 9.0])]:
            log.append({"time/total_steps": step, "eval/mean_reward_per_seed": values})
    lines, axes = drawn_lines(monkeypatch, tmp_path, tmp_path / "curve.png")
    np.testing.assert_array_equal(lines["evaluation"].get_xdata(), [100, 200])
    np.testing.assert_array_equal(lines["evaluation"].get_ydata(), [2.0, 7.0])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (1.0, 9.0)


def test_seeds_logged_at_different_steps_are_interpolated(tmp_path, monkeypatch):
    with CsvLog(tmp_path / "progress.csv") as log:
        for step, returns in [(0, {0: 0.0}), (100, {1: 5.0}), (200, {0: 2.0, 1: 6.0})]:
            by_seed = {f"rollout/ep_rew/seed{seed}": value for seed, value in returns.items()}
            log.append({"time/total_steps": step} | by_seed)
    lines, _ = drawn_lines(monkeypatch, tmp_path, tmp_path / "curve.png")
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


def test_a_missing_log_is_said_in_one_line(tmp_path):
    with pytest.raises(UnderstudyError, match="no log"):
        plots.learning_curve("nowhere", tmp_path / "curve.png")


def named_run(folder, seed=0, num_seeds=1, rows=3, level=0.0, evaluated=True, **about):
    """A run directory that says what it is; the returns of seed s are level + s + 10·row."""
    folder.mkdir(parents=True)
    config = {"learning_rate": 3e-4, "hidden_sizes": [64, 64]} | about.pop("config", {})
    said = {"algorithm": "sac", "env": "Pendulum-v1", "seed": seed, "num_seeds": num_seeds}
    (folder / "run.json").write_text(json.dumps(said | {"config": config} | about))
    with CsvLog(folder / "progress.csv") as log:
        for row in range(rows):
            returns = [level + seed + i + 10.0 * row for i in range(num_seeds)]
            facts = {"time/total_steps": 100 * (row + 1), "rollout/ep_rew_mean": -1.0}
            if evaluated:
                facts["eval/mean_reward"] = float(np.mean(returns))
                if num_seeds > 1:
                    facts["eval/mean_reward_per_seed"] = returns
            log.append(facts)
    return folder


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """Panels by title, each with its curves' last values by label."""

    def draw(*runs, title=""):
        figures = []
        save = plots.figures.save_figure
        with monkeypatch.context() as patch:
            patch.setattr(
                plots.figures, "save_figure", lambda figure, path: figures.append(figure) or path
            )
            plots.compare(runs, tmp_path / "out.png", title)
        (figure,) = figures
        save(figure, tmp_path / "out.png")
        (legend,) = figure.legends
        names = [text.get_text() for text in legend.get_texts()]
        by_color = dict(zip([x.get_color() for x in legend.get_lines()], names, strict=True))

        def last(line):
            return line.get_ydata()[-1] if len(line.get_ydata()) else None

        return {
            axes.get_title(loc="left"): {by_color[x.get_color()]: last(x) for x in axes.lines}
            for axes in figure.axes
            if axes.get_visible()
        }

    return draw


def test_seeds_of_one_setting_are_one_curve(tmp_path, compared):
    runs = [
        named_run(tmp_path / "a", seed=0),
        named_run(tmp_path / "b", seed=1, num_seeds=2),
        named_run(tmp_path / "again", seed=2, rows=2, level=1e6),  # seed 2 has gone further in b
    ]
    panels = compared(*runs, runs[0])
    assert panels == {"SAC on Pendulum-v1": {"SAC": 21.0}}


def test_the_legend_says_what_differs(tmp_path, compared):
    runs = [
        named_run(tmp_path / "a", level=1.0),
        named_run(tmp_path / "b", level=2.0, config={"learning_rate": 1e-3}),
        named_run(tmp_path / "c", level=3.0, config={"hidden_sizes": [8], "learning_rate": 1e-3}),
    ]
    assert compared(*runs) == {
        "SAC on Pendulum-v1": {
            "learning_rate 0.0003, hidden_sizes 64×64": 21.0,
            "learning_rate 0.001, hidden_sizes 64×64": 22.0,
            "learning_rate 0.001, hidden_sizes 8": 23.0,
        }
    }
    assert compared(*runs[1:]) == {
        "SAC on Pendulum-v1": {"hidden_sizes 64×64": 22.0, "hidden_sizes 8": 23.0}
    }


def test_algorithms_and_environments(tmp_path, compared):
    runs = [
        named_run(tmp_path / "a", level=1.0),
        named_run(tmp_path / "b", level=2.0, algorithm="td3"),
        named_run(tmp_path / "c", level=3.0, algorithm="td3", env="Hopper-v5"),
    ]
    # The preset of another environment is no difference within one.
    hopper = named_run(
        tmp_path / "d", level=4.0, env="Hopper-v5", config={"learning_rate": 1e-4, "gamma": 0.98}
    )
    assert compared(*runs, hopper, title="All") == {
        "Pendulum-v1": {"SAC": 21.0, "TD3": 22.0},
        "Hopper-v5": {"SAC": 24.0, "TD3": 23.0},
    }


def test_a_long_list_of_differences_is_cut_and_stays_unique(tmp_path, compared):
    fields = [{f"x{i}": value + (i > 3) * n for i in range(6)} for n, value in enumerate((1, 2, 2))]
    runs = [named_run(tmp_path / f"r{i}", config=config) for i, config in enumerate(fields)]
    (panel,) = compared(*runs).values()
    assert list(panel) == [
        "x0 1, x1 1, x2 1, 3 more",
        "x0 2, x1 2, x2 2, 3 more (r1)",
        "x0 2, x1 2, x2 2, 3 more (r2)",
    ]


def test_training_returns_stand_in_where_a_run_has_no_evaluation(tmp_path, compared):
    runs = [
        named_run(tmp_path / "a", evaluated=False),
        named_run(tmp_path / "b", algorithm="td3"),
        named_run(tmp_path / "c", algorithm="mpo", rows=0),
    ]
    assert compared(*runs) == {"Pendulum-v1": {"SAC": -1.0, "TD3": -1.0, "MPO": None}}
    assert compared(runs[1]) == {"TD3 on Pendulum-v1": {"TD3": 20.0}}


def test_eight_runs_have_eight_looks(tmp_path, monkeypatch):
    runs = [named_run(tmp_path / str(i), config={"gamma": i / 10}) for i in range(8)]
    looks = set()
    monkeypatch.setattr(
        plots.figures,
        "save_figure",
        lambda figure, path: looks.update(
            (line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines
        ) or path,
    )  # fmt: skip
    plots.compare(runs, tmp_path / "out.png")
    assert len(looks) == 8 and len({color for color, _ in looks}) == 8


def test_names_are_not_mathematics(tmp_path):
    run = named_run(tmp_path / "a", env="$\\frac{", algorithm="$\\x")
    for suffix in (".png", ".svg"):
        out = plots.compare([run], tmp_path / f"out{suffix}", title="$\\y")
        assert out.stat().st_size > 1000
    assert "frac" in (tmp_path / "out.svg").read_text()


def test_what_cannot_be_compared_is_said_in_one_line(tmp_path):
    good = named_run(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    broken = named_run(tmp_path / "broken")
    (broken / "run.json").write_text("{")
    for problem, runs, out in [
        (
            "empty is no run directory: there is no progress.csv",
            [good, tmp_path / "empty"],
            "x.png",
        ),
        ("no runs to compare", [], "x.png"),
        (r"run\.json cannot be read", [broken], "x.png"),
        (r"a picture ends in \.png", [good], "x.jpg"),
    ]:
        with pytest.raises(UnderstudyError, match=problem) as caught:
            plots.compare(runs, tmp_path / out)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / out).exists()


def test_a_directory_without_a_name_is_called_by_its_own(tmp_path, compared):
    runs = [write_run(tmp_path / name) for name in ("first", "second")]
    (panel,) = compared(*runs).values()
    assert list(panel) == ["first", "second"]
