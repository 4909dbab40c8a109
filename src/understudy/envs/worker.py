"""The life of an environment worker, and the memory it shares with its parent.

This file must stay free of JAX (and of everything that imports it, such as `understudy.types`):
a worker starts in a fraction of a second and holds only its simulators.
"""

import logging
import os
import signal
import struct
import traceback
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np

from understudy.envs.fault_guard import Guard
from understudy.envs.rows import Board, EnvRows
from understudy.envs.seeds import EpisodeSeeds
from understudy.observation_packing import Packer

_log = logging.getLogger("understudy.envs")


def make_quietly(spec: Any) -> gymnasium.Env:
    """`gymnasium.make`, whose warnings go to the log: an old version of an environment is the
    user's choice and must not end a run in which warnings are errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Our own checks replace Gymnasium's, which cost a wrapper on the hot path.
        env = gymnasium.make(spec, disable_env_checker=True)
    for warning in caught:
        _log.info("gymnasium: %s", warning.message)
    return env


class Layout(NamedTuple):
    """Where things lie in the shared memory of all workers, for `rows` environments."""

    rows: int
    seen: Packer
    action_shape: tuple[int, ...]
    action_dtype: str
    descriptor_size: int  # 0: none was asked for


def _parts(layout: Layout) -> list[tuple[tuple[int, ...], np.dtype]]:
    observation = ((layout.rows, *layout.seen.shape), layout.seen.dtype)
    action = ((layout.rows, *layout.action_shape), np.dtype(layout.action_dtype))
    flag = ((layout.rows,), np.dtype(np.bool_))
    number = np.dtype(np.float32)
    parts = [action, ((layout.rows,), number), flag, flag, observation, observation]
    described = [((layout.rows, layout.descriptor_size), number)]
    return parts + described if layout.descriptor_size else parts


def _padded(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Bytes, rounded up to a cache line."""
    return -(-int(np.prod(shape)) * dtype.itemsize // 64) * 64


def board_size(layout: Layout) -> int:
    return max(1, sum(_padded(*part) for part in _parts(layout)))


def board_on(buffer: Any, layout: Layout) -> Board:
    """Lay the arrays out over a block of memory."""
    arrays, offset = [], 0
    for shape, dtype in _parts(layout):
        arrays.append(np.ndarray(shape, dtype, buffer, offset))
        offset += _padded(shape, dtype)
    return Board(*arrays)


STEP, RESET, CLOSE, DONE = b"s", b"r", b"c", b"d"


def framed(message: bytes) -> bytes:
    """A short message as `Connection.send_bytes` writes it: its length, then itself. Written and
    read directly it takes a third of the time."""
    return struct.pack("!i", len(message)) + message


FRAMED_DONE = framed(DONE)
SOME = b"o"  # followed by a flag for each row of the worker: step only these


def main(
    pipe: Connection, payload: bytes, seeds: EpisodeSeeds, first_row: int, guard: Guard
) -> None:
    """The whole life of a worker: build, agree on memory, then obey until told to close.

    It ends by itself when the parent is gone, because then the pipe is closed.
    """
    # Signals to a whole group of processes are the parent's to interpret; a worker ends with it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    rows, memory = None, None
    try:
        factories, descriptor = cloudpickle.loads(payload)
        rows = EnvRows(factories, seeds, first_row, guard, descriptor=descriptor)
        pipe.send([(env.observation_space, env.action_space) for env in rows.environments])
        agreed = pipe.recv_bytes()
        if agreed != CLOSE:
            name, layout = cloudpickle.loads(agreed)
            memory = SharedMemory(name)
            _obey(pipe, rows, memory.buf, layout)
    except (EOFError, BrokenPipeError):
        pass
    except Exception as error:
        with suppress(OSError):  # nobody listens any more
            pipe.send((getattr(error, "row", first_row), str(error), traceback.format_exc()))
    finally:
        if rows is not None:
            rows.close()
        if memory is not None:
            memory.close()


def _obey(pipe: Connection, rows: EnvRows, buffer: Any, layout: Layout) -> None:
    """Commands until CLOSE. The views of `buffer` die with this frame, so it can be closed."""
    mine = slice(rows.first_row, rows.first_row + len(rows.environments))
    board = board_on(buffer, layout).of(mine)
    rows.expect(layout.seen)
    pipe.send_bytes(DONE)
    while (command := pipe.recv_bytes()) != CLOSE:
        if command == STEP or command[:1] == SOME:
            only = None if command == STEP else np.frombuffer(command, np.bool_, offset=1)
            # A copy: nothing that may outlive this frame must be a view of the memory.
            for index in rows.step(board._replace(action=board.action.copy()), only):
                rows.reset_one(index, board.observation)
        elif command == RESET:
            rows.reset(board.observation)
        else:
            episodes, actions = cloudpickle.loads(command)
            rows.replay(episodes, actions, board.observation)
        if rows.faults:
            pipe.send(rows.take_faults())
        else:
            os.write(pipe.fileno(), FRAMED_DONE)
