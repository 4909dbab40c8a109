"""The program of an environment worker.

This file must stay free of JAX (and of everything that imports it, such as `understudy.types`):
a worker starts in a fraction of a second and holds only its simulators.

The parent sends commands of one byte, some with an object after them; a worker answers each in the
same way. Single bytes are read and written directly, which takes a third of the time of
`Connection.send_bytes`. Pipes of Windows have no file descriptors; there bytes are messages.
"""

import os
import select
import signal
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import cloudpickle
import numpy as np

from understudy.envs.fault_guard import Report
from understudy.envs.rows import EnvRows
from understudy.envs.step_arrays import StepArrays
from understudy.errors import EnvironmentError

# Commands.
SHARE = b"m"  # with the name of the shared memory, the Packer and the layout; not answered
REPLAY = b"r"  # with episode numbers, and the real actions and the number of changes of each row
STEP = b"s"
CHANGES = b"h"  # with the EnvChanges that resets apply; not answered
INSPECT = b"q"  # with the kind of a change and a name; answered with values or an error
STEP_CHOSEN = b"o"  # only the rows that the shared memory marks
INFOS = b"i"  # asks for those of open episodes
CLOSE = b"c"
# Answers.
DONE = b"d"
RESULT = b"v"  # with an object
ERROR = b"e"  # with a message and a traceback; the worker ends

# Whether pipes are files. Windows has no `select.poll`.
FILES = hasattr(select, "poll")


def write_byte(pipe: Connection, byte: bytes, files: bool) -> None:
    if files:
        os.write(pipe.fileno(), byte)
    else:
        pipe.send_bytes(byte)


def read_byte(pipe: Connection, files: bool) -> bytes:
    """Read a byte. At the end of the pipe it is empty, or raises EOFError if pipes are no files."""
    return os.read(pipe.fileno(), 1) if files else pipe.recv_bytes()


def main(pipe: Connection, payload: bytes, files: bool = FILES) -> None:
    """Build environments, connect to the shared memory, then serve commands until CLOSE.

    `payload` is a pickled callable that makes the worker's EnvRows. `files` is the parent's FILES.
    A worker ends by itself when its parent has ended, because then the pipe is closed.
    """
    # Signals to a whole group of processes are the parent's to interpret; a worker ends with it.
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    rows, memory = None, None
    try:
        rows = cloudpickle.loads(payload)()
        _answer(pipe, RESULT, rows.spaces, files)
        if read_byte(pipe, files) == SHARE:
            name, packer, layout = pipe.recv()
            rows.set_packer(packer)
            memory = SharedMemory(name)
            _serve(pipe, rows, memory.buf, layout, files)
    except (EOFError, BrokenPipeError):
        pass
    except Exception as error:
        with suppress(OSError):  # the parent may have ended
            _answer(pipe, ERROR, (str(error), traceback.format_exc()), files)
    finally:
        if rows is not None:
            rows.close()
        if memory is not None:
            memory.close()


def _answer(pipe: Connection, kind: bytes, content: Any, files: bool) -> None:
    data = ForkingPickler.dumps(content)  # before anything is sent: it may raise
    write_byte(pipe, kind, files)
    pipe.send_bytes(data)


def _serve(pipe: Connection, rows: EnvRows, buffer: Any, layout: np.dtype, files: bool) -> None:
    """Serve commands until CLOSE. The views of `buffer` end with this frame, so that it can be
    closed."""
    own = slice(rows.first_row, rows.first_row + len(rows.environments))
    arrays = StepArrays.over(buffer, layout).select(own)
    while (command := read_byte(pipe, files)) not in (CLOSE, b""):
        if command == CHANGES:
            rows.changes = pipe.recv()
            continue
        if command == INSPECT:
            _answer(pipe, RESULT, _inspect(rows, *pipe.recv()), files)
            continue
        if command == REPLAY:
            episodes, actions, until = pipe.recv()
            rows.replay(episodes, actions, arrays.observation, until)
        elif command != INFOS:
            chosen = arrays.chosen.copy() if command == STEP_CHOSEN else None
            rows.step(arrays, arrays.action, chosen)
        report = Report([], rows.infos.read_open()) if command == INFOS else rows.take_report()
        if report is None:
            write_byte(pipe, DONE, files)
        else:
            _answer(pipe, RESULT, report, files)


def _inspect(rows: EnvRows, kind: str, name: str) -> Any:
    """Return values, or the error as an object: it must not end the worker."""
    try:
        values = rows.inspect(kind, name)
        ForkingPickler.dumps(values)
        return values
    except EnvironmentError as error:
        return error
    except Exception as error:
        return EnvironmentError(f"{name!r} cannot be sent by a worker process: {error}")
