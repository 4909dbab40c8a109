"""`understudy report`."""

import argparse
from pathlib import Path

from understudy.cli.parsing import Parser, add_loading, entry, hint, quoted
from understudy.cli.playing import choose_agent, film, open_run
from understudy.reports.report import report
from understudy.reports.run_log import read_run


def parser(arguments: list[str]) -> Parser:
    about = "Write a run as one HTML page: curves, evaluations or a map, settings, a video."
    result = Parser("report RUN [flags]", about, _report)
    add_loading(result)
    add = result.add_argument
    add("-o", "--out", type=Path, metavar="FILE", help="(default: report.html in the run)")
    add("--video", type=Path, metavar="FILE",
        help="a video (.mp4 or .gif) for the page; a missing file is recorded first")  # fmt: skip
    return result


def _report(options: argparse.Namespace) -> None:
    read_run(options.run)  # refuses what is no run before an episode is filmed
    if options.video is not None and not options.video.exists():
        with open_run(options) as opened:
            print(film(choose_agent(opened, None)[0], options.video), flush=True)
    page = report(options.run, options.out, options.video)
    print(entry("report", f"{page} (open it in a browser)"))
    hint(f"export {quoted(options.run)} policy.onnx")
