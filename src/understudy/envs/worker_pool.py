"""The worker processes of `ProcessEnvs`: their start, pipes, shared memory and end.

Workers start by forkserver (on Windows by spawn) and never import JAX. (Python's own forkserver and
resource tracker stay, idle, until the program ends; they serve every later start.)
"""

import multiprocessing
import os
import select
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory
from typing import Any, final

import cloudpickle
import numpy as np

from understudy.envs import worker
from understudy.envs.env_changes import EnvChanges
from understudy.envs.fault_guard import Report
from understudy.envs.rows import EnvRows
from understudy.envs.step_arrays import StepArrays
from understudy.errors import EnvironmentError
from understudy.observation_packing import Packer

_CLOSE_SECONDS = 5.0  # that a worker has to close its environments before it is killed
MOST_POLLS = 300  # about half a millisecond
_EXIT_SECONDS = 1.0  # between a closed pipe and the exit code


class WorkerLost(EnvironmentError):
    """A worker process ended without a Python error of its own, or hung."""


@final
class WorkerPool:
    """Processes that step environments. Separate from the `ProcessEnvs` that owns it, so that a
    finalizer can close it after its owner has been deleted."""

    def __init__(self, spans: list[tuple[int, int]]):
        """Worker `i` has the rows from `start` to `stop - 1`, where `spans[i]` is (start, stop)."""
        self.spans = spans
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        self._files: list[int] = []  # of the pipes; -1 where a worker is lost
        self._polls: dict[range, Any] = {}  # of groups of workers, made on first use
        self.polls_first = False
        """Whether `wait` polls before it sleeps: waking up takes longer than a cheap step. Only
        where nothing else could use the core."""
        self.memory: SharedMemory | None = None
        self._payloads: list[bytes] = []  # for each worker
        self._shared: Any = None  # where the memory is and how it is laid out
        self._changes: EnvChanges | None = None

    def start(self, blocks: Sequence[Callable[[], EnvRows]]) -> list[tuple[Any, Any]]:
        """Start all workers, each with the block of environments that its callable makes; returns
        the observation and action space of each environment."""
        for index, block in enumerate(blocks):
            self._payloads.append(cloudpickle.dumps(block))
            process, pipe = self._launch(index)
            self.processes.append(process)
            self.pipes.append(pipe)
            self._files.append(pipe.fileno() if worker.FILES else -1)
        return [spaces for index in range(len(self.pipes)) for spaces in self._receive(index)]

    def share(self, packer: Packer, layout: np.dtype) -> StepArrays:
        """Give all workers one block of memory; returns its arrays."""
        self.memory = SharedMemory(create=True, size=layout.itemsize)
        self._shared = (self.memory.name, packer, layout)
        for index in range(len(self.pipes)):
            self.send(index, worker.SHARE, self._shared)
        return StepArrays.over(self.memory.buf, layout)

    def send(self, index: int, command: bytes, content: Any = None) -> None:
        """Send a command to a worker, and what follows it."""
        with suppress(OSError):  # the worker is lost: reading its answer will say so
            worker.write_byte(self.pipes[index], command, worker.FILES)
            if content is not None:
                self.pipes[index].send(content)

    def command(self, workers: range, command: bytes) -> None:
        """Send a command that nothing follows to several workers."""
        for index in workers:
            if worker.FILES:  # directly: this happens several times per step
                with suppress(OSError):  # as in `send`
                    os.write(self._files[index], command)
            else:
                self.send(index, command)

    def wait(self, workers: range, timeout: float) -> Iterator[tuple[int, Report | WorkerLost]]:
        """Wait for the answers of workers. Yields, as soon as it is known, which worker has
        something to report or was lost; plain successes are not reported."""
        waiting = {self._key(index): index for index in workers}
        poll = self._poll(workers) if worker.FILES else None
        deadline = time.monotonic() + timeout
        while waiting:
            left = max(0.0, deadline - time.monotonic())
            if poll:
                ready = [file for file, _ in self._wait_for_some(poll, left)]
            else:
                answered: Any = wait_for([self.pipes[index] for index in waiting.values()], left)
                ready = [id(pipe) for pipe in answered]
            for key in ready or list(waiting):
                index = waiting.pop(key, None)
                if index is None:  # it has answered and ended since: the next command notices
                    assert poll is not None  # other pipes are not waited for
                    poll.unregister(key)
                    self._polls.pop(workers, None)
                    continue
                try:
                    result = self._receive(index, None if ready else 0.0)
                except WorkerLost as lost:
                    if poll:
                        poll.unregister(key)
                    result = lost
                if result is not None:
                    yield index, result

    def _wait_for_some(self, poll: Any, left: float) -> list[tuple[int, int]]:
        for _ in range(MOST_POLLS if self.polls_first else 0):
            if ready := poll.poll(0):
                return ready
        return poll.poll(1_000 * left)

    def _key(self, index: int) -> int:
        return self._files[index] if worker.FILES else id(self.pipes[index])

    def _poll(self, workers: range) -> Any:
        """The poll object of a group of workers. A pipe whose answer was read is not ready, unless
        its worker has ended."""
        if workers not in self._polls:
            poll: Any = select.poll()
            for index in workers:
                poll.register(self._files[index], select.POLLIN)
            self._polls[workers] = poll
        return self._polls[workers]

    def replace(self, index: int, replayed: Any, timeout: float) -> Report | None:
        """Start a new worker in the place of a lost one and bring it to some episodes; returns its
        report, if there is one."""
        self.processes[index].close()
        self.processes[index], self.pipes[index] = self._launch(index)
        self._files[index] = self.pipes[index].fileno() if worker.FILES else -1
        self._receive(index)
        self.send(index, worker.SHARE, self._shared)
        if self._changes is not None:
            self.send(index, worker.CHANGES, self._changes)
        self.send(index, worker.REPLAY, replayed)
        return self._receive(index, timeout)

    def use_changes(self, changes: EnvChanges) -> None:
        """Let all workers, also later ones, apply these changes at resets."""
        self._changes = changes
        for index in range(len(self.pipes)):
            self.send(index, worker.CHANGES, changes)

    def inspect(self, kind: str, name: str, timeout: float) -> list[Any]:
        """Check an attribute of all environments; return its values if they are asked for."""
        for index in range(len(self.pipes)):
            self.send(index, worker.INSPECT, (kind, name))
        answers = [self._receive(index, timeout) for index in range(len(self.pipes))]
        for answer in answers:
            if isinstance(answer, EnvironmentError):
                raise answer
        return [value for answer in answers for value in answer]

    def close(self) -> None:
        for pipe in self.pipes:
            with pipe, suppress(OSError):  # the worker may have ended already
                worker.write_byte(pipe, worker.CLOSE, worker.FILES)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for process in self.processes:
            _end(process, max(0.0, deadline - time.monotonic()))
            process.close()
        self.pipes, self.processes, self._files, self._polls = [], [], [], {}
        if self.memory is not None:
            self.memory.close()
            self.memory.unlink()
            self.memory = None

    def _launch(self, index: int) -> tuple[BaseProcess, Connection]:
        method = "forkserver"
        if method not in multiprocessing.get_all_start_methods():
            method = "spawn"
        context: Any = multiprocessing.get_context(method)
        start, stop = self.spans[index]
        ours, theirs = context.Pipe()
        # Not daemons, which may not have children of their own: an environment may. They end
        # with their pipe, however their parent ends.
        process = context.Process(
            target=worker.main,
            args=(theirs, self._payloads[index], worker.FILES),
            name=f"understudy-envs-{start}-{stop - 1}",
        )
        try:
            with _without_main_script():
                process.start()
        except OSError as error:
            if "AF_UNIX" not in str(error):
                raise
            raise EnvironmentError(
                f"the path of the temporary directory, {tempfile.gettempdir()}, is too long for "
                "the sockets of worker processes: set TMPDIR to a shorter one, such as /tmp"
            ) from error
        theirs.close()  # only the worker has it now: its end is noticed as a closed pipe
        return process, ours

    def _receive(self, index: int, timeout: float | None = None) -> Any:
        """Return a worker's answer, which is None after a plain success."""
        pipe = self.pipes[index]
        try:
            if timeout is not None and not pipe.poll(timeout):
                raise self._lose(index, hung=True)
            file = self._files[index]
            answer = os.read(file, 1) if worker.FILES else worker.read_byte(pipe, False)
            if answer == worker.DONE:
                return None
            content = pipe.recv()  # from our own worker; raises EOFError if it has ended
        except (EOFError, OSError) as error:
            raise self._lose(index) from error
        if answer == worker.ERROR:
            message, trace = content
            raise EnvironmentError(f"{message}\n\nIn the worker:\n{trace}")
        return content

    def _lose(self, index: int, hung: bool = False) -> WorkerLost:
        """Make sure that a lost worker no longer writes anything; the error says how it ended."""
        process, (start, stop) = self.processes[index], self.spans[index]
        self.pipes[index].close()
        self._files[index] = -1
        self._polls.clear()
        _end(process, 0.0 if hung else _EXIT_SECONDS)
        subject = f"the worker process of environments {start} to {stop - 1}"
        if hung:
            return WorkerLost(f"{subject} gave no answer in time (step_timeout) and was killed")
        code = process.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"
        return WorkerLost(
            f"{subject} ended {how}, without a Python error: it was killed, crashed, or ran out of "
            "memory"
        )


def _end(process: BaseProcess, seconds: float) -> None:
    """Kill a process that does not end by itself in time."""
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()


@contextmanager
def _without_main_script() -> Any:
    """Start a process without the user's script.

    multiprocessing would import the main script again in each worker: JAX with it, and, in a
    script without the `if __name__ == "__main__"` guard, the whole training. Workers need
    nothing of it, because cloudpickle sends what is defined there by value.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
