"""The directory of a run: its log, checkpoints, best policy and pictures."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, final

import numpy as np

from understudy.errors import CheckpointError, ConfigError, UnderstudyError
from understudy.reading import read_bytes
from understudy.runs import checkpoint
from understudy.runs.config import QDRunConfig, RunConfig
from understudy.runs.csv_log import UNITS, CsvLog, LogRow, read_csv
from understudy.runs.episode_log import EpisodeLog
from understudy.runs.files import lock_directory, refuse_link, write_whole
from understudy.runs.policy_file import save_policy
from understudy.runs.trainable import Trainable

LOG, CURVE, RUN_JSON = "progress.csv", "learning_curve.png", "run.json"
EPISODES = "episodes.csv"
POLICY = "policy.safetensors"
MOST_FAILURES = 3  # of writes in a row

_log = logging.getLogger("understudy.runs")


@final
class RunDirectory:
    """Holds the log, the newest checkpoints, and the best policy by evaluation. A run resumes from
    a checkpoint. It cannot resume from `best`, which lacks the experience.

    A context manager: one run may use a directory at a time."""

    def __init__(
        self, path: Path, trainable: Trainable, metadata: Mapping[str, Any], title: str,
        config: RunConfig | QDRunConfig,
    ):  # fmt: skip
        """`metadata` describes the run (its `run` identifies it)."""
        self.path, self.trainable, self._metadata = path, trainable, metadata
        self._title, self._keep = title, config.keep_checkpoints
        self._log_episodes = isinstance(config, RunConfig) and config.log_episodes
        self._log_fails = False
        self._logged = False  # since the last checkpoint
        self._submitted: list[Path] = []  # checkpoints, see `take_written`

    def __enter__(self) -> "RunDirectory":
        with ExitStack() as stack:
            _make_writable(self.path)
            stack.enter_context(lock_directory(self.path))
            self._refuse_another_run()
            for name in (checkpoint.DIRECTORY, LOG, EPISODES):
                refuse_link(self.path / name)
            checkpoint.tidy(self.path)
            write_whole(self.path / RUN_JSON, json.dumps(self._metadata, indent=2).encode())
            self._csv = stack.enter_context(CsvLog(self.path / LOG))
            # A run that was killed may have logged rows beyond its newest checkpoint.
            trainable = self.trainable
            logged = trainable.position.logged * trainable.batch
            self._csv.rewind(logged, UNITS[trainable.unit].count)
            self._episodes = None
            if self._log_episodes:
                self._episodes = stack.enter_context(EpisodeLog(self.path / EPISODES, logged))
            scores = read_csv(self.path / LOG).get("eval/mean_reward", np.array([]))
            self._best = max([float("-inf"), *scores[np.isfinite(scores)].tolist()])
            self._writer = BackgroundWriter()
            stack.callback(self._writer.close)
            self.saved_at = time.monotonic()  # the last checkpoint
            self._stack = stack.pop_all()
        return self

    def log(self, row: LogRow) -> None:
        """Append a row to the log. If its evaluation is the best so far, save `best`."""
        self._logged = True
        ended, self.trainable.ended = self.trainable.ended, []
        try:
            self._csv.append(row)
            if self._episodes is not None:
                self._episodes.append(ended)
        except OSError as error:
            if not self._log_fails:
                _log.warning("%s cannot be written: %s", self.path / LOG, error)
            self._log_fails = True
        score = row.get("eval/mean_reward")
        if score is not None and score > self._best:
            self._best = score
            self._save(self.path / checkpoint.BEST, world=False)
            self._save_policy()

    def checkpoint(self) -> None:
        """Save what the run needs to resume here. A checkpoint from before an evaluation at this
        count is replaced, because it does not hold the scores."""
        self.saved_at = time.monotonic()
        place = checkpoint.place_of(self.path, self.trainable.count)
        if self._logged or not place.exists():
            self._logged = False
            self._save(place, world=True)

    def newest(self) -> Path | None:
        """The newest complete checkpoint."""
        self._writer.wait()
        return max(checkpoint.numbered(self.path), default=None)

    def take_written(self) -> list[Path]:
        """Wait for writes; return the checkpoints that were written since the last call."""
        self._writer.wait()
        written, self._submitted = [place for place in self._submitted if place.is_dir()], []
        return written

    def _save(self, place: Path, world: bool) -> None:
        groups, manifest = self.trainable.capture(world)

        def write() -> None:
            checkpoint.write(place, groups, manifest)
            checkpoint.prune(self.path, self._keep)

        self._submitted = [*self._submitted[-9:], place]
        self._writer.submit(str(place), write)

    def _save_policy(self) -> None:
        if self.trainable.describe_policy is None:
            return
        try:
            description = self.trainable.describe_policy()
        except ConfigError as error:  # networks of the user's own, say
            _log.info("no %s: %s", POLICY, error)
            return
        path = self.path / POLICY
        self._writer.submit(str(path), lambda: save_policy(path, description))

    def _refuse_another_run(self) -> None:
        """Do not mix the files of two runs, or lose those of the first."""
        path = self.path / RUN_JSON
        if not path.exists():
            return
        try:
            theirs = json.loads(read_bytes(path, checkpoint.LARGEST_MANIFEST)).get("run")
        except (CheckpointError, ValueError, AttributeError, RecursionError):
            theirs = None
        if theirs != self._metadata["run"]:
            raise ConfigError(
                f"{self.path} holds another run: choose another directory, or go on with "
                f"that one (understudy resume {self.path})"
            )

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.trainable.draw(self.path, self._title)
        except (OSError, UnderstudyError) as problem:
            _log.warning("%s was not drawn: %s", self.path / CURVE, problem)
        finally:
            try:
                self._stack.close()
            except CheckpointError:
                if error is None:  # otherwise the first error is shown
                    raise


def _make_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / "probe", b"").unlink()
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written to: {error.strerror}") from error


@final
class BackgroundWriter:
    """Runs one write at a time in a thread. A failed write is logged, and the run continues,
    because the checkpoint before it still exists. The third failure in a row ends the run."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "understudy-saver")
        self._pending: Future[object] | None = None
        self._failures = 0

    def submit(self, name: str, write: Callable[[], object]) -> None:
        """Call `write` in the thread, once the write before it has ended: so memory is bounded.
        Wait for it if its failure would end the run."""
        self.wait()
        self._name = name
        self._pending = self._thread.submit(write)
        if self._failures == MOST_FAILURES - 1:
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.result()
            self._failures = 0
        except (OSError, CheckpointError) as error:
            self._failures += 1
            _log.error("%s was not written: %s", self._name, error)
            if self._failures >= MOST_FAILURES:
                raise CheckpointError(
                    f"{self._failures} checkpoints in a row could not be written, the last one "
                    f"because: {error}"
                ) from error

    def close(self) -> None:
        """Wait for the last write, and raise an error if it failed."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
        if self._failures:
            raise CheckpointError(f"{self._name}, the last of this run, could not be written")
