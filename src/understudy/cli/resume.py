"""`understudy resume`."""

import argparse
import json
from pathlib import Path
from typing import Any

from understudy.agent import Agent, load
from understudy.agent.illumination import METHODS, Illumination
from understudy.algorithms import available
from understudy.algorithms.config import shown_name
from understudy.cli import config_file
from understudy.cli.illuminate import illuminate
from understudy.cli.parsing import Parser, add_device, add_trust, count, device_of, hint, quoted
from understudy.cli.training import CONFIG, open_loggers, run
from understudy.distributed.config import Cluster
from understudy.errors import CheckpointError, ConfigError
from understudy.qd.run import QDRunConfig
from understudy.reading import read_bytes
from understudy.runs.checkpoint import LARGEST_MANIFEST
from understudy.runs.run import RunConfig
from understudy.runs.run_directory import ABOUT
from understudy.runs.schema import table, text, whole
from understudy.training.devices import suit


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
    result.add_argument(
        "--evaluations", type=count, metavar="N", help="the same for quality-diversity"
    )
    add_trust(result)
    result.add_argument(
        "--address", metavar="HOST:PORT",
        help="the Ray cluster to join, auto or host:port, if the run had joined one",
    )  # fmt: skip
    add_device(result, "as it was started")
    result.add_argument("--quiet", action="store_true", help="no progress bar")
    return result


def _resume(options: argparse.Namespace) -> None:
    about, settings = _about(options.run), _started_with(options.run)
    device = device_of(options.device or settings.get("device", "auto"))
    method = METHODS.get(about["algorithm"])
    wanted, other = options.steps, options.evaluations
    unit, other_unit = "steps", "evaluations"
    if method is not None:
        wanted, other, unit, other_unit = other, wanted, other_unit, unit
    if other is not None:
        name = shown_name(about["algorithm"])
        raise ConfigError(
            f"{options.run} is a run of {name}, which counts {unit}: give --{unit} instead of "
            f"--{other_unit}"
        )
    total = wanted or about["total_steps"]
    handed: dict[str, Any] = {
        "env": options.env,
        "trust_environment": options.trust_environment,
        "cluster": _cluster(about, options.address),
        "device": device,
    }
    if method is not None:
        _illuminate_on(options, about, settings, total, method.load(options.run, **handed))
        return
    _suit(about)
    _train_on(options, about, settings, total, load(options.run, **handed))


def _suit(about: dict[str, Any]) -> None:
    """Set up the process by what run.json says. The checkpoint is too large to be read twice."""
    algorithm = available().get(about["algorithm"])
    try:
        if algorithm is not None:  # loading explains an unknown one
            suit(algorithm.config_class(**about["config"]).needs)
    except (KeyError, TypeError, OverflowError, ConfigError) as error:
        raise CheckpointError(f"{ABOUT} is damaged: {error}") from error


def _cluster(about: dict[str, Any], address: str | None) -> Cluster | None:
    """The run's own, at an address that is given now; None leaves it to loading."""
    if address is None:
        return None
    stored = about.get("cluster")
    if not isinstance(stored, dict):
        raise ConfigError("--address is for a run that had a cluster, and this one had none")
    settings: dict[str, Any] = {**stored, "address": address}
    try:
        return Cluster(**settings)
    except TypeError as error:
        raise CheckpointError(f"{ABOUT} is damaged: {error}") from error


def _train_on(
    options: argparse.Namespace,
    about: dict[str, Any],
    settings: dict[str, Any],
    total: int,
    agent: Agent,
) -> None:
    if agent.steps >= total:
        agent.close()
        _say_it_is_finished(options.run, agent.steps, total, "steps")
        return
    loggers = open_loggers(settings.get("logger", []))
    config = RunConfig(**about["run_config"])
    start = f"going on at {agent.steps:,} of {total:,} steps, preset: {agent.preset}"
    run(agent, options.run, total, config, loggers, not options.quiet, start)


def _illuminate_on(
    options: argparse.Namespace,
    about: dict[str, Any],
    settings: dict[str, Any],
    total: int,
    found: Illumination,
) -> None:
    if found.evaluations >= total:
        found.close()
        _say_it_is_finished(options.run, found.evaluations, total, "evaluations")
        return
    size = found.config.generation_size
    total = -(-total // size) * size  # whole generations
    loggers = open_loggers(settings.get("logger", []))
    config = QDRunConfig(**about["run_config"])
    done = f"{found.evaluations:,} of {total:,} evaluations"
    start = f"going on at {done}, preset: {found.preset}"
    illuminate(found, options.run, total, config, loggers, not options.quiet, start)


def _say_it_is_finished(run_dir: Path, done: int, total: int, unit: str) -> None:
    print(f"{run_dir} is finished: {done:,} of {total:,} {unit} are done")
    place = quoted(run_dir)
    hint(f"resume {place} --{unit} {2 * done}", f"eval {place}", f"report {place}")


def _about(run_dir: Path) -> dict[str, Any]:
    """What the run says of itself."""
    path = run_dir / ABOUT
    if not path.exists():
        raise CheckpointError(f"{run_dir} is no run directory: there is no {ABOUT} in it")
    try:
        about = json.loads(read_bytes(path, LARGEST_MANIFEST))
        kinds = {"total_steps": whole(1, 2**53), "run_config": table, "algorithm": text}
        if all(good(about[name]) for name, good in kinds.items()):
            (QDRunConfig if about["algorithm"] in METHODS else RunConfig)(**about["run_config"])
            return about
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    raise CheckpointError(f"{path} is damaged: it does not say what was run")


def _started_with(run_dir: Path) -> dict[str, Any]:
    """The [run] table of the run's own file; one that was started from Python has none."""
    path = run_dir / CONFIG
    return config_file.read(path).get("run", {}) if path.exists() else {}
