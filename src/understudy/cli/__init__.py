"""The command `understudy`. A mistake of the user's gives one line and exit code 2."""

import atexit
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import NamedTuple, NoReturn

from understudy.cli.parsing import ON_INTERRUPT, fail
from understudy.errors import UnderstudyError


class Command(NamedTuple):
    module: str
    """In this package, with a function `parser(arguments)`. It is imported when needed, because JAX
    takes a second to import."""
    usage: str
    purpose: str


COMMANDS = {
    "train": Command(
        "train", "train [ALGO] [ENV] …", "train an agent (by default SAC on Pendulum-v1)"
    ),
    "illuminate": Command(
        "illuminate", "illuminate [METHOD] [ENV] …", "find the best policy of every kind"
    ),
    "resume": Command("resume", "resume RUN", "continue a run that was interrupted"),
    "eval": Command("evaluate", "eval RUN", "play a trained agent: its returns, or a video"),
    "plot": Command("plot", "plot RUN…", "draw the learning curves of one or several runs"),
    "report": Command("report", "report RUN", "write a run as one HTML page"),
    "export": Command("export", "export RUN policy.onnx", "write the policy alone as one file"),
    "sweep": Command("sweep", "sweep ALGO ENV --vary …", "train with many settings and rank them"),
    "doctor": Command("doctor", "doctor", "show versions, devices, precision, cache and extras"),
    "list": Command("listing", "list [envs|presets]", "list algorithms, environments or presets"),
}

EXAMPLES = """\
  understudy train td3 HalfCheetah-v5 --steps 100000 --seeds 4 --run runs/cheetah
  understudy eval runs/cheetah --episodes 20 --json
  understudy train --config my.toml --gamma 0.98
  understudy illuminate pga-me Walker2d-v5 --evaluations 50000 --run runs/walkers
  understudy sweep sac Pendulum-v1 --vary learning_rate=1e-4..1e-2:log --members 16"""


def entry() -> None:
    """Run the command as a process of its own, which Ctrl-C ends at any moment.

    A KeyboardInterrupt during start-up may be swallowed inside JAX, and an interrupted compilation
    can crash the interpreter while it shuts down. The handler therefore runs the exit functions
    and ends the process directly. A run that has begun installs its own handlers."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup ignores SIGINT
        signal.signal(signal.SIGINT, _leave_now)
    try:
        main()
    except SystemExit as end:
        if end.code in (130, 143):
            _end(end.code)
        raise


def _leave_now(number: int, frame: FrameType | None) -> None:
    for undo in ON_INTERRUPT:
        with contextlib.suppress(Exception):
            undo()
    with contextlib.suppress(Exception):
        shown = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides the cursor
        print(f"{shown}understudy: interrupted", file=sys.stderr)
    _end(130)


def _end(code: int) -> NoReturn:
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command. Exit codes: 0, 2 for a mistake, 130 after Ctrl-C, 143 after SIGTERM."""
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    try:
        try:
            _run(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # a closed pipe is noticed here, not at the very end
    except BrokenPipeError:
        silence = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silence, stream)
        raise SystemExit(141) from None


def _run(arguments: list[str]) -> None:
    try:
        name, *rest = arguments or ["--help"]
        if name in ("-h", "--help"):
            print(_overview())
        elif name == "--version":
            from understudy import __version__

            print(f"understudy {__version__}")
        else:
            options = _find(name).parser(rest).parse(rest)
            options.command(options)
    except UnderstudyError as error:
        fail(str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        fail(f"{where}{error.strerror or error}")
    except KeyboardInterrupt:
        print("understudy: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _find(name: str) -> ModuleType:
    if name not in COMMANDS:
        from understudy.algorithms.config import nearest

        known = ", ".join(COMMANDS)
        fail(f"unknown command '{name}'{nearest(name, COMMANDS)}; there are: {known}")
    return importlib.import_module(f"{__name__}.{COMMANDS[name].module}")


def _overview() -> str:
    commands = "\n".join(
        f"  understudy {command.usage:27} {command.purpose}" for command in COMMANDS.values()
    )
    return f"""Understudy: actor-critic reinforcement learning on one JAX engine.

{commands}

{EXAMPLES}

Each command explains its flags with --help."""
