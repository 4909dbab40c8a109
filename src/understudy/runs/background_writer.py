"""Write files in a thread while training goes on."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final

from understudy.errors import CheckpointError

MOST_FAILURES = 3  # in a row

_log = logging.getLogger("understudy.runs")


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
