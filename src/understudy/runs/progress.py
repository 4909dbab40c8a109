"""What a person sees while an agent trains.

In a terminal: a bar with the time left, and under it the facts that say how it goes. Elsewhere
(a file, a job on a cluster): one plain line per log. Both go to the error stream, so that
standard output stays free for results.
"""

import contextlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, final

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

# What is counted → the facts that say how many there are, and how many a second.
UNITS = {
    "steps": ("time/total_steps", "time/fps"),
    "evaluations": ("time/evaluations", "time/evaluations_per_second"),
}
RETURN = "rollout/ep_rew_mean"
RETURN_PER_SEED = "rollout/ep_rew_per_seed"
EVALUATION = "eval/mean_reward"
QD_SCORE, COVERAGE, BEST = "qd/qd_score", "qd/coverage", "qd/max_fitness"
COLLECTORS, WORKERS = "cluster/collectors", "cluster/gradient_workers"
COMPILING = "compiling …"  # until the first step
STALENESS, RATIO = "cluster/staleness", "cluster/replay_ratio"


@final
class Progress:
    """Shows a run's facts; a context manager. LogRow not given again keep their last value."""

    def __init__(
        self,
        total_steps: int,
        title: str = "training",
        first_step: int = 0,
        console: Console | None = None,
        unit: str = "steps",
        now: Callable[[], int] | None = None,
    ):
        """`unit` is what the total counts; `now` tells how many there are, between two logs."""
        self._now, self._first = now, first_step
        self._unit = unit
        self._counted, self._speed = UNITS[unit]
        self.total_steps = total_steps
        self.title = title
        self._console = Console(stderr=True) if console is None else console
        self._facts: dict[str, Any] = {self._counted: first_step}
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
                # The speed of the random first steps says nothing about the rest: forget it soon.
                speed_estimate_period=20.0,
            )
            self._task = self._bar.add_task(
                title, total=total_steps, completed=first_step, steps=self._steps()
            )
            # Drawn anew four times a second, whether or not there is anything to log.
            self._live = Live(
                console=self._console, refresh_per_second=4, get_renderable=self._picture
            )

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        else:
            with contextlib.suppress(OSError, SystemExit):
                self._print(f"{self.title} | {COMPILING}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError, SystemExit):
                self._live.stop()

    def update(self, facts: Mapping[str, Any]) -> None:
        self._facts.update(facts)
        # Whoever looked on may have gone, and Rich ends the program where a pipe is closed.
        with contextlib.suppress(OSError, SystemExit):
            self._show()

    def _show(self) -> None:
        if self._live is None:
            self._print(self._plain())
        else:
            self._live.refresh()

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _picture(self) -> Group:
        self._bar.update(self._task, completed=self._done(), steps=self._steps())
        line = Text("  ")
        if self._done() <= self._first and not self._shown():
            line.append(COMPILING, "dim")
        for i, (name, value) in enumerate(self._shown()):
            line.append("   " if i else "").append(f"{name} ", "dim").append(value, "bold")
        return Group(self._bar, line)

    def _plain(self) -> str:
        share = self._done() / max(self.total_steps, 1)
        parts = [self.title, f"{self._steps()} ({share:.0%})"]
        parts += [f"{name} {value}" for name, value in self._shown()]
        speed = self._number(self._speed)
        if speed:
            left = max(self.total_steps - self._done(), 0) / speed
            parts.append(f"left {timedelta(seconds=round(left))}")
        return " | ".join(parts)

    def _shown(self) -> list[tuple[str, str]]:
        shown = []
        if (value := self._number(RETURN)) is not None:
            shown.append(("return", compact(value)))
        if spread := seed_spread(self._facts.get(RETURN_PER_SEED)):
            shown.append(("seeds", spread))
        if (value := self._number(EVALUATION)) is not None:
            shown.append(("eval", compact(value)))
        if (value := self._number(QD_SCORE)) is not None:
            shown.append(("QD-score", compact(value)))
        if (value := self._number(COVERAGE)) is not None:
            shown.append(("coverage", f"{value:.1%}"))
        if (value := self._number(BEST)) is not None:
            shown.append(("best", compact(value)))
        if (value := self._number(self._speed)) is not None:
            shown.append((f"{self._unit}/s", f"{value:,.0f}"))
        return shown + self._cluster()

    def _cluster(self) -> list[tuple[str, str]]:
        """How those far away are doing."""
        forms = {
            COLLECTORS: ("collectors", "{:.0f}"),
            WORKERS: ("workers", "{:.0f}"),
            STALENESS: ("staleness", "{:.1f}"),
            RATIO: ("updates/step", "{:.2f}"),
        }
        values = {fact: self._number(fact) for fact in forms}
        return [
            (forms[fact][0], forms[fact][1].format(value))
            for fact, value in values.items()
            if value is not None
        ]

    def _number(self, name: str) -> float | None:
        """The fact, or None where nobody knows it yet (no episode has ended, say)."""
        value = self._facts.get(name)
        return None if value is None or not np.isfinite(value) else float(value)

    def _done(self) -> int:
        logged = int(self._facts[self._counted])
        return logged if self._now is None else max(logged, self._now())

    def _steps(self) -> str:
        return f"{self._done():,}/{self.total_steps:,}"


def compact(value: float) -> str:
    """About four digits: -1,234 and -152.3 and 0.52."""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def seed_spread(values: Any) -> str:
    """Worst and best seed, "-312.0 … -120.5 (of 4)"; empty unless there are several."""
    if values is None or np.size(values) < 2:
        return ""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if known.size == 0:
        return ""
    return f"{compact(float(known.min()))} … {compact(float(known.max()))} (of {np.size(values)})"
