"""Write a run as one HTML page: curves, evaluations or a map, settings, a video."""

import argparse
from pathlib import Path

from understudy.cli.parsing import Parser, add_loading, entry, hint, quoted
from understudy.cli.playing import choose_agent, film, open_run
from understudy.reports.report import report
from understudy.reports.run_log import read_run

USAGE = "report RUN [flags]"


def add_flags(parser: Parser, arguments: list[str]) -> None:
    add_loading(parser)
    add = parser.add_argument
    add("-o", "--out", type=Path, metavar="FILE", help="(default: report.html in the run)")
    what = "a video (.mp4 or .gif) for the page; a missing file is recorded first"
    add("--video", type=Path, metavar="FILE", help=what)


def run(options: argparse.Namespace) -> None:
    read_run(options.run)  # refuses what is no run before an episode is filmed
    if options.video is not None and not options.video.exists():
        with open_run(options) as opened:
            print(film(choose_agent(opened, None)[0], options.video), flush=True)
    page = report(options.run, options.out, options.video)
    print(entry("report", f"{page} (open it in a browser)"))
    hint(f"export {quoted(options.run)} policy.onnx")
