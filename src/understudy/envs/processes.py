"""Gymnasium environments in worker processes, exchanging steps through shared memory.

Workers start by forkserver and never import JAX. (Python's own forkserver and resource tracker
stay, idle, until the program ends; they serve every later start.)
"""

import itertools
import multiprocessing
import os
import sys
import time
import types
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.util import Finalize
from typing import Any, final

import cloudpickle
import gymnasium
import numpy as np

from understudy.envs import worker
from understudy.envs.base import HostEnvs, HostStep
from understudy.envs.seeds import EpisodeSeeds
from understudy.envs.serial import require_same
from understudy.envs.spaces import Border, spec_of
from understudy.types import Continuous, Discrete, EnvironmentError, Spec

_PATIENCE = 5.0  # seconds a worker has to close its environments before it is ended


@final
class ProcessEnvs(HostEnvs):
    """Many environments in several processes; the same results as `SerialEnvs`, bit for bit.

    Any fault of a worker closes the whole group and becomes one EnvironmentError that names the
    environment. (`HostStep` arrays alias each other as in `SerialEnvs`.)
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], gymnasium.Env]],
        seeds: EpisodeSeeds,
        num_workers: int | None = None,
    ):
        """`num_workers` defaults to one per core, and never exceeds the environments."""
        if not factories:
            raise EnvironmentError("at least one environment is needed, got 0")
        self.num_envs = len(factories)
        workers = max(1, min(num_workers or os.cpu_count() or 1, self.num_envs))
        # As even as possible: the slowest worker sets the pace.
        edges = [self.num_envs * index // workers for index in range(workers + 1)]
        self._group = _Group(edges)
        # Also when the owner forgets to. At the program's end it must run before multiprocessing
        # waits for its children, which only this finaliser of its own guarantees.
        self._board: worker.Board | None = None
        self._finalizer = Finalize(self, self._group.close, exitpriority=10)
        try:
            self._group.start(factories, seeds)
            self.spec = self._agree_on_spec()
            layout = _layout(self.spec, self.num_envs)
            self._board = self._group.share(layout)
        except BaseException:
            self.close()
            raise
        self._border = Border(self.spec.action)
        self._episodes = np.full(self.num_envs, -1, np.int64)
        self._valid = np.ones(self.num_envs, np.bool_)
        self._valid.flags.writeable = False

    @property
    def episodes(self) -> np.ndarray:
        """[M] the number of each environment's open episode; -1 before the first reset."""
        return self._episodes.copy()

    @property
    def processes(self) -> list[BaseProcess]:
        """The running workers."""
        return list(self._group.processes)

    def reset(self) -> np.ndarray:
        board = self._command([worker.RESET] * len(self._group.pipes))
        self._episodes += 1
        return board.observation.copy()

    def restart(self) -> np.ndarray:
        no_actions = np.empty((0, *self._open_board().action.shape[1:]), np.float32)
        return self.replay(np.zeros(self.num_envs, np.int64), [no_actions] * self.num_envs)

    def step(self, action: np.ndarray) -> HostStep:
        real = self._border.to_real(action)
        board = self._open_board()
        if real.shape != board.action.shape:
            raise EnvironmentError(
                f"expected actions for {self.num_envs} environments, got {len(real)}"
            )
        board.action[...] = real
        self._command([worker.STEP] * len(self._group.pipes))
        last = board.last.copy()
        following = board.next_observation.copy()
        observation = following
        if last.any():
            self._episodes += last
            observation = following.copy()
            observation[last] = board.observation[last]
        return HostStep(
            board.reward.copy(), board.terminated.copy(), last, following, observation, self._valid
        )

    def replay(self, episodes: np.ndarray, actions: Sequence[np.ndarray]) -> np.ndarray:
        """Return to the middle of open episodes: `episodes` [M] are their numbers, `actions[i]`
        [steps, ...] what was done (normalised) since their resets. Gives observations [M, ...]."""
        episodes = np.asarray(episodes)
        real = [self._border.to_real(np.asarray(past)) for past in actions]
        parts = [
            cloudpickle.dumps((episodes[start:stop], real[start:stop]))
            for start, stop in self._group.spans
        ]
        board = self._command(parts)
        self._episodes[:] = episodes
        return board.observation.copy()

    def close(self) -> None:
        self._board = None  # views of the shared memory must be gone before it can be closed
        self._finalizer()

    def _agree_on_spec(self) -> Spec:
        spaces = [pair for reply in self._group.replies() for pair in reply]
        specs = [spec_of(*pair) for pair in spaces]
        for row, spec in enumerate(specs):
            require_same(row, spec, specs[0])
        return specs[0]

    def _open_board(self) -> worker.Board:
        if self._board is None:
            raise EnvironmentError("these environments are closed")
        return self._board

    def _command(self, commands: list[bytes]) -> worker.Board:
        """Tell every worker, wait for all, and give the board they have written on."""
        board = self._open_board()
        try:
            self._group.command(commands)
        except BaseException:
            self.close()
            raise
        return board


@final
class _Group:
    """The processes, pipes and memory of one `ProcessEnvs`; knows nothing of environments.

    Separate from its owner so that a finaliser can close it after the owner is gone.
    """

    def __init__(self, edges: list[int]):
        self.spans = list(itertools.pairwise(edges))
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        self._memory: SharedMemory | None = None

    def start(self, factories: Sequence[Callable[[], Any]], seeds: EpisodeSeeds) -> None:
        context = multiprocessing.get_context("forkserver")
        for start, stop in self.spans:
            ours, theirs = context.Pipe()
            payload = cloudpickle.dumps(list(factories[start:stop]))
            # Not daemons, which may not have children of their own: an environment may. They
            # end with their pipe, however their parent ends.
            process = context.Process(
                target=worker.main,
                args=(theirs, payload, seeds, start),
                name=f"understudy-envs-{start}-{stop - 1}",
            )
            with _hidden_main():
                process.start()
            theirs.close()  # ours alone is left: a dead worker is noticed as a closed pipe
            self.processes.append(process)
            self.pipes.append(ours)

    def share(self, layout: worker.Layout) -> worker.Board:
        self._memory = SharedMemory(create=True, size=worker.board_size(layout))
        self.command([cloudpickle.dumps((self._memory.name, layout))] * len(self.pipes))
        return worker.board_on(self._memory.buf, layout)

    def command(self, commands: list[bytes]) -> None:
        for index, pipe in enumerate(self.pipes):
            try:
                pipe.send_bytes(commands[index])
            except OSError as error:
                self._receive(index)  # it may have said why before it went
                raise self._died(index) from error
        self._expect_done()

    def replies(self) -> list[list[Any]]:
        """One pickled list from every worker."""
        return [self._receive(index) for index in range(len(self.pipes))]

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
        if self._memory is not None:
            self._memory.close()
            self._memory.unlink()
            self._memory = None

    def _expect_done(self) -> None:
        for index, pipe in enumerate(self.pipes):
            try:
                reply = pipe.recv_bytes()
            except (EOFError, OSError) as error:
                raise self._died(index) from error
            if reply != worker.DONE:
                raise _told(_read_reply(reply))

    def _receive(self, index: int) -> Any:
        try:
            reply = self.pipes[index].recv()
        except (EOFError, OSError) as error:
            raise self._died(index) from error
        if isinstance(reply, tuple):
            raise _told(reply)
        return reply

    def _died(self, index: int) -> EnvironmentError:
        process, (start, stop) = self.processes[index], self.spans[index]
        process.join(1.0)
        code = process.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"
        return EnvironmentError(
            f"the worker process of environments {start} to {stop - 1} ended {how}, without a "
            "Python error: it was killed, crashed, or ran out of memory"
        )


def _read_reply(data: bytes) -> tuple[int, str, str]:
    """What our own worker sent through its pipe."""
    return ForkingPickler.loads(data)  # type: ignore[attr-defined]


def _told(reply: tuple[int, str, str]) -> EnvironmentError:
    """What a worker reported as its last word."""
    _, message, trace = reply
    return EnvironmentError(f"{message}\n\nIn the worker:\n{trace}")


def _layout(spec: Spec, rows: int) -> worker.Layout:
    continuous = isinstance(spec.action, Continuous)
    shape = () if isinstance(spec.action, Discrete) else spec.action.shape
    action = (shape, "float32" if continuous else "int64")
    return worker.Layout(rows, spec.observation.shape, spec.observation.dtype, *action)


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
