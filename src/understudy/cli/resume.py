"""Continue a run from its newest checkpoint, as if it had never stopped."""

import argparse
import json
from pathlib import Path
from typing import Any

from understudy.agent.illumination import METHODS, Illumination
from understudy.algorithms import available
from understudy.algorithms.config import shown_name
from understudy.cli import config_file
from understudy.cli.parsing import Parser, add_device, add_loading, count, hint, quoted
from understudy.cli.playing import load_run
from understudy.cli.printing import progress_of
from understudy.cli.running import CONFIG, open_loggers, proceed
from understudy.distributed.config import Cluster
from understudy.errors import CheckpointError, ConfigError
from understudy.reading import read_bytes
from understudy.runs.checkpoint import LARGEST_MANIFEST
from understudy.runs.config import QDRunConfig, RunConfig
from understudy.runs.run_directory import RUN_JSON
from understudy.runs.schema import table, text, whole
from understudy.training.devices import configure_process

USAGE = "resume RUN [flags]"


def add_flags(parser: Parser, arguments: list[str]) -> None:
    add_loading(parser)
    add = parser.add_argument
    steps = "steps in total, including those done (default: the total it was started with)"
    add("--steps", type=count, metavar="N", help=steps)
    add("--evaluations", type=count, metavar="N", help="the same for quality-diversity")
    address = "the Ray cluster to join, auto or host:port, if the run had joined one"
    add("--address", metavar="HOST:PORT", help=address)
    add_device(parser, "the one it was started with")
    add("--quiet", action="store_true", help="show no progress bar")


def run(options: argparse.Namespace) -> None:
    about, config = _read_about(options.run)
    settings = _started_with(options.run)
    unit, other = "steps", "evaluations"
    if about["algorithm"] in METHODS:
        unit, other = other, unit
    if getattr(options, other) is not None:
        raise ConfigError(
            f"{options.run} is a run of {shown_name(about['algorithm'])}, which counts {unit}: "
            f"give --{unit} instead of --{other}"
        )
    total = getattr(options, unit) or about["total_steps"]
    cluster = _set_up(about, options.address)
    trained = load_run(options, cluster, options.device or settings.get("device", "auto"))
    done, _ = progress_of(trained)
    if done >= total:
        trained.close()
        print(f"{options.run} is finished: {done:,} of {total:,} {unit} are done")
        place = quoted(options.run)
        hint(f"resume {place} --{unit} {2 * done}", f"eval {place}", f"report {place}")
        return
    if isinstance(trained, Illumination):  # whole generations
        total = -(-total // trained.config.generation_size) * trained.config.generation_size
    loggers = open_loggers(settings.get("logger", []))
    proceed(trained, options.run, total, config, loggers, not options.quiet)


def _set_up(about: dict[str, Any], address: str | None) -> Cluster | None:
    """Set up the process by what run.json says, because the checkpoint is too large to be read
    twice. Return the run's own cluster at the address given now; None leaves it to loading."""
    if address is not None and not isinstance(about.get("cluster"), dict):
        raise ConfigError("--address is for a run that had a cluster, and this one had none")
    algorithm = available().get(about["algorithm"])
    try:
        if algorithm is not None:  # otherwise a method, or unknown, which loading explains
            configure_process(algorithm.config_class(**about["config"]).needs)
        return None if address is None else Cluster(**about["cluster"] | {"address": address})
    except (KeyError, TypeError, OverflowError, ConfigError) as error:
        raise CheckpointError(f"{RUN_JSON} is damaged: {error}") from error


def _read_about(run_dir: Path) -> tuple[dict[str, Any], RunConfig | QDRunConfig]:
    """The description of a run, and its settings of logging and checkpoints."""
    path = run_dir / RUN_JSON
    if not path.exists():
        raise CheckpointError(f"{run_dir} is no run directory: there is no {RUN_JSON} in it")
    try:
        about = json.loads(read_bytes(path, LARGEST_MANIFEST))
        kinds = {"total_steps": whole(1, 2**53), "run_config": table, "algorithm": text}
        if all(good(about[name]) for name, good in kinds.items()):
            config_class = QDRunConfig if about["algorithm"] in METHODS else RunConfig
            return about, config_class(**about["run_config"])
    except (ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    raise CheckpointError(f"{path} is damaged: it does not say what was run")


def _started_with(run_dir: Path) -> dict[str, Any]:
    """The [run] table of the run's own file; a run that was started from Python has none."""
    path = run_dir / CONFIG
    return config_file.read(path).get("run", {}) if path.exists() else {}
