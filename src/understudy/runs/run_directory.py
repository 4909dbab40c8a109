"""What a run leaves behind: its log, its learning curve and its checkpoints, in one directory."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, final

import numpy as np

from understudy.errors import CheckpointError, ConfigError, UnderstudyError
from understudy.reading import read_bytes
from understudy.runner import Description
from understudy.runs import checkpoint
from understudy.runs.checkpoint_writer import Saver
from understudy.runs.csv_log import CsvLog, read_csv
from understudy.runs.files import refuse_link, write_whole
from understudy.runs.lock import RunLock
from understudy.runs.policy_file import save_policy
from understudy.runs.run import LogRow

LOG, CURVE, ABOUT = "progress.csv", "learning_curve.png", "run.json"
POLICY = "policy.safetensors"

_log = logging.getLogger("understudy.runs")


class Subject(NamedTuple):
    """What is kept: an agent, seen from here."""

    capture: Callable[[bool], tuple[Mapping[str, checkpoint.Arrays], Mapping[str, Any]]]
    """Groups of arrays and a manifest; with or without the world."""
    describe: Callable[[], Description] | None
    """The policy alone, if there is one."""
    draw: Callable[[Path, str], object]
    """Draws pictures into the run directory at the end, under this title."""


@final
class Records:
    """A callback that keeps a run directory up to date: the log, numbered checkpoints from which
    the run goes on, and `best`, the best by evaluation, from which it cannot."""

    def __init__(
        self,
        directory: Path,
        about: Mapping[str, Any],
        title: str,
        subject: Subject,
        keep: int,
        logged: int,
    ):
        """`about` says what runs here, its `run` which run it is; `keep` checkpoints stay, and the
        run remembers having `logged` up to that step."""
        self.directory, self._about, self._title = directory, about, title
        self._subject, self._keep, self._logged = subject, keep, logged
        self._log_fails = False
        self._told = False  # anything since the last checkpoint

    def __enter__(self) -> "Records":
        with ExitStack() as stack:
            _make_writable(self.directory)
            stack.enter_context(RunLock(self.directory))
            self._refuse_another_run()
            for name in (checkpoint.DIRECTORY, LOG):
                refuse_link(self.directory / name)
            checkpoint.tidy(self.directory)
            write_whole(self.directory / ABOUT, json.dumps(self._about, indent=2).encode())
            self._log = stack.enter_context(CsvLog(self.directory / LOG))
            # A run that was killed may have logged more than its checkpoint knows of.
            self._log.rewind(self._logged)
            scores = read_csv(self.directory / LOG).get("eval/mean_reward", np.array([]))
            self._best = max([float("-inf"), *scores[np.isfinite(scores)].tolist()])
            self._saver = Saver()
            stack.callback(self._saver.close)
            self.saved_at = time.monotonic()
            self._stack = stack.pop_all()
        return self

    def __call__(self, facts: LogRow) -> None:
        self._told = True
        try:
            self._log.append(facts)
        except OSError as error:
            if not self._log_fails:
                _log.warning("%s cannot be written: %s", self.directory / LOG, error)
            self._log_fails = True
        score = facts.get("eval/mean_reward")
        if score is not None and score > self._best:
            self._best = score
            self._save(self.directory / checkpoint.BEST, world=False)
            self._save_policy()

    def checkpoint(self, steps: int) -> None:
        """Keep what the run needs in order to go on from here. One from before an evaluation at
        this step does not know which seed is the best: it is replaced."""
        self.saved_at = time.monotonic()
        place = checkpoint.place_of(self.directory, steps)
        if self._told or not place.exists():
            self._told = False
            self._save(place, world=True)

    def newest(self) -> Path | None:
        """The newest checkpoint that is wholly written."""
        self._saver.settle()
        places = checkpoint.numbered(self.directory)
        return places[-1] if places else None

    def _save(self, place: Path, world: bool) -> None:
        groups, manifest = self._subject.capture(world)

        def write() -> None:
            checkpoint.write(place, groups, manifest)
            checkpoint.prune(self.directory, self._keep)

        self._saver.submit(str(place), write)

    def _save_policy(self) -> None:
        if self._subject.describe is None:
            return
        try:
            description = self._subject.describe()
        except ConfigError as error:  # networks of the user's own, say
            _log.info("no %s: %s", POLICY, error)
            return
        path = self.directory / POLICY
        self._saver.submit(str(path), lambda: save_policy(path, description))

    def _refuse_another_run(self) -> None:
        """What another run has left here must not be mixed with this one, let alone lost."""
        path = self.directory / ABOUT
        if not path.exists():
            return
        try:
            theirs = json.loads(read_bytes(path, checkpoint.LARGEST_MANIFEST)).get("run")
        except (CheckpointError, ValueError, AttributeError, RecursionError):
            theirs = None
        if theirs != self._about["run"]:
            raise ConfigError(
                f"{self.directory} holds another run: choose another directory, or go on with "
                f"that one (understudy resume {self.directory})"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._draw()
        finally:
            try:
                self._stack.close()
            except CheckpointError:
                if error is None:  # otherwise the first error is the one to see
                    raise

    def _draw(self) -> None:
        try:
            self._subject.draw(self.directory, self._title)
        except (OSError, UnderstudyError) as problem:
            _log.warning("%s was not drawn: %s", self.directory / CURVE, problem)


def _make_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / "probe", b"").unlink()
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written to: {error.strerror}") from error
