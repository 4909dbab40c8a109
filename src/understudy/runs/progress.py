"""Show the progress of a run to a person.

A terminal shows a bar with the remaining time, and the main metrics under it. Other outputs (a
file, a job on a cluster) get one plain line per row of the log. Both use the error stream, so that
standard output remains free for results.
"""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, final

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from understudy.runs.csv_log import UNITS, LogRow

COMPILING = "compiling …"  # until the first step


def compact(value: float) -> str:
    """Format about four digits: -1,234 and -152.3 and 0.52."""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def seed_spread(values: Any) -> str:
    """Format the worst and the best seed, "-312.0 … -120.5 (of 4)"; empty for a single seed."""
    seeds = np.asarray([] if values is None else values, dtype=np.float64)
    known = seeds[np.isfinite(seeds)]
    if seeds.size < 2 or known.size == 0:
        return ""
    return f"{compact(float(known.min()))} … {compact(float(known.max()))} (of {seeds.size})"


# Name in the log -> label and format; in the order in which they are shown.
SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "rollout/ep_rew_mean": ("return", compact),
    "rollout/ep_rew_per_seed": ("seeds", seed_spread),
    "rollout/success_rate": ("success", "{:.0%}".format),
    "eval/mean_reward": ("eval", compact),
    "eval/success_rate": ("eval success", "{:.0%}".format),
    "qd/qd_score": ("QD-score", compact),
    "qd/coverage": ("coverage", "{:.1%}".format),
    "qd/max_fitness": ("best", compact),
    "time/fps": ("steps/s", "{:,.0f}".format),
    "time/evaluations_per_second": ("evaluations/s", "{:,.0f}".format),
    "cluster/collectors": ("collectors", "{:.0f}".format),
    "cluster/gradient_workers": ("workers", "{:.0f}".format),
    "cluster/staleness": ("staleness", "{:.1f}".format),
    "cluster/replay_ratio": ("updates/step", "{:.2f}".format),
}


@final
class Progress:
    """Shows the rows of a log; a context manager. Values that a row lacks stay as they were."""

    def __init__(
        self,
        total: int,
        title: str = "training",
        console: Console | None = None,
        unit: str = "steps",
        now: Callable[[], int] = lambda: 0,
    ):
        """`total` is the count at the end, in that `unit`; `now` returns the present count, between
        two rows."""
        self._total, self._title, self._first, self._now = total, title, now(), now
        self._count, self._rate = UNITS[unit]
        self._console = Console(stderr=True) if console is None else console
        self._row: LogRow = {self._count: self._first}
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar = RichProgress(
                # markup off: `[...]` in a title is part of a name
                TextColumn("{task.description}", style="bold", markup=False),
                BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
                TaskProgressColumn(),
                TextColumn("{task.fields[steps]}", style="dim"),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                console=self._console,
                expand=True,
                # The first steps are random and fast: forget their speed soon.
                speed_estimate_period=20.0,
            )
            self._task = self._bar.add_task(title, total=total, completed=self._first, steps="")
            # It is drawn four times a second, with or without a new row.
            self._live = Live(console=self._console, get_renderable=self._render)

    def __enter__(self) -> "Progress":
        # Rich ends the program if its output is a pipe that the reader has closed.
        with contextlib.suppress(OSError, SystemExit):
            if self._live is None:
                self._print(f"{self._title} | {COMPILING}")
            else:
                self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError, SystemExit):
                self._live.stop()

    def update(self, row: LogRow) -> None:
        """Show a row of the log: draw the bar, or print a line."""
        self._row.update(row)
        with contextlib.suppress(OSError, SystemExit):
            if self._live is None:
                self._print(self._plain_line())
            else:
                self._live.refresh()

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> Group:
        self._bar.update(self._task, completed=self._done(), steps=self._steps())
        line, shown = Text("  "), self._shown()
        if self._done() <= self._first and not shown:
            line.append(COMPILING, "dim")
        for i, (name, value) in enumerate(shown):
            line.append("   " if i else "").append(f"{name} ", "dim").append(value, "bold")
        return Group(self._bar, line)

    def _plain_line(self) -> str:
        share = self._done() / max(self._total, 1)
        parts = [self._title, f"{self._steps()} ({share:.0%})"]
        parts += [f"{name} {value}" for name, value in self._shown()]
        rate = self._row.get(self._rate)
        if _is_known(rate) and rate:
            left = max(self._total - self._done(), 0) / rate
            parts.append(f"left {timedelta(seconds=round(left))}")
        return " | ".join(parts)

    def _shown(self) -> list[tuple[str, str]]:
        """The labels and values of what is known, without the rate in another unit."""
        hidden, shown = {unit.rate for unit in UNITS.values()} - {self._rate}, []
        for name, (label, form) in SHOWN.items():
            value = self._row.get(name)
            if name not in hidden and _is_known(value) and (text := form(value)):
                shown.append((label, text))
        return shown

    def _done(self) -> int:
        return max(int(self._row[self._count]), self._now())

    def _steps(self) -> str:
        return f"{self._done():,}/{self._total:,}"


def _is_known(value: Any) -> bool:
    """Whether a value can be shown; before an episode has ended its return is NaN, say."""
    return value is not None and (np.ndim(value) > 0 or bool(np.isfinite(value)))
