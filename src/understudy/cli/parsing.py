"""Parse arguments with argparse: errors of one line, and hints at the next command."""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, final

from understudy.aliases import explain

# Called if a command is interrupted before its run has begun.
ON_INTERRUPT: list[Callable[[], object]] = []


def fail(message: str) -> NoReturn:
    """Print one line to the error stream, and exit with code 2."""
    print(f"understudy: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


def hint(*commands: str) -> None:
    """Print the commands that make sense next."""
    print("next: " + " · ".join(f"understudy {command}" for command in commands))


def entry(name: str, value: object) -> str:
    """A line of two columns."""
    return f"{name:15} {value}"


def quoted(path: Path | str) -> str:
    """The path as a shell takes it."""
    return shlex.quote(str(path))


def show(value: Any) -> str:
    """The value of a setting as its flag takes it."""
    if isinstance(value, tuple):
        return ",".join(map(show, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@final
class Parser(argparse.ArgumentParser):
    """argparse with errors of one line that name the nearest flag."""

    def __init__(self, usage: str, about: str):
        """`usage` begins with the name of the command."""
        super().__init__(
            prog=f"understudy {usage.split()[0]}",
            usage=f"understudy {usage}",
            description=about,
            allow_abbrev=False,
            formatter_class=partial(
                argparse.RawDescriptionHelpFormatter, max_help_position=34, width=100
            ),
        )
        # argparse would take -0.5,0.3 and -1e3 for flags.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.refused: Mapping[str, str] = {}  # settings that do not exist here -> why

    def error(self, message: str) -> NoReturn:
        fail(f"{message} (see {self.prog} --help)")

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        options, unknown = self.parse_known_args(arguments)
        flags = [word.split("=")[0] for word in unknown if word.startswith("-")]
        if flags:
            fail(f"{'; '.join(map(self._explain_unknown, flags))} (see {self.prog} --help)")
        if unknown:
            fail(f"unknown argument {unknown[0]} (see {self.prog} --help)")
        return options

    def _explain_unknown(self, flag: str) -> str:
        from understudy.algorithms.config import nearest

        name = flag.removeprefix("--").replace("-", "_")
        known = re.findall(r"--[a-z0-9-]+", self.format_help())
        names = [own.removeprefix("--").replace("-", "_") for own in known]
        meant = explain(name, names, lambda word: f"--{word.replace('_', '-')}", self.refused)
        return meant or f"unknown flag {flag}{nearest(flag, known)}"


def count(text: str) -> int:
    """Parse a whole number of at least 1, which may be written 1e6."""
    try:
        number = float(text)
    except ValueError:
        number = 0.5
    if number < 1 or not number.is_integer():
        problem = f"must be a whole number of at least 1, got '{text}'"
        raise argparse.ArgumentTypeError(problem)
    return int(number)


def add_loading(parser: Parser, what: str = "a run directory") -> None:
    """Add RUN, and the flags that allow what a file alone must not decide."""
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help=what)
    env = "the environment, if the run does not name it: module:Class, or an id"
    add("--env", metavar="ENV", help=env)
    add_env_args(parser)
    trust = "import the module that the run names as its environment's"
    add("--trust-environment", action="store_true", help=trust)


def add_env_args(group: Any) -> None:
    what = "a keyword argument of the environment; may be given several times"
    group.add_argument(
        "--env-arg", action="append", default=[], type=_env_arg, metavar="NAME=VALUE", help=what
    )


def _env_arg(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, such as frame_skip=2, got '{text}'")
    return name, None if value.lower() == "none" else parse_value(value)


def parse_value(text: str) -> Any:
    """Parse a flag's value as TOML would: number, true or false, a,b,c or a word."""
    words = {"true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    if "," in text:
        return tuple(parse_value(part) for part in text.strip(",").split(","))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def add_device(parser: Parser, default: str) -> None:
    what = f"device to compute on (default: {default})"
    parser.add_argument("--device", choices=("auto", "cpu", "gpu"), help=what)


def device_of(word: str | None) -> str | None:
    return None if word == "auto" else word
