"""The command `understudy`. A mistake of the user's gives one line and exit code 2."""

import atexit
import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

from understudy.cli.parsing import ON_INTERRUPT, Parser, fail
from understudy.errors import UnderstudyError

# Name -> its arguments and its purpose in the overview. The module of that name in this package has
# USAGE, `add_flags(parser, arguments)` and `run(options)`; its docstring is the description in its
# help. It is imported when needed, because JAX takes a second to import.
COMMANDS = {
    "train": ("[ALGO] [ENV] …", "train an agent (by default SAC on Pendulum-v1)"),
    "illuminate": ("[METHOD] [ENV] …", "find the best policy of every kind"),
    "resume": ("RUN", "continue a run that was interrupted"),
    "eval": ("RUN", "play a trained agent: its returns, or a video"),
    "plot": ("RUN…", "draw the learning curves of one or several runs"),
    "report": ("RUN", "write a run as one HTML page"),
    "export": ("RUN policy.onnx", "write the policy alone as one file"),
    "sweep": ("ALGO ENV --vary …", "train with many settings and rank them"),
    "doctor": ("", "show versions, devices, precision, cache and extras"),
    "list": ("[envs|presets|recipes]", "list algorithms, environments, presets or recipes"),
}
MODULES = {"eval": "evaluate", "list": "listing"}  # with another name, because Python uses theirs

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
    if os.getcwd() not in sys.path:
        # An environment "my_module:MyEnv-v0" may lie here. As the last place it hides no package.
        sys.path.append(os.getcwd())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not every encoding has ε; help texts have it
            stream.reconfigure(errors="replace")
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
            command = _find(name)
            parser = Parser(command.USAGE, command.__doc__)
            command.add_flags(parser, rest)
            command.run(parser.parse(rest))
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


def _find(name: str) -> Any:
    if name not in COMMANDS:
        from understudy.algorithms.config import nearest

        known = ", ".join(COMMANDS)
        fail(f"unknown command '{name}'{nearest(name, COMMANDS)}; there are: {known}")
    return importlib.import_module(f"{__name__}.{MODULES.get(name, name)}")


def _overview() -> str:
    commands = "\n".join(
        f"  understudy {f'{name} {usage}':27} {purpose}"
        for name, (usage, purpose) in COMMANDS.items()
    )
    return f"""Understudy: actor-critic reinforcement learning on one JAX engine.

{commands}

{EXAMPLES}

Each command explains its flags with --help."""
