"""The learning curve: what a run learned, in one picture.

Drawn without pyplot, which keeps global state and may look for a screen.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from understudy.math.statistics import mean_with_band
from understudy.runs.csv_log import STEPS, read_csv
from understudy.types import UnderstudyError

EVALUATION = "eval/mean_reward"
TRAINING = ("rollout/ep_rew_mean", "rollout/ep_rew")  # the mean, and the stem of per-seed columns

INK = "#30343b"
STYLES = {"evaluation": ("#1f6feb", 2.0, 3), "training": ("#e08a1e", 1.4, 2)}


class Curve(NamedTuple):
    """One seed's returns over its steps."""

    steps: np.ndarray  # [points], increasing
    returns: np.ndarray  # [points]


def learning_curve(
    source: Path | str | Sequence[Path | str], out_png: Path | str, title: str = ""
) -> Path:
    """Draws mean and 95 % interval across seeds of evaluation and training returns.

    `source` is a run directory (its `progress.csv`) or a list of CSV files, whose seeds are
    pooled. Seeds are columns such as `eval/mean_reward/seed0`, or one file each.
    """
    logs = [read_csv(path) for path in _csv_paths(source)]
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    found = False
    for name, stems in (("training", TRAINING), ("evaluation", (EVALUATION,))):
        curves = [curve for log in logs for curve in _curves(log, stems)]
        if curves:
            _draw(axes, name, curves)
            found = True
    _decorate(axes, title, found)
    return _save(figure, Path(out_png))


def _csv_paths(source: Path | str | Sequence[Path | str]) -> list[Path]:
    if isinstance(source, Path | str):
        path = Path(source)
        paths = [path / "progress.csv" if path.is_dir() else path]
    else:
        paths = [Path(path) for path in source]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing or not paths:
        raise UnderstudyError(f"no log to draw a learning curve from: {', '.join(missing) or '-'}")
    return paths


def _curves(log: dict[str, np.ndarray], stems: Sequence[str]) -> list[Curve]:
    """A curve per seed, or the single curve of the mean where the log has no seeds."""
    if STEPS not in log:
        return []
    per_seed = [name for stem in stems for name in log if name.startswith(f"{stem}/seed")]
    names = per_seed or [name for name in stems if name in log]
    curves = []
    for name in names:
        if log[name].dtype.kind != "f":
            continue
        known = np.isfinite(log[name]) & np.isfinite(log[STEPS])
        # A run that was resumed may have logged a step twice; the later row is the true one.
        steps, last = np.unique(log[STEPS][known][::-1], return_index=True)
        if steps.size:
            curves.append(Curve(steps, log[name][known][::-1][last]))
    return curves


def _on_common_steps(curves: list[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Steps [points] and returns [seeds, points], interpolated, NaN where a seed has no data."""
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    returns = [
        np.interp(steps, curve.steps, curve.returns, left=np.nan, right=np.nan) for curve in curves
    ]
    return steps, np.stack(returns)


def _draw(axes: Axes, name: str, curves: list[Curve]) -> None:
    colour, width, order = STYLES[name]
    steps, returns = _on_common_steps(curves)
    centre, low, high = mean_with_band(returns)
    seeds = len(curves)
    label = f"{name}: {centre[-1]:,.1f} at the end"
    if seeds > 1:
        label += f" (mean and 95 % interval of {seeds} seeds)"
    few_points = "o" if steps.size <= 30 else ""
    axes.plot(
        steps, centre, few_points + "-", color=colour, lw=width, ms=4, zorder=order, label=label
    )
    if seeds > 1:
        axes.fill_between(steps, low, high, color=colour, alpha=0.22, lw=0, zorder=order - 2)
        # The seeds themselves: an interval hides the one that never learned.
        if name == "evaluation" and seeds <= 10:
            axes.plot(steps, returns.T, color=colour, lw=0.6, alpha=0.35, zorder=order - 1)


def _decorate(axes: Axes, title: str, found: bool) -> None:
    axes.set_title(title, loc="left", color=INK, fontweight="bold")
    axes.set_xlabel("environment steps", color=INK)
    axes.set_ylabel("return of an episode", color=INK)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(True, color="#d9dce1", lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#aab0b8")
    if found:
        axes.margins(x=0.01)
        axes.legend(loc="best", frameon=True, framealpha=0.85, edgecolor="none")
    else:
        axes.text(0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center")


def _save(figure: Figure, out_png: Path) -> Path:
    """Into place in one move: whoever looks while a run goes on sees a whole picture."""
    out_png.parent.mkdir(parents=True, exist_ok=True)
    temporary = out_png.with_name(f".{out_png.name}.tmp")
    figure.savefig(temporary, format="png")
    os.replace(temporary, out_png)
    return out_png
