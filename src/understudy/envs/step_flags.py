"""Steps that are begun and ended by numbers in shared memory: no system call for each worker.

A pipe costs several microseconds for each message, and being woken tens of them: more than a small
simulator's step. Where there are cores enough, workers look for the next step for a moment before
they sleep, and the parent looks for their answers.

The parent gives each step a number. A worker does a step when the number that it was told is a new
one, and answers with the same number. A worker that has looked long enough sleeps on its pipe; the
parent then wakes it by a message that means nothing else, so that one too many does no harm.

Results are written before the number that says so, and must be seen in that order: x86 guarantees
it, other processors do not, and use pipes. This file must stay free of JAX.
"""

import os
import platform
import time
from collections.abc import Iterator
from typing import Any, final

import numpy as np

SPARE_CORES = 2  # beside the workers': the parent's, and one for its programs
LOOKING = 1e-3  # seconds that a worker looks for its next step
BRISK = 2e-3  # seconds after which the parent looks less often
PAUSE = 1e-4  # seconds between two such looks
CHECKS = 1e-2  # seconds between two looks for workers that sleep or have died


def are_worthwhile(workers: int) -> bool:
    """Whether this machine has cores enough for all workers to look."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return platform.machine() in ("x86_64", "AMD64") and (cores or 1) >= workers + SPARE_CORES


@final
class StepFlags:
    """Four numbers of each worker. Callers hold no views of them, so that `release` is enough to
    let the memory be closed."""

    def __init__(self, buffer: Any, workers: int, offset: int):
        self._told, self._done, self._asleep, self._news = np.ndarray(
            (4, workers), np.int64, buffer, offset
        )

    @staticmethod
    def nbytes(workers: int) -> int:
        return 4 * 8 * workers

    def release(self) -> None:
        del self._told, self._done, self._asleep, self._news

    # -- the worker's side ------------------------------------------------------------------

    def told(self, index: int) -> int:
        """The number of the latest step that a worker was told to do."""
        return int(self._told[index])

    def look_for_step(self, index: int, number: int) -> bool:
        """Whether there is a step to do after step `number`. If not, the worker counts as asleep
        from now on, and must read its pipe."""
        told, until = self._told, time.monotonic() + LOOKING
        while time.monotonic() < until:
            for _ in range(100):
                if told[index] != number:
                    return True
        self._asleep[index] = 1
        if told[index] == number:
            return False
        self._asleep[index] = 0  # there was one in the meantime
        return True

    def wake_up(self, index: int) -> None:
        self._asleep[index] = 0

    def announce_news(self, index: int) -> None:
        """A message about the latest step follows."""
        self._news[index] = 1

    def finish(self, index: int, number: int) -> None:
        self._done[index] = number

    # -- the parent's side ------------------------------------------------------------------

    def begin(self, first: int, stop: int, number: int) -> list[int]:
        """Tell these workers to do step `number`; gives those that must be woken."""
        self._told[first:stop] = number
        return self.sleepers(first, stop)

    def sleepers(self, first: int, stop: int) -> list[int]:
        return (first + np.flatnonzero(self._asleep[first:stop] != 0)).tolist()

    def late(self, first: int, stop: int, number: int) -> list[int]:
        """The workers that have not done step `number` yet."""
        return (first + np.flatnonzero(self._done[first:stop] != number)).tolist()

    def take_news(self, index: int) -> bool:
        """Whether there is a message about the latest step."""
        news = bool(self._news[index])
        self._news[index] = 0
        return news

    def bury(self, index: int, number: int) -> None:
        """A worker was lost in step `number`. The next one in its place begins after it."""
        self._done[index], self._asleep[index], self._news[index] = number, 0, 0

    def wait(self, first: int, stop: int, number: int, timeout: float) -> Iterator[list[int]]:
        """Look for the answers of these workers. Gives, now and then, those that have not answered;
        ends when all have, or when the time is over."""
        start = check = time.monotonic()
        while self.late(first, stop, number):
            now = time.monotonic()
            if now - check > CHECKS:
                check = now
                yield self.late(first, stop, number)
            if now - start > timeout:
                return
            # Also when there is no pause: other threads of the parent must run.
            time.sleep(PAUSE if now - start > BRISK else 0.0)
