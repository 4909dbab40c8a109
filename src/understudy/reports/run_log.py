"""A run directory as charts and pages read it: what was run, and the columns of its log."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from understudy.algorithms.config import shown_name
from understudy.reading import read_bytes
from understudy.runs.csv_log import STEPS, read_csv
from understudy.types import UnderstudyError

EVALUATION = "eval/mean_reward"
TRAINING = ("rollout/ep_rew_mean", "rollout/ep_rew")  # the mean, and the stem of per-seed columns
SUCCESS = {"training": ("rollout/success_rate",), "evaluation": ("eval/success_rate",)}
RETURNS = {"training": TRAINING, "evaluation": (EVALUATION,)}
LARGEST_ABOUT = 2**24  # bytes of run.json


class Curve(NamedTuple):
    """The returns of one seed over its steps."""

    steps: np.ndarray  # [points], increasing
    returns: np.ndarray  # [points]


class Run(NamedTuple):
    """A run directory's description and log."""

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
        named = (
            *("env_args", "num_envs", "own_networks", "loss_addons", "schedules", "descriptor"),
            "understudy",
        )
        return {**self.about.get("config", {}), **{name: self.about.get(name) for name in named}}

    def facts(self, *names: str) -> list[str]:
        """What the description says of these, in words."""
        return [f"{name} {self.about[name]}" for name in names if self.about.get(name)]

    @property
    def title(self) -> str:
        return f"{self.algorithm} on {self.env}"

    @property
    def env(self) -> str:
        about = self.about
        return str(about.get("env") or about.get("env_title") or "your environment")

    @property
    def illuminates(self) -> bool:
        """Whether this is a run of quality-diversity."""
        return "described_by" in self.about

    def column(self, name: str, over: str = STEPS) -> tuple[np.ndarray, np.ndarray]:
        """The steps (or another column) and the values of a column, where both are numbers."""
        values, steps = self.log.get(name), self.log.get(over)
        if values is None or steps is None or values.dtype.kind != "f" or steps.dtype.kind != "f":
            return np.array([]), np.array([])
        known = np.isfinite(values) & np.isfinite(steps)
        return steps[known], values[known]

    def last(self, name: str) -> float | None:
        """The last number of a column."""
        _, values = self.column(name, over=name)
        return float(values[-1]) if values.size else None

    def curve(self, name: str, over: str = STEPS) -> Curve | None:
        """A column as a curve. A run that was resumed may have logged a step twice; the later row
        is the true one."""
        steps, values = self.column(name, over)
        steps, last = np.unique(steps[::-1], return_index=True)
        return Curve(steps, values[::-1][last]) if steps.size else None

    def curves(self, stems: Sequence[str], over: str = STEPS) -> list[Curve]:
        """A curve per seed, or the single curve of the mean where the log has no seeds."""
        per_seed = [name for stem in stems for name in self.log if name.startswith(f"{stem}/seed")]
        curves = [self.curve(name, over) for name in per_seed or stems]
        return [curve for curve in curves if curve is not None]


def read_run(directory: Path | str) -> Run:
    """Read a run directory. One without a log is refused; one without run.json has no name."""
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
    """What the path is instead, and which command takes it."""
    if directory.is_file():
        return "; it is a file, and a run is a directory"
    if (directory / "sweep.csv").is_file():
        return "; it is a sweep, whose picture is sweep.png beside its table"
    if any(path.is_dir() and (path / "progress.csv").is_file() for path in directory.glob("*")):
        return f"; its directories are runs: understudy plot {directory}/*"
    return ""


def read_runs(runs: Sequence[Path | str]) -> list[Run]:
    """Read each directory once."""
    if not runs:
        raise UnderstudyError("there are no runs to compare")
    once = {Path(run).resolve(): Path(run) for run in runs}
    return [read_run(directory) for directory in once.values()]
