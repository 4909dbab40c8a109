"""`understudy plot`."""

import argparse
from pathlib import Path

from understudy.cli.parsing import Parser, hint, quoted
from understudy.runs.plots import compare, learning_curve, read_run
from understudy.runs.records import CURVE

COMPARISON = "comparison.png"


def parser(arguments: list[str]) -> Parser:
    result = Parser(
        prog="understudy plot",
        usage="understudy plot RUN… [-o FILE]",
        description="Draw the learning curve of a run, or of several side by side. Runs that "
        "differ only in\ntheir seed become one curve with its 95 % interval.",
    )
    result.set_defaults(command=_plot)
    result.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    result.add_argument(
        "-o", "--out", type=Path, metavar="FILE",
        help=f".png, .svg or .pdf (default: {CURVE} in the run, {COMPARISON} here for several)",
    )  # fmt: skip
    return result


def _plot(options: argparse.Namespace) -> None:
    first, *others = options.runs
    if others:
        picture = compare(options.runs, options.out or Path(COMPARISON))
    else:
        run = read_run(first)
        title = f"{run.algorithm} on {run.about.get('env') or 'your environment'}"
        picture = learning_curve(first, options.out or first / CURVE, title)
    print(f"picture         {picture}")
    hint(f"report {quoted(first)}")
