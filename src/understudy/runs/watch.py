"""Who looks on while a run goes on: the run directory, trackers, a person."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from understudy.runs.loggers import open_loggers
from understudy.runs.progress import Progress
from understudy.runs.run import Callback
from understudy.runs.run_directory import Records, Subject


@final
@dataclass(frozen=True)
class Counting:
    """How far a run is when it is watched."""

    done: int
    logged: int  # steps that the log has told of
    unit: str = "steps"  # of what is done
    now: Callable[[], int] | None = None  # how much is done, at any moment


@final
@dataclass(frozen=True)
class Watch:
    """Opens callbacks of one run, none or one or several of a kind; a stack closes them."""

    stack: ExitStack
    counting: Counting
    about: dict[str, Any]
    title: str
    run_dir: Path | None

    def records(self, subject: Subject, keep: int) -> list[Records]:
        """At most one."""
        if self.run_dir is None:
            return []
        logged = self.counting.logged
        records = Records(self.run_dir, self.about, self.title, subject, keep, logged)
        return [self.stack.enter_context(records)]

    def trackers(self, logger: Any) -> list[Callback]:
        loggers = open_loggers(logger, self.run_dir, self.about, self.title)
        return [self.stack.enter_context(each) for each in loggers]

    def progress(self, wanted: bool) -> list[Callback]:
        if not wanted:
            return []
        total, counting = self.about["total_steps"], self.counting
        done, unit, now = counting.done, counting.unit, counting.now
        bar = Progress(total, self.title, done, unit=unit, now=now)
        return [self.stack.enter_context(bar).update]
