"""`understudy resume`."""

import argparse
import json
from pathlib import Path
from typing import Any

from understudy.agent import load
from understudy.algorithms import find
from understudy.cli import config_file
from understudy.cli.parsing import Parser, add_device, count, device_of, hint, quoted
from understudy.cli.training import CONFIG, open_loggers, run
from understudy.engine.devices import suit
from understudy.errors import CheckpointError
from understudy.runs.records import ABOUT
from understudy.runs.run import RunConfig


def parser(arguments: list[str]) -> Parser:
    result = Parser(
        prog="understudy resume",
        usage="understudy resume RUN [flags]",
        description="Go on with a run from its newest checkpoint, as if it had never stopped.",
    )
    result.set_defaults(command=_resume)
    result.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    result.add_argument(
        "--steps", type=count, metavar="N",
        help="steps in all, those already done included (default: what it was started with)",
    )  # fmt: skip
    add_device(result, "as it was started")
    result.add_argument("--quiet", action="store_true", help="no progress bar")
    return result


def _resume(options: argparse.Namespace) -> None:
    about = _about(options.run)
    total = options.steps or about["total_steps"]
    settings = _started_with(options.run)
    device = options.device or settings.get("device", "auto")
    algorithm = find(about["algorithm"])
    suit(algorithm(algorithm.config_class(**about["config"])).appetite)
    agent = load(options.run, device=device_of(device))
    if agent.steps >= total:
        agent.close()
        done = f"{agent.steps:,} of {total:,} steps are done"
        print(f"{options.run} is finished: {done}")
        place = quoted(options.run)
        hint(f"resume {place} --steps {2 * agent.steps}", f"eval {place}", f"report {place}")
        return
    loggers = open_loggers(settings.get("logger", []))
    config = RunConfig(**about["run_config"])
    start = f"going on at {agent.steps:,} of {total:,} steps, preset: {agent.preset}"
    run(agent, options.run, total, config, loggers, not options.quiet, start)


def _about(run_dir: Path) -> dict[str, Any]:
    """What the run says of itself."""
    path = run_dir / ABOUT
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(about["total_steps"], int) and isinstance(about["run_config"], dict):
            return about
    except FileNotFoundError:
        raise CheckpointError(f"{run_dir} is no run directory: there is no {ABOUT} in it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    raise CheckpointError(f"{path} is damaged: it does not say what was run")


def _started_with(run_dir: Path) -> dict[str, Any]:
    """The [run] table of the run's own file; one that was started from Python has none."""
    path = run_dir / CONFIG
    return config_file.read(path).get("run", {}) if path.exists() else {}
