"""SIGINT, SIGTERM and a terminal that hangs up: finish the step, save, go."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, final

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal came while something ran that may be broken off."""


@final
class Interruption:
    """While it is entered, the first signal only asks to stop; a second SIGINT is Python's own
    affair at once. Signals reach the main thread alone: elsewhere this does nothing."""

    def __init__(self, tell: Callable[[], None]):
        """`tell` is called, from within the handler, when somebody asks to stop."""
        self._tell = tell
        self._before: dict[int, Any] = {}
        self._breakable = False
        self.signal: int | None = None

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup is to be obeyed
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that Python did not install and cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    @contextlib.contextmanager
    def breaking(self) -> Iterator[None]:
        """Something that may be broken off at any point, and can be done again: an evaluation."""
        if self.signal is not None:
            raise Interrupted
        self._breakable = True
        try:
            yield
        finally:
            self._breakable = False

    def leave(self) -> None:
        """What the signal would have done, now that everything is saved."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            raise SystemExit(128 + self.signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        self._tell()
        if self._breakable:
            raise Interrupted
