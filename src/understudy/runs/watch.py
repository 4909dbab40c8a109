"""Who looks on while a run goes on: the run directory, trackers, a person."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from understudy.engine.trainer import Trainer
from understudy.runs.loggers import open_loggers
from understudy.runs.progress import Progress
from understudy.runs.records import Records, Subject
from understudy.runs.run import Observer


@final
@dataclass(frozen=True)
class Watch:
    """Opens observers of one run, none or one or several of a kind; a stack closes them."""

    stack: ExitStack
    trainer: Trainer
    about: dict[str, Any]
    title: str
    run_dir: Path | None

    def records(self, subject: Subject, keep: int) -> list[Records]:
        """At most one."""
        if self.run_dir is None:
            return []
        logged = self.trainer.position.logged * self.trainer.setting.num_envs
        records = Records(self.run_dir, self.about, self.title, subject, keep, logged)
        return [self.stack.enter_context(records)]

    def trackers(self, logger: Any) -> list[Observer]:
        loggers = open_loggers(logger, self.run_dir, self.about, self.title)
        return [self.stack.enter_context(each) for each in loggers]

    def progress(self, wanted: bool) -> list[Observer]:
        if not wanted:
            return []
        bar = Progress(self.about["total_steps"], self.title, first_step=self.trainer.steps)
        return [self.stack.enter_context(bar).update]
