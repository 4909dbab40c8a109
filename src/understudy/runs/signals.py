"""Signals that end a run, such as SIGINT and SIGTERM. The run finishes its step and saves first."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, final

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # Windows has the last one instead of SIGHUP
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


class Interrupted(BaseException):
    """A signal has interrupted something that can be done again."""


@final
class Interruption:
    """Within its context the first signal only asks the run to stop; a second SIGINT raises
    KeyboardInterrupt at once. Signals reach the main thread only: elsewhere this does nothing."""

    def __init__(self, interrupt: Callable[[], None]):
        """The handler of the first signal calls `interrupt`."""
        self._interrupt = interrupt
        self._before: dict[int, Any] = {}
        self._interruptible = False
        self.signal: int | None = None

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            # None: Python did not install this handler, and cannot restore it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal raise `Interrupted` anywhere in this context, or at its beginning if a
        signal came before. It is for work that can be done again, such as an evaluation."""
        if self.signal is not None:
            raise Interrupted
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False

    def raise_signal(self) -> None:
        """Raise what the signal would have raised, if there was one."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            raise SystemExit(128 + self.signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        self._interrupt()
        if self._interruptible:
            raise Interrupted
