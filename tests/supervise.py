"""Run a command so that nothing of it is left behind: no process and no temporary file.

    python tests/supervise.py COMMAND [ARGUMENT …]

`make test` and its siblings run pytest through this script. All temporary files of the command go
to a directory of its own. When the command ends, fails, crashes or is interrupted, every process
that it has started is ended: Ray, environment workers, nested test runs, also those which have left
their process group or lost their parent. The exit code is that of the command.

The script needs Linux to find processes that lost their parent; elsewhere it ends the process
group only.
"""

import contextlib
import ctypes
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GRACE = 5.0  # seconds that an interrupted command has to end by itself
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Processes below this one, zombies excluded."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry.name))
    found, new = [], [os.getpid()]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found


def end_all() -> None:
    """Kill every descendant; repeat until none is left, because they may start others."""
    while left := descendants():
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
        reap(0)


def run(command: list[str], environment: dict[str, str]) -> int:
    """The command's exit code; 128 + the signal's number if this script was told to stop."""
    process, stopped = subprocess.Popen(command, env=environment), []

    def stop(number: int, _: object) -> None:
        if stopped:  # asked twice: at once
            os.kill(process.pid, signal.SIGKILL)
        stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    deadline = math.inf
    while (code := reap(process.pid)) is None:
        time.sleep(0.1)
        if stopped and deadline == math.inf:
            deadline = time.monotonic() + GRACE
            if stopped[0] != signal.SIGINT:  # that one a terminal sends to the whole group
                os.kill(process.pid, signal.SIGINT)
        if time.monotonic() > deadline:
            os.kill(process.pid, signal.SIGKILL)
    return 128 + stopped[0] if stopped else code


def reap(awaited: int) -> int | None:
    """Take leave of every child that has ended, adopted ones included; the exit code of the one
    awaited, once it has ended."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == awaited:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def main() -> int:
    adopt_orphans()
    directory = Path(tempfile.mkdtemp(prefix="us-"))  # short: Ray's sockets lie below it
    places = {"TMPDIR": str(directory), "RAY_TMPDIR": str(directory)}
    code = 1
    try:
        code = run(sys.argv[1:], os.environ | places)
    finally:
        end_all()
        if code == 1:  # a test has failed
            print(f"temporary files of this run: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
