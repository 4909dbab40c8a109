"""The program of an environment worker.

This file must stay free of JAX (and of everything that imports it, such as `understudy.types`):
a worker starts in a fraction of a second and holds only its simulators.

The parent sends commands of one byte, some with an object after them; a worker answers each in the
same way. Single bytes are read and written directly, which takes a third of the time of
`Connection.send_bytes`.
"""

import os
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
from understudy.envs.rows import EnvRows, StepArrays

# Commands.
SHARE = b"m"  # with the name of the shared memory, the Packer and the layout; not answered
REPLAY = b"r"  # with episode numbers and the real actions of each row
STEP = b"s"
STEP_CHOSEN = b"o"  # only the rows that the shared memory marks
INFOS = b"i"  # asks for those of open episodes
CLOSE = b"c"
# Answers.
DONE = b"d"
RESULT = b"v"  # with an object
ERROR = b"e"  # with a message and a traceback; the worker ends


def main(pipe: Connection, payload: bytes) -> None:
    """Build environments, connect to the shared memory, then serve commands until CLOSE.

    `payload` is a pickled callable that makes the worker's EnvRows. A worker ends by itself when
    its parent has ended, because then the pipe is closed.
    """
    # Signals to a whole group of processes are the parent's to interpret; a worker ends with it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    rows, memory = None, None
    try:
        rows = cloudpickle.loads(payload)()
        _answer(pipe, RESULT, rows.spaces)
        if os.read(pipe.fileno(), 1) == SHARE:
            name, packer, layout = pipe.recv()
            rows.set_packer(packer)
            memory = SharedMemory(name)
            _serve(pipe, rows, memory.buf, layout)
    except (EOFError, BrokenPipeError):
        pass
    except Exception as error:
        with suppress(OSError):  # the parent may have ended
            _answer(pipe, ERROR, (str(error), traceback.format_exc()))
    finally:
        if rows is not None:
            rows.close()
        if memory is not None:
            memory.close()


def _answer(pipe: Connection, kind: bytes, content: Any) -> None:
    data = ForkingPickler.dumps(content)  # before anything is sent: it may raise
    os.write(pipe.fileno(), kind)
    pipe.send_bytes(data)


def _serve(pipe: Connection, rows: EnvRows, buffer: Any, layout: np.dtype) -> None:
    """Serve commands until CLOSE. The views of `buffer` end with this frame, so that it can be
    closed."""
    own = slice(rows.first_row, rows.first_row + len(rows.environments))
    arrays = StepArrays.over(buffer, layout).select(own)
    file = pipe.fileno()
    while (command := os.read(file, 1)) not in (CLOSE, b""):
        if command == REPLAY:
            episodes, actions = pipe.recv()
            rows.replay(episodes, actions, arrays.observation)
        elif command != INFOS:
            chosen = arrays.chosen.copy() if command == STEP_CHOSEN else None
            rows.step(arrays, arrays.action, chosen)
        report = Report([], rows.infos.read_open()) if command == INFOS else rows.take_report()
        if report is None:
            os.write(file, DONE)
        else:
            _answer(pipe, RESULT, report)
