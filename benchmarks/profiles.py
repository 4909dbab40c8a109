"""Draw the performance profile and the intervals of docs/benchmarks.md from the raw results.

    python benchmarks/profiles.py

The methods are those of Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the
Statistical Precipice". `measured/aggregates.py` chooses the runs and normalizes the scores. Each
picture has a digest of its scores as metadata, so that a test notices when it is out of date.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator, PercentFormatter
from measured import aggregates, returns
from measured.files import RESULTS, number

from understudy.ops.statistics import iqm, stratified_bootstrap_interval
from understudy.reports import figures

THRESHOLDS = np.linspace(0.0, 1.25, 251)
PROFILE, INTERVALS = aggregates.PICTURES
NAMES = ("sac", "td3", "ddpg", "mpo", "ddqn", "ppo", "a2c")  # the order of colors


def color(name: str) -> str:
    return figures.COLORS[NAMES.index(name)]


def draw_profile() -> Figure:
    """Draw the share of runs above each normalized score."""
    figure = Figure(figsize=(6.4, 3.8), dpi=110, layout="constrained")
    axes = figure.subplots()
    for name in aggregates.ALGORITHMS:
        scores = aggregates.profile_scores(name)
        low, high = aggregates.profile_band(scores, THRESHOLDS)
        axes.fill_between(THRESHOLDS, low, high, color=color(name), alpha=0.13, lw=0,
                          step="post")  # fmt: skip
        shares = aggregates.profile(scores, THRESHOLDS)
        axes.step(THRESHOLDS, shares, where="post", color=color(name), lw=2, label=name.upper())
    axes.axvline(1.0, color=figures.SOFT, lw=1, ls=":")
    axes.set(xlim=(0.0, 1.25), ylim=(0.0, 1.03))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    tasks = " and ".join(aggregates.TASKS_OF_PROFILE)
    _label(axes, f"{tasks}, five seeds each", "normalized score τ (0 random, 1 reference)")
    axes.set_ylabel("share of runs with a score above τ", color=figures.INK)
    axes.legend(loc="lower left", frameon=False, labelcolor=figures.INK)
    return figure


def draw_intervals() -> Figure:
    """Draw the interquartile mean of each algorithm and task with its interval."""
    figure = Figure(figsize=(10.0, 2.9), dpi=110, layout="constrained")
    tasks = aggregates.PICTURES[INTERVALS]
    panels = figure.subplots(1, len(tasks))
    for axes, task in zip(panels, tasks, strict=True):
        runs = aggregates.runs_on(task)
        for place, (name, run) in enumerate(runs.items()):
            scores = list(returns.final_returns(run).values())
            low, high = stratified_bootstrap_interval(scores, iqm)
            axes.plot([low, high], [place, place], color=color(name), lw=7, alpha=0.35,
                      solid_capstyle="butt")  # fmt: skip
            axes.plot(iqm(scores), place, "o", color=color(name), ms=6, clip_on=False)
        axes.axvline(aggregates.REFERENCES[task], color=figures.SOFT, lw=1, ls="--", zorder=0)
        labels = [f"{name.upper()}, {returns.steps(run)}" for name, run in runs.items()]
        axes.set_yticks(range(len(runs)), labels)
        axes.set_ylim(len(runs) - 0.4, -0.6)
        axes.margins(x=0.08)
        _label(axes, task, "return")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 0)))
    panels[-1].xaxis.set_major_locator(MultipleLocator(10))
    return figure


def _label(axes: Axes, title: str, along: str) -> None:
    axes.set_title(title, loc="left", color=figures.INK, fontweight="bold", fontsize=10)
    axes.set_xlabel(along, color=figures.INK)
    figures.style_axes(axes, figures.INK, figures.GRID, figures.SPINE)


def main(folder: Path = RESULTS) -> None:
    for name, figure in {PROFILE: draw_profile(), INTERVALS: draw_intervals()}.items():
        digest = aggregates.digest(aggregates.PICTURES[name])
        figure.savefig(folder / name, metadata={aggregates.DIGEST: digest, "Software": None})
        print(folder / name)


if __name__ == "__main__":
    main()
