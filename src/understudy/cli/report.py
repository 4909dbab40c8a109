"""`understudy report`."""

import argparse
import contextlib
from pathlib import Path

from understudy.cli import repertoire
from understudy.cli.evaluate import film, load_here
from understudy.cli.parsing import Parser, add_trust, hint, quoted
from understudy.reports.curves import read_run
from understudy.reports.repertoire_report import report as report_repertoire
from understudy.reports.report import report


def parser(arguments: list[str]) -> Parser:
    result = Parser(
        prog="understudy report",
        usage="understudy report RUN [flags]",
        description="Write a run as one HTML page: curves, evaluations or a map, settings, a film.",
    )
    result.set_defaults(command=_report)
    result.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    result.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="(default: report.html in the run)"
    )
    result.add_argument(
        "--video", type=Path, metavar="FILE",
        help="a film (.mp4 or .gif) to show on the page; one that is not there is made",
    )  # fmt: skip
    add_trust(result)
    return result


def _report(options: argparse.Namespace) -> None:
    video = options.video
    run = read_run(options.run)  # a mistake here should not be found after the film
    if video is not None and not video.exists():
        print(_film(options, video), flush=True)
    page = (report_repertoire if run.illuminates else report)(options.run, options.out, video)
    print(f"report          {page} (open it in a browser)")
    hint(f"export {quoted(options.run)} policy.onnx")


def _film(options: argparse.Namespace, video: Path) -> str:
    method = repertoire.method_of(options.run)
    if method is None:
        with contextlib.closing(load_here(options.run, options)) as agent:
            return film(agent, video)
    with repertoire.opened(method, options.run, options) as found:
        return film(repertoire.chosen(found, None)[1], video)
