"""Kills a process that saves checkpoints, at random instants, and looks at what is left.

Run as a script, without JAX: `kill_loop.py DIRECTORY TIMES`. After every kill the newest good
checkpoint must be the last one whose saving was reported, or the one that was being saved.
"""

import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

import numpy as np

from understudy.runs import checkpoint

assert "jax" not in sys.modules


def save_for_ever(run: Path, first: int, reports: int) -> None:
    for steps in range(first, first + 10**9):
        ring = np.full(20_000, steps, np.int64)
        groups = {"learner": {"w": ring[:100].astype(np.float32)}, "world": {"ring": ring}}
        checkpoint.write(checkpoint.place_of(run, steps), groups, {"steps": steps})
        checkpoint.write(run / "best", groups, {"steps": steps})  # replaced in its place
        checkpoint.prune(run, keep=2)
        os.write(reports, struct.pack("q", steps))


def last_report(reports: int) -> int | None:
    data = b""
    while chunk := os.read(reports, 1 << 16):
        data += chunk
    return struct.unpack("q", data[-8:])[0] if data else None


def kill_once(run: Path, before: dict[str, int]) -> dict[str, int]:
    """Gives the newest step that could be read back, of the run and of its `best`."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        save_for_ever(run, before["."] + 1, theirs)
    os.close(theirs)
    time.sleep(random.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    reported = last_report(ours)
    os.close(ours)
    after = {}
    for name, known in before.items():
        expected, place = known if reported is None else reported, run / name
        if expected == 0 and not checkpoint.candidates(place):
            after[name] = 0  # killed before the first one of all
            continue
        stored = checkpoint.read_newest(place)
        after[name] = steps = stored.manifest["steps"]
        assert expected <= steps <= (before["."] if reported is None else reported) + 1
        assert (stored.groups["world"]["ring"] == steps).all()
    checkpoint.tidy(run)
    left = list(run.rglob("*.tmp"))
    assert not left, left
    return after


def main() -> None:
    run, times = Path(sys.argv[1]), int(sys.argv[2])
    random.seed(0)
    newest = {".": 0, "best": 0}
    for _ in range(times):
        newest = kill_once(run, newest)
    assert newest["."] > times, "it was killed too early to have saved anything"
    print(f"{times} of {times} restarts loaded; {newest['.']} checkpoints were written")


main()
