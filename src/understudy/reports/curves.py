"""Pictures of learning: one run's curve, and several runs side by side.

Drawn without pyplot, which keeps global state and may look for a screen.
"""

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from understudy.algorithms.config import shown_name
from understudy.ops.statistics import mean_with_band
from understudy.reading import read_bytes
from understudy.runs.csv_log import STEPS, read_csv
from understudy.runs.files import write_whole
from understudy.types import ConfigError, UnderstudyError

EVALUATION = "eval/mean_reward"
TRAINING = ("rollout/ep_rew_mean", "rollout/ep_rew")  # the mean, and the stem of per-seed columns

INK = "#30343b"
# Okabe and Ito's colors, told apart by any eye; dashes tell apart what is still too close.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#30343b", "#8f6a3a")
DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)))
MOST_NAMED_FIELDS = 3  # of a config, in a legend
LARGEST_ABOUT = 2**24  # bytes of run.json
FEWEST_IN_A_BAND = 3  # seeds; fewer are drawn one by one
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
        curves = [curve for log in logs for curve in curves_of(log, stems)]
        if curves:
            _draw(axes, name, curves)
            found = True
    _decorate(axes, title, found)
    if found:
        axes.legend(loc="best", frameon=True, framealpha=0.85, edgecolor="none")
    return save_figure(figure, Path(out_png))


class Run(NamedTuple):
    """What a run directory says of itself."""

    directory: Path
    about: dict[str, Any]  # run.json, empty where there is none
    log: dict[str, np.ndarray]

    @property
    def algorithm(self) -> str:
        name = self.about.get("algorithm")
        return shown_name(str(name)) if name else self.directory.name

    @property
    def first_seed(self) -> int:
        seed = self.about.get("seed")
        return seed if isinstance(seed, int) else 0

    @property
    def settings(self) -> dict[str, Any]:
        """All that can differ between runs of one algorithm and environment, except the seed."""
        named = ("num_envs", "own_networks", "loss_addons", "schedules", "descriptor", "understudy")
        return {**self.about.get("config", {}), **{name: self.about.get(name) for name in named}}

    @property
    def title(self) -> str:
        return f"{self.algorithm} on {self.env}"

    @property
    def env(self) -> str:
        about = self.about
        return str(about.get("env") or about.get("env_title") or "your environment")

    @property
    def illuminates(self) -> bool:
        """Whether it grows a repertoire, and does not train an agent."""
        return "described_by" in self.about


class Group(NamedTuple):
    """Runs that differ in nothing but the seed: one curve with an interval."""

    label: str
    curves: list[Curve]


class Panel(NamedTuple):
    """The curves of one environment."""

    title: str
    kind: str  # of the returns: evaluation, or training where some run has no evaluation
    groups: list[Group]


def compare(runs: Sequence[Path | str], out_png: Path | str, title: str = "") -> Path:
    """Draws the learning curves of several runs: a panel for each environment, a curve for each
    algorithm and setting, with the mean and 95 % interval across all their seeds."""
    panels = _panels(read_runs(runs))
    labels = list(dict.fromkeys(group.label for panel in panels for group in panel.groups))
    columns = len(panels) if len(panels) <= 3 else 2 if len(panels) == 4 else 3
    rows = math.ceil(len(panels) / columns)
    width, height = (8, 4.3) if len(panels) == 1 else (5.0 * columns, 3.4 * rows)
    size = (width, height + legend_height(labels, columns))
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid, panels, strict=False):
        for group in panel.groups:
            handles[group.label] = draw_group(axes, group, labels.index(group.label))
        _decorate(axes, panel.title, any(group.curves for group in panel.groups))
        axes.set_ylabel(f"return ({panel.kind})", color=INK)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    if title:
        figure.suptitle(title, x=0.01, ha="left", color=INK, parse_math=False)
    add_legend(figure, handles, columns, seeds_in([g for panel in panels for g in panel.groups]))
    return save_figure(figure, Path(out_png))


def read_run(directory: Path | str) -> Run:
    """A run directory's files. One without a log is refused; one without run.json has no name."""
    directory = Path(directory)
    if not (directory / "progress.csv").is_file():
        raise UnderstudyError(
            f"{directory} is no run directory: there is no progress.csv in it{_instead(directory)}"
        )
    path = directory / "run.json"
    try:
        about = json.loads(read_bytes(path, LARGEST_ABOUT)) if path.exists() else {}
        if not isinstance(about, dict) or not isinstance(about.get("config", {}), dict):
            raise ValueError("not the description of a run")
    except (ValueError, RecursionError) as error:
        raise UnderstudyError(f"{path} cannot be read: {error}") from error
    return Run(directory, about, read_csv(directory / "progress.csv"))


def _instead(directory: Path) -> str:
    """Which command takes it."""
    if directory.is_file():
        return "; it is a file, and a run is a directory"
    if (directory / "sweep.csv").is_file():
        return "; it is a sweep, whose picture is sweep.png beside its table"
    if any(path.is_dir() and (path / "progress.csv").is_file() for path in directory.glob("*")):
        return f"; its directories are runs: understudy plot {directory}/*"
    return ""


def read_runs(runs: Sequence[Path | str]) -> list[Run]:
    if not runs:
        raise UnderstudyError("there are no runs to compare")
    once = {Path(run).resolve(): Path(run) for run in runs}
    return [read_run(directory) for directory in once.values()]


def _panels(runs: list[Run]) -> list[Panel]:
    panels, found = [], by_environment(runs)
    for env, members in found.items():
        kind, stems = "evaluation", (EVALUATION,)
        if not all(curves_of(run.log, stems) for run in members):
            kind, stems = "training", TRAINING
        only = {run.algorithm for run in members}
        title = f"{only.pop()} on {env}" if len(only) == 1 and len(found) == 1 else env
        panels.append(Panel(title, kind, grouped(members, stems)))
    return panels


def by_environment(runs: list[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.env, []).append(run)
    return found


def grouped(runs: list[Run], stems: Sequence[str], over: str = STEPS) -> list[Group]:
    """The curves of some columns over another, those of runs that are alike together."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        what = [run.algorithm, run.settings] if run.about else str(run.directory.resolve())
        alike.setdefault(json.dumps(what, sort_keys=True, default=str), []).append(run)
    labels = _labels([same[0] for same in alike.values()])
    return [
        Group(label, _pooled(same, stems, over))
        for label, same in zip(labels, alike.values(), strict=True)
    ]


def seeds_in(groups: list[Group]) -> str:
    seeds = sorted({len(group.curves) for group in groups})
    if seeds[-1] < 2:
        return ""
    few = f"{seeds[0]}–" if seeds[0] < seeds[-1] else ""
    return spread_of(seeds[-1], f"{few}{seeds[-1]}")


def spread_of(seeds: int, written: str = "") -> str:
    """What is drawn of several seeds. Two of them have no interval worth the name."""
    what = "95 % interval" if seeds >= FEWEST_IN_A_BAND else "each"
    return f"mean and {what} of {written or seeds} seeds"


def draw_seeds(axes: Axes, steps: np.ndarray, returns: np.ndarray, color: str) -> None:
    """Thin lines, or points where there is one evaluation only."""
    marker = "o" if steps.size == 1 else None
    axes.plot(steps, returns.T, marker=marker, ms=3, color=color, lw=0.8, alpha=0.45, zorder=1)


def _pooled(runs: list[Run], stems: Sequence[str], over: str) -> list[Curve]:
    """A curve per seed. A seed that was run twice counts once: the run that went further."""
    by_seed: dict[int, Curve] = {}
    for run in runs:
        for i, curve in enumerate(curves_of(run.log, stems, over)):
            seed = run.first_seed + i
            if seed not in by_seed or curve.steps[-1] > by_seed[seed].steps[-1]:
                by_seed[seed] = curve
    return list(by_seed.values())


def _labels(runs: list[Run]) -> list[str]:
    """What tells these runs apart: the algorithm, and the settings in which its runs differ."""
    several = len({run.algorithm for run in runs}) > 1
    labels = []
    for run in runs:
        siblings = [other.settings for other in runs if other.algorithm == run.algorithm]
        parts = [
            f"{name} {_spell(value)}"
            for name, value in run.settings.items()
            if any(settings.get(name) != value for settings in siblings)
        ]
        if len(parts) > MOST_NAMED_FIELDS:
            more = len(parts) - MOST_NAMED_FIELDS
            parts = [*parts[:MOST_NAMED_FIELDS], f"{more} more"]
        if several or not parts:
            parts = [run.algorithm, *parts]
        labels.append(", ".join(parts))
    return [
        label if labels.count(label) == 1 else f"{label} ({run.directory.name})"
        for label, run in zip(labels, runs, strict=True)
    ]


def _spell(value: Any) -> str:
    return "×".join(map(str, value)) if isinstance(value, list) else str(value).lower()


def add_legend(figure: Figure, handles: dict[str, Any], panel_columns: int, note: str) -> None:
    """One for all panels, under them."""
    legend = figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", frameon=False,
        ncols=_legend_columns(list(handles), panel_columns), handlelength=2.6, labelcolor=INK,
        title=note,
    )  # fmt: skip
    legend.get_title().set(color="#6b7280", fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)


def legend_height(labels: list[str], panel_columns: int) -> float:
    """In inches."""
    return 0.22 * (math.ceil(len(labels) / _legend_columns(labels, panel_columns)) + 1) + 0.2


def _legend_columns(labels: list[str], panel_columns: int) -> int:
    """As many as fit beside one another."""
    characters = 100 if panel_columns == 1 else 62 * panel_columns
    return max(1, min(4, len(labels), characters // (max(map(len, labels)) + 8)))


def draw_group(axes: Axes, group: Group, index: int) -> Any:
    color, dash = COLORS[index % len(COLORS)], DASHES[index // 4 % len(DASHES)]
    if not group.curves:
        return axes.plot([], [], ls=dash, color=color, lw=2)[0]
    steps, returns = on_common_steps(group.curves)
    center, low, high = mean_with_band(returns)
    if len(group.curves) >= FEWEST_IN_A_BAND:
        axes.fill_between(steps, low, high, color=color, alpha=0.16, lw=0, zorder=1)
    elif len(group.curves) > 1:
        draw_seeds(axes, steps, returns, color)
    marker = "o" if steps.size == 1 else None
    return axes.plot(steps, center, marker=marker, ls=dash, color=color, lw=2, zorder=2)[0]


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


def curves_of(log: dict[str, np.ndarray], stems: Sequence[str], over: str = STEPS) -> list[Curve]:
    """A curve per seed, or the single curve of the mean where the log has no seeds."""
    if over not in log or log[over].dtype.kind != "f":
        return []
    per_seed = [name for stem in stems for name in log if name.startswith(f"{stem}/seed")]
    names = per_seed or [name for name in stems if name in log]
    curves = []
    for name in names:
        if log[name].dtype.kind != "f":
            continue
        known = np.isfinite(log[name]) & np.isfinite(log[over])
        # A run that was resumed may have logged a step twice; the later row is the true one.
        steps, last = np.unique(log[over][known][::-1], return_index=True)
        if steps.size:
            curves.append(Curve(steps, log[name][known][::-1][last]))
    return curves


def on_common_steps(curves: list[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Steps [points] and returns [seeds, points], interpolated, NaN where a seed has no data."""
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    returns = [
        np.interp(steps, curve.steps, curve.returns, left=np.nan, right=np.nan) for curve in curves
    ]
    return steps, np.stack(returns)


def _draw(axes: Axes, name: str, curves: list[Curve]) -> None:
    color, width, order = STYLES[name]
    steps, returns = on_common_steps(curves)
    center, low, high = mean_with_band(returns)
    seeds = len(curves)
    label = f"{name}: {center[-1]:,.1f} at the end"
    if seeds > 1:
        label += f" ({spread_of(seeds)})"
    few_points = "o" if steps.size <= 30 else ""
    axes.plot(
        steps, center, few_points + "-", color=color, lw=width, ms=4, zorder=order, label=label
    )
    if 1 < seeds < FEWEST_IN_A_BAND:
        draw_seeds(axes, steps, returns, color)
    elif seeds > 1:
        axes.fill_between(steps, low, high, color=color, alpha=0.22, lw=0, zorder=order - 2)
        # The seeds themselves: an interval hides the one that never learned.
        if name == "evaluation" and seeds <= 10:
            draw_seeds(axes, steps, returns, color)


def _decorate(axes: Axes, title: str, found: bool) -> None:
    decorate(axes, title, "environment steps", "return of an episode")
    if found:
        axes.margins(x=0.01)
    else:
        axes.text(0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center")


def decorate(axes: Axes, title: str, along: str, up: str) -> None:
    # A name is not mathematics, whatever signs are in it.
    axes.set_title(title, loc="left", color=INK, fontweight="bold", parse_math=False)
    axes.set_xlabel(along, color=INK)
    axes.set_ylabel(up, color=INK)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(True, color="#d9dce1", lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#aab0b8")


def save_figure(figure: Figure, out_png: Path) -> Path:
    """Into place in one move: whoever looks while a run goes on sees a whole picture."""
    kind = out_png.suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise ConfigError(f"{out_png}: a picture ends in .png, .svg or .pdf")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind)
    return write_whole(out_png, buffer.getvalue())
