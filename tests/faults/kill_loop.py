"""Kills a process that saves checkpoints, at chosen instants, and looks at what is left.

Run as a script, without JAX: `kill_loop.py DIRECTORY TIMES`. The process kills itself when it comes
to the n-th line of code of a save: one checkpoint is written, another replaced, an old one pruned.
The n are spread evenly over all lines, so that nothing depends on the speed of the machine. After
every kill the newest good checkpoint must be the one from before, or the one that was being saved.
"""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

from understudy.runs import checkpoint

assert "jax" not in sys.modules

FILES = {module.__file__ for module in (checkpoint, shutil, tempfile)}


def save(run: Path, steps: int) -> None:
    ring = np.full(20_000, steps, np.int64)
    groups = {"learner": {"w": ring[:100].astype(np.float32)}, "world": {"ring": ring}}
    checkpoint.write(checkpoint.place_of(run, steps), groups, {"steps": steps})
    checkpoint.write(run / "best", groups, {"steps": steps})  # replaced in its place
    checkpoint.prune(run, keep=2)


def save_and_die(run: Path, steps: int, line: int) -> None:
    """Save, and kill this process at that line of it, counted from 1."""
    left = line

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    save(run, steps)


def kill_at(run: Path, steps: int, line: int) -> bool:
    """In a process of its own; whether it was killed, rather than finished."""
    child = os.fork()
    if child == 0:
        save_and_die(run, steps, line)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
    return os.WIFSIGNALED(status)


def lines_of_a_save(run: Path) -> int:
    """Of one that has a checkpoint to prune."""
    for steps in (1, 2):
        save(run, steps)
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line" and frame.f_code.co_filename in FILES
        return trace if frame.f_code.co_filename in FILES else None

    sys.settrace(trace)
    save(run, 3)
    sys.settrace(None)
    return count


def found(place: Path) -> int:
    """The step of the newest good checkpoint; 0 if none was ever written."""
    if not checkpoint.candidates(place):
        return 0
    stored = checkpoint.read_newest(place)
    steps = stored.manifest["steps"]
    assert (stored.groups["world"]["ring"] == steps).all()
    return steps


def main() -> None:
    directory, times = Path(sys.argv[1]), int(sys.argv[2])
    lines, run, newest, best = lines_of_a_save(directory / "whole"), directory / "run", 0, 0
    for number in range(times):
        before = newest, best
        assert kill_at(run, newest + 1, 1 + number * lines // times), "it finished"
        newest, best = found(run), found(run / "best")
        assert before[0] <= newest <= before[0] + 1, (before, newest)
        assert best in (before[1], before[0] + 1), (before, best)
        checkpoint.tidy(run)
        assert not list(run.rglob("*.tmp"))
    assert newest > times // 4 and best > times // 4, "most kills came before anything was saved"
    print(f"{times} of {times} restarts loaded; {newest} checkpoints were written")


main()
