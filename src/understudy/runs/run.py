"""The outer loop of training and illumination: advance, log, evaluate and save, until the end or
until a callback or a signal asks to stop."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import jax

from understudy.runs.callbacks import BETWEEN_CHUNKS, Callbacks
from understudy.runs.config import QDRunConfig, RunConfig
from understudy.runs.csv_log import LogRow
from understudy.runs.loggers import open_loggers
from understudy.runs.run_directory import RunDirectory
from understudy.runs.signals import Interrupted, Interruption
from understudy.runs.trainable import Trainable
from understudy.training.update_schedule import next_multiple
from understudy.types import ClusterError, UnderstudyError

SECONDS_BETWEEN = 60.0  # checkpoints, if no interval is set


@final
@dataclasses.dataclass
class Run:
    """One call of `train` or `illuminate`."""

    trainable: Trainable
    config: RunConfig | QDRunConfig
    stop: int
    """The count at which the run ends."""
    metadata: dict[str, Any]
    """The description of the run for `run.json` and loggers."""
    title: str
    callbacks: Callbacks = dataclasses.field(default_factory=Callbacks)
    owner: Any = None
    """The agent, or the illumination, that callbacks get."""

    def execute(
        self, run_dir: str | Path | None = None, logger: Any = None, progress: bool = False
    ) -> list[LogRow]:
        """Advance to `stop`; log to the directory, the loggers, the progress bar (if wanted) and
        the callbacks. Return the rows of the log."""
        trainable, path = self.trainable, None if run_dir is None else Path(run_dir)
        metadata = self.metadata | {
            "total_steps": self.stop,
            "run_config": dataclasses.asdict(self.config),
        }
        with contextlib.ExitStack() as stack:
            self._directory, outputs = None, []
            if path is not None:
                directory = RunDirectory(path, trainable, metadata, self.title, self.config)
                self._directory = stack.enter_context(directory)
                outputs.append(directory.log)
            for each in open_loggers(logger, path, metadata, self.title):
                outputs.append(stack.enter_context(each))
            if progress:
                from understudy.runs.progress import Progress  # imports Rich

                unit, now = trainable.unit, lambda: trainable.count
                bar = Progress(self.stop, self.title, unit=unit, now=now)
                outputs.append(stack.enter_context(bar).update)
            self._outputs = outputs
            return self._loop()

    def _loop(self) -> list[LogRow]:
        trainable, self._history, self._stopping = self.trainable, [], False
        begun = self._ticked = self._clock = time.perf_counter()
        with Interruption(trainable.interrupt) as interruption:
            self._interruption = interruption
            with self._explaining_errors():
                self._call("on_train_start", self.owner)
                # After an interruption only the checkpoint is written: a resumed run logs the rest.
                while not interruption.signal and self._report() and trainable.count < self.stop:
                    self._advance()
            self._save()
            if not interruption.signal:
                self._notify_of_checkpoints()
                self._call("on_train_end", self.owner)
            interruption.raise_signal()
        self.seconds = time.perf_counter() - begun
        return self._history

    def _advance(self) -> None:
        """Advance to the next count at which something is due, and save if that is due."""
        trainable, before = self.trainable, self.trainable.count
        intervals = self.config.intervals(trainable.batch)
        until = min([self.stop, *(next_multiple(before, every) for every in intervals if every)])
        if self.callbacks.wanted(*BETWEEN_CHUNKS):
            self._advance_by_chunks(until)
        else:
            trainable.advance(-(-(until - before) // trainable.batch))
        trainable.block_until_ready()
        if self._directory is None or self._interruption.signal:
            return
        due = time.monotonic() - self._directory.saved_at > SECONDS_BETWEEN
        if intervals.checkpoint is not None:
            due = _crossed(before, trainable.count, intervals.checkpoint)
        if due:
            self._save()
            self._notify_of_checkpoints()

    def _advance_by_chunks(self, until: int) -> None:
        """Advance, and call callbacks at the multiples of a chunk. The device may still compute
        when they are called."""
        trainable, callbacks, chunk = self.trainable, self.callbacks, self.trainable.chunk
        while trainable.count < until and not self._stopping and not self._interruption.signal:
            before = trainable.count
            stop = min(until, next_multiple(before, chunk))
            trainable.advance(-(-(stop - before) // trainable.batch))
            self._take_in_episodes()
            if _crossed(before, trainable.count, chunk):
                with self._saving_on_error():
                    self._stopping |= callbacks.end_chunk(self.owner, trainable.count)

    def _take_in_episodes(self) -> None:
        if self.callbacks.wanted("on_episode"):
            self.callbacks.add_episodes(self.trainable.new_episodes())

    def _report(self) -> bool:
        """Log and evaluate if that is due; return False if a callback has asked to stop.

        Rows are due relative to the last row of the log. A resumed run therefore begins with the
        rows that were due before its interruption."""
        trainable, intervals = self.trainable, self.config.intervals(self.trainable.batch)
        count, logged = trainable.count, trainable.position.logged * trainable.batch
        ended = (count >= self.stop or self._stopping) and count > logged
        evaluating = ended or _crossed(logged, count, intervals.evaluate)
        if not evaluating and not _crossed(logged, count, intervals.log):
            return not self._stopping
        seconds = self._tick() - self._clock
        # Evaluate first: an evaluation may be interrupted, and metrics can be read only once.
        in_one_row = evaluating and intervals.evaluate is not None
        scores = self._evaluate() if in_one_row else {}
        self._take_in_episodes()  # before they are counted in a row
        self._log(trainable.metrics(seconds) | scores)
        if (ended or self._stopping) and not scores and (scores := self._evaluate()):
            self._log(trainable.counters() | scores)
        self._clock = self._tick()
        return not self._stopping

    def _evaluate(self) -> LogRow:
        with self._interruption.interruptible():
            results = self.trainable.evaluate()
        if results:
            self._call("on_evaluation", self.owner, results)
        return results

    def _log(self, row: LogRow) -> None:
        """Add a row to the log."""
        self.trainable.position.logged = self.trainable.count // self.trainable.batch
        row |= self.callbacks.take_logged()
        self._history.append(row)
        with self._saving_on_error():
            for output in self._outputs:
                output(row)
        self._call("on_log", self.owner, row)
        self._notify_of_checkpoints()

    def _notify_of_checkpoints(self) -> None:
        """Call `on_checkpoint` for those that were written since the last call."""
        if self._directory is not None and self.callbacks.wanted("on_checkpoint"):
            for place in self._directory.take_written():
                self._call("on_checkpoint", self.owner, place)

    def _call(self, hook: str, *arguments: Any) -> None:
        with self._saving_on_error():
            self._stopping |= self.callbacks.call(hook, *arguments)

    @contextlib.contextmanager
    def _saving_on_error(self) -> Iterator[None]:
        """Save if a callback raises an error: it must not cost what was learned."""
        try:
            yield
        except Exception:
            self._save()
            raise

    def _tick(self) -> float:
        """Add the time since the last tick to the run's; return the present time."""
        now = time.perf_counter()
        self.trainable.position.seconds += now - self._ticked
        self._ticked = now
        return now

    def _save(self) -> None:
        self._tick()
        if self._directory is not None:
            self._directory.checkpoint()

    @contextlib.contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        """Name the settings to lower if memory does not suffice, and the last good checkpoint.
        Save if a cluster was lost. End quietly if a signal has interrupted something."""
        try:
            yield
        except Interrupted:
            pass
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            sizes = self.trainable.memory_settings().items()
            settings = ", ".join(f"{name} {value:,}" for name, value in sizes)
            problem = f"the accelerator is out of memory ({settings}): lower one of them"
            raise UnderstudyError(problem + self._name_checkpoint()) from error
        except UnderstudyError as error:
            if isinstance(error, ClusterError):  # everything that was learned is in this process
                self._save()
            error.args = (f"{error}{self._name_checkpoint()}",)
            raise

    def _name_checkpoint(self) -> str:
        """Return the end of a message that names the last good checkpoint; "" if there is none."""
        newest = self._directory and self._directory.newest()
        return f"; the last good checkpoint is {newest}" if newest else ""


def _crossed(before: int, after: int, interval: int | None) -> bool:
    """Whether a multiple of the interval lies between two counts; never if there is none."""
    return bool(interval) and after // interval > before // interval
