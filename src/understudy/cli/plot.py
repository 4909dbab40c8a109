"""Draw the learning curves of one or several runs, or the growth of repertoires. Runs that differ
only in their seed become one curve with a 95 % interval."""

import argparse
from pathlib import Path

from understudy.cli.parsing import Parser, entry, hint, quoted
from understudy.errors import ConfigError
from understudy.reports.curves import compare, learning_curve
from understudy.reports.growth import growth
from understudy.reports.run_log import read_runs
from understudy.runs.run_directory import CURVE

USAGE = "plot RUN… [-o FILE]"
COMPARISON = "comparison.png"


def add_flags(parser: Parser, arguments: list[str]) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    what = f".png, .svg or .pdf (default: {CURVE} in the run, {COMPARISON} here for several)"
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help=what)


def run(options: argparse.Namespace) -> None:
    first, *others = options.runs
    runs = read_runs(options.runs)
    if len({run.illuminates for run in runs}) == 2:
        raise ConfigError("some of these runs are of agents, some of repertoires: plot them apart")
    out = options.out or (Path(COMPARISON) if others else first / CURVE)
    if runs[0].illuminates:
        picture = growth(options.runs, out)
    elif others:
        picture = compare(options.runs, out)
    else:
        picture = learning_curve(first, out, runs[0].title)
    print(entry("picture", picture))
    hint(f"report {quoted(first)}")
