"""Checkpoints written beside training: the copy is made at once, the writing is not waited for."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final

from understudy.errors import CheckpointError

MOST_FAILURES = 3  # in a row

_log = logging.getLogger("understudy.runs")


@final
class Saver:
    """Runs one write at a time in a thread. A write that fails is reported and forgotten, since
    the last good checkpoint is still there; the third in a row ends the run."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "understudy-saver")
        self._pending: Future[object] | None = None
        self._failures = 0

    def submit(self, what: str, write: Callable[[], object]) -> None:
        """Have `write` called. Waits for the one before it, so that memory stays bounded, and for
        this one, if it may be the last failure before the run ends."""
        self.settle()
        self._what = what
        self._pending = self._thread.submit(write)
        if self._failures == MOST_FAILURES - 1:
            self.settle()

    def settle(self) -> None:
        """Until nothing is being written."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.result()
            self._failures = 0
        except (OSError, CheckpointError) as error:
            self._failures += 1
            _log.error("%s was not written: %s", self._what, error)
            if self._failures >= MOST_FAILURES:
                raise CheckpointError(
                    f"{self._failures} checkpoints in a row could not be written, the last one "
                    f"because: {error}"
                ) from error

    def close(self) -> None:
        """Wait for the last one. That it failed must not pass for a success."""
        try:
            self.settle()
        finally:
            self._thread.shutdown()
        if self._failures:
            raise CheckpointError(f"{self._what}, the last of this run, could not be written")
