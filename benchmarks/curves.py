"""Draw the learning curves of the raw results: one figure per algorithm.

    python benchmarks/curves.py

Reads results/learning_{algorithm}_{env}[_{tag}].csv and writes results/learning_{algorithm}.png:
the mean of the seeds' evaluations, their 95 % interval, and each seed as a thin line. The figure of
the README, results/learning.png, shows HalfCheetah-v5 on seeds on which no preset was chosen.
"""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from understudy.ops.statistics import mean_with_band
from understudy.reports.figures import COLORS

RESULTS = Path(__file__).resolve().parent / "results"
COLOR = "#1f6feb"


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Steps [points] and mean evaluation returns [seeds, points]."""
    by_seed: dict[str, dict[int, float]] = defaultdict(dict)
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["kind"] == "training":
                by_seed[row["seed"]][int(row["steps"])] = float(row["mean_return"])
    if not by_seed:
        raise SystemExit(f"{path.name} holds no evaluation yet")
    steps = sorted(next(iter(by_seed.values())))
    return np.array(steps), np.array([[seed[step] for step in steps] for seed in by_seed.values()])


def draw(algorithm: str, paths: list[Path]) -> Path:
    columns = min(len(paths), 3)
    rows = -(-len(paths) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * rows), dpi=110, layout="constrained")
    panels = np.ravel(figure.subplots(rows, columns, squeeze=False))
    for unused in panels[len(paths) :]:
        unused.set_visible(False)
    for axes, path in zip(panels, paths, strict=False):
        steps, returns = read(path)
        center, low, high = mean_with_band(returns)
        axes.fill_between(steps, low, high, color=COLOR, alpha=0.2, lw=0)
        axes.plot(steps, returns.T, color=COLOR, lw=0.6, alpha=0.4)
        axes.plot(steps, center, color=COLOR, lw=2)
        env, _, tag = path.stem.removeprefix(f"learning_{algorithm}_").partition("_")
        title = f"{algorithm.upper()} on {env}, {len(returns)} seeds" + (f", {tag}" if tag else "")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("environment steps")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(True, color="#d9dce1", lw=0.6)
    panels[0].set_ylabel("evaluation return")
    out = RESULTS / f"learning_{algorithm}.png"
    figure.savefig(out)
    return out


def draw_overview() -> Path:
    """Four algorithms on HalfCheetah-v5, five seeds each, side by side."""
    algorithms = ("sac", "td3", "ddpg", "mpo")
    figure = Figure(figsize=(10.0, 2.9), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(algorithms), sharey=True)
    for axes, algorithm, color in zip(panels, algorithms, COLORS, strict=False):
        steps, returns = read(RESULTS / f"learning_{algorithm}_HalfCheetah-v5_seeds5to9.csv")
        center, low, high = mean_with_band(returns)
        axes.fill_between(steps, low, high, color=color, alpha=0.18, lw=0)
        axes.plot(steps, returns.T, color=color, lw=0.6, alpha=0.5)
        axes.plot(steps, center, color=color, lw=2)
        axes.set_title(algorithm.upper(), fontsize=10)
        axes.set_xlabel("environment steps")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(True, color="#d9dce1", lw=0.6)
    panels[0].set_ylabel("evaluation return")
    figure.suptitle("HalfCheetah-v5, seeds 5–9", fontsize=11)
    out = RESULTS / "learning.png"
    figure.savefig(out)
    return out


def main() -> None:
    by_algorithm: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(RESULTS.glob("learning_*_*.csv"), reverse=True):
        by_algorithm[path.stem.split("_")[1]].append(path)
    for algorithm, paths in sorted(by_algorithm.items()):
        print(draw(algorithm, paths))
    print(draw_overview())


if __name__ == "__main__":
    main()
