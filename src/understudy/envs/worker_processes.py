"""The worker processes of `ProcessEnvs`: their start, their pipes, their memory, their end.

Workers start by forkserver and never import JAX. (Python's own forkserver and resource tracker
stay, idle, until the program ends; they serve every later start.)
"""

import itertools
import multiprocessing
import os
import select
import struct
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple, final

import cloudpickle

from understudy.envs import worker
from understudy.envs.descriptors import Descriptor
from understudy.envs.fault_guard import Fault, Guard
from understudy.envs.rows import Board
from understudy.envs.seeds import EpisodeSeeds
from understudy.types import EnvironmentError

_PATIENCE = 5.0  # seconds a worker has to close its environments before it is ended
_DYING = 1.0  # seconds between a closed pipe and the exit code
LONGEST_FRAMED = 4_096  # bytes that a pipe takes at once


class Lost(Exception):
    """A worker process is gone, without a Python error of its own."""


class Waiting(NamedTuple):
    """Workers that were told something and have not answered yet."""

    workers: dict[int, int]  # by the file of their pipe
    lost: list[tuple[int, Lost]]
    poll: Any


@final
class Group:
    """Knows nothing of what the environments do. Separate from the `ProcessEnvs` that owns it,
    so that a finalizer can close it after the owner is gone."""

    def __init__(self, edges: list[int]):
        self.spans = list(itertools.pairwise(edges))
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        self.memory: SharedMemory | None = None
        self._arguments: list[tuple[Any, ...]] = []  # of each worker
        self._agreement = b""  # where the memory is and how it is laid out

    def start(
        self,
        factories: Sequence[Callable[[], Any]],
        seeds: EpisodeSeeds,
        guard: Guard,
        descriptor: Descriptor | None,
    ) -> list[list[Any]]:
        """Start all; gives the pairs of spaces of each worker's environments."""
        for index, (start, stop) in enumerate(self.spans):
            payload = cloudpickle.dumps((list(factories[start:stop]), descriptor))
            self._arguments.append((payload, seeds, start, guard))
            process, pipe = self._launch(index)
            self.processes.append(process)
            self.pipes.append(pipe)
        return [self._hear(index) for index in range(len(self.pipes))]

    def share(self, layout: worker.Layout) -> Board:
        self.memory = SharedMemory(create=True, size=worker.board_size(layout))
        self._agreement = cloudpickle.dumps((self.memory.name, layout))
        for index in range(len(self.pipes)):
            self._tell(index, self._agreement)
        for index in range(len(self.pipes)):
            self._hear(index)
        return worker.board_on(self.memory.buf, layout)

    def tell(self, commands: Sequence[bytes], first: int = 0) -> Waiting:
        """Tell each worker, from the `first` one on, one thing."""
        waiting = Waiting({}, [], select.poll())
        for index, command in enumerate(commands, first):
            try:
                self._tell(index, command)
            except Lost as end:
                waiting.lost.append((index, end))
                continue
            file = self.pipes[index].fileno()
            waiting.workers[file] = index
            waiting.poll.register(file, select.POLLIN)
        return waiting

    def wait(self, waiting: Waiting, timeout: float) -> Iterator[tuple[int, list[Fault] | Lost]]:
        """Wait for all that were told. Gives, as soon as it is known, what is more than a plain
        success: what a worker survived, or that it is lost."""
        yield from waiting.lost  # only now: the others are at work meanwhile
        workers, deadline = waiting.workers, time.monotonic() + timeout
        while workers:
            left = max(0.0, deadline - time.monotonic())
            ready = [file for file, _ in waiting.poll.poll(1_000 * left)]
            for file in ready or list(workers):
                index = workers.pop(file)
                waiting.poll.unregister(file)
                try:
                    survived = self._hear(index, None if ready else 0.0)
                except Lost as end:
                    yield index, end
                else:
                    if survived:
                        yield index, survived

    def replace(self, index: int, command: bytes, timeout: float) -> list[Fault]:
        """Put a new worker in the place of a lost one and tell it one thing; gives what it
        survived."""
        self.processes[index].close()
        self.processes[index], self.pipes[index] = self._launch(index)
        self._hear(index)
        self._tell(index, self._agreement)
        self._hear(index)
        self._tell(index, command)
        return self._hear(index, timeout)

    def close(self) -> None:
        for pipe in self.pipes:
            try:
                pipe.send_bytes(worker.CLOSE)
            except OSError:
                pass  # it is gone already
            finally:
                pipe.close()
        deadline = time.monotonic() + _PATIENCE
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self.pipes, self.processes = [], []
        if self.memory is not None:
            self.memory.close()
            self.memory.unlink()
            self.memory = None

    def _launch(self, index: int) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context("forkserver")
        start, stop = self.spans[index]
        ours, theirs = context.Pipe()
        # Not daemons, which may not have children of their own: an environment may. They end
        # with their pipe, however their parent ends.
        process = context.Process(
            target=worker.main,
            args=(theirs, *self._arguments[index]),
            name=f"understudy-envs-{start}-{stop - 1}",
        )
        with _hidden_main():
            process.start()
        theirs.close()  # ours alone is left: a dead worker is noticed as a closed pipe
        return process, ours

    def _tell(self, index: int, command: bytes) -> None:
        try:
            if len(command) <= LONGEST_FRAMED:
                os.write(self.pipes[index].fileno(), worker.framed(command))
            else:
                self.pipes[index].send_bytes(command)
        except OSError as error:
            raise self._bury(index) from error

    def _hear(self, index: int, timeout: float | None = None) -> list[Any]:
        """A worker's answer: nothing after a plain success. Its last words are an error."""
        pipe = self.pipes[index]
        try:
            if timeout is not None and not pipe.poll(timeout):
                raise self._bury(index, hung=True)
            answer = _receive(pipe)
        except (EOFError, OSError) as error:
            raise self._bury(index) from error
        if answer == worker.DONE:
            return []
        told = ForkingPickler.loads(answer)  # type: ignore[attr-defined]  # our own worker's
        if isinstance(told, tuple):
            _, message, trace = told
            raise EnvironmentError(f"{message}\n\nIn the worker:\n{trace}")
        return told

    def _bury(self, index: int, hung: bool = False) -> Lost:
        """Make sure that a lost worker writes nothing any more; says how it ended."""
        process, (start, stop) = self.processes[index], self.spans[index]
        self.pipes[index].close()
        process.join(0.0 if hung else _DYING)
        if process.is_alive():
            process.kill()
            process.join()
        whose = f"the worker process of environments {start} to {stop - 1}"
        if hung:
            return Lost(f"{whose} gave no answer in time (step_timeout) and was killed")
        code = process.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"
        return Lost(
            f"{whose} ended {how}, without a Python error: it was killed, crashed, or ran out of "
            "memory"
        )


def _receive(pipe: Connection) -> bytes:
    """A message as `Connection.recv_bytes` reads it; a plain success by one call."""
    data = part = os.read(pipe.fileno(), len(worker.FRAMED_DONE))
    if data == worker.FRAMED_DONE:
        return worker.DONE
    while part:
        wanted = 4 if len(data) < 4 else 4 + struct.unpack("!i", data[:4])[0]
        if 4 < wanted == len(data):
            return data[4:]
        part = os.read(pipe.fileno(), wanted - len(data))
        data += part
    raise EOFError


@contextmanager
def _hidden_main() -> Any:
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
