"""Start or continue a run: its first lines, its last lines, and what an interruption prints."""

import argparse
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, final

from understudy.agent import Agent
from understudy.agent.illumination import HEAT_MAP, Illumination
from understudy.agent.training import Summary
from understudy.cli import config_file
from understudy.cli.parsing import ON_INTERRUPT, entry, hint, quoted
from understudy.cli.printing import at_best, describe_metrics, describe_returns
from understudy.cli.settings import Plan, RunSettings
from understudy.distributed.config import Cluster
from understudy.errors import ConfigError, UnderstudyError
from understudy.ops.statistics import summary as summarize
from understudy.qd.run import QDSummary
from understudy.runs import checkpoint
from understudy.runs.config import QDRunConfig, RunConfig
from understudy.runs.files import write_whole
from understudy.runs.loggers import BY_NAME, Logger
from understudy.runs.run_directory import CURVE

REPLAY_LOG = "understudy.training.replay"  # says how large the buffer is before it is made
CONFIG = "config.toml"  # in a run directory: `understudy train --config` starts the same run again


def start(
    options: argparse.Namespace,
    plan: Plan,
    make: Callable[[Plan], Agent | Illumination],
    total: int,
    config: RunConfig | QDRunConfig,
    first_line: str,
) -> None:
    """Start the run that is planned, or print its settings."""
    loggers = open_loggers(plan.run[RunSettings].logger)
    trained = make(plan)
    trained.preset = plan.preset
    text = config_file.text(plan)
    if options.print_config:
        trained.close()
        print(text, end="")
        return
    run_dir = new_directory(options.run, plan.schema.name, plan.env)
    _make(run_dir)
    write_whole(run_dir / CONFIG, text)
    line = f"{first_line}, preset: {plan.preset}"
    run(trained, run_dir, total, config, loggers, not options.quiet, line)


def open_loggers(names: Sequence[str]) -> list[Logger]:
    """Open loggers before anything else, so that a missing package leaves nothing behind."""
    return [BY_NAME[name]() for name in names]


def cluster_of(plan: Plan) -> Cluster | None:
    """The cluster of a plan; None where one process on one device does everything."""
    cluster: Cluster = plan.run[Cluster]
    if cluster.address is not None and not cluster.remote:
        raise ConfigError("address is the Ray cluster of the collectors: give --collectors, too")
    return cluster if cluster.remote or cluster.devices > 1 else None


def new_directory(wanted: Path | None, name: str, env: str) -> Path:
    """The directory that is asked for, which must be empty; or a new one named after the run."""
    if wanted is not None:
        if wanted.is_dir() and any(wanted.iterdir()):
            raise ConfigError(f"{wanted} is not empty: choose another --run")
        return wanted
    env = env.replace(":", "-").replace("/", "-")
    stem = f"{name}-{env}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory, copies = Path("runs") / stem, 1
    while directory.exists():
        copies += 1
        directory = Path("runs") / f"{stem}-{copies}"
    return directory


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made: {error.strerror}") from error


def progress_of(trained: Agent | Illumination) -> tuple[int, str]:
    """How much is done, and what is counted."""
    if isinstance(trained, Illumination):
        return trained.evaluations, "evaluations"
    return trained.steps, "steps"


def run(
    trained: Agent | Illumination,
    run_dir: Path,
    total: int,
    config: Any,
    loggers: list[Logger],
    progress: bool,
    first_line: str,
) -> None:
    """Train or illuminate until `total` steps or evaluations, and print how it went."""
    done, unit = progress_of(trained)
    if isinstance(trained, Illumination):
        proceed, title = trained.illuminate, trained.env_name
        cells = entry("behaviors", _describe_cells(trained)) + "\n"
    else:
        proceed, title, cells = trained.train, trained.env_title, ""
    print(f"{trained.name} on {title}, {first_line}\n{cells}{entry('run directory', run_dir)}",
          flush=True)  # at once: it may take hours until the next line  # fmt: skip
    with _around(run_dir, f"{total:,} {unit}"), contextlib.closing(trained):
        summary: Any = proceed(
            total - done, run=config, run_dir=run_dir, logger=loggers, progress=progress
        )
    if isinstance(trained, Illumination):
        _print_illuminated(trained, summary, run_dir, config.reevaluation_episodes)
    else:
        _print_trained(trained, summary, run_dir)


def _print_trained(agent: Agent, summary: Summary, run_dir: Path) -> None:
    each = " per seed" if agent.num_seeds > 1 else ""
    rate = summary.steps / max(summary.seconds, 1e-9)
    print(entry("trained for", f"{summary.seconds:.1f} s ({rate:,.0f} steps/s{each})"))
    if summary.returns is not None:
        returns = summary.returns if agent.num_seeds > 1 else summary.returns[0]
        print(describe_returns(summarize(returns), agent))
    print(entry("learning curve", run_dir / CURVE))
    print(entry("checkpoint", checkpoint.place_of(run_dir, agent.steps)))
    place = quoted(run_dir)
    hint(f"eval {place}", f"plot {place}", f"report {place}")


def _describe_cells(found: Illumination) -> str:
    grid, names = found.config.grid, ", ".join(found.descriptor.axis_names)
    if grid:
        return f"{names}; a grid of {'×'.join(map(str, grid))} cells"
    return f"{names}; a CVT of {found.config.cells:,} cells"


def _print_illuminated(
    found: Illumination, summary: QDSummary, run_dir: Path, episodes: int
) -> None:
    rate, metrics = summary.evaluations / max(summary.seconds, 1e-9), summary.metrics
    lines = {
        "illuminated for": f"{summary.seconds:.1f} s ({rate:,.0f} evaluations/s)",
        "repertoire": describe_metrics(metrics, metrics["score_offset"]),
    }
    if summary.corrected is not None:
        over = f"(over {episodes} fresh episodes each)"
        lines["corrected"] = f"{describe_metrics(summary.corrected)} {over}"
    lines |= {
        "heat map": str(run_dir / HEAT_MAP),
        "curves": str(run_dir / CURVE),
        "checkpoint": str(checkpoint.place_of(run_dir, found.evaluations)),
        "in Python": f'us.{type(found).__name__}.load("{run_dir}").repertoire.select([…])',
    }
    print("\n".join(entry(*line) for line in lines.items()))
    place = quoted(run_dir)
    hint(f"report {place}", f"eval {place}{at_best(found)}", f"plot {place}")


# -- interruptions ------------------------------------------------------------------------------


@final
class _Lines(logging.Handler):
    """Prints "replay: 6.6 GiB" in the columns of the other lines."""

    def emit(self, record: logging.LogRecord) -> None:
        name, _, rest = record.getMessage().partition(": ")
        print(entry(name, rest), flush=True)


@contextlib.contextmanager
def _around(run_dir: Path, whole: str) -> Iterator[None]:
    """Print how large the replay buffer is, and after an interruption how to continue. Leave
    nothing of a run that never began. `whole` is the run in words, "5,000 steps"."""
    log, lines, undo = logging.getLogger(REPLAY_LOG), _Lines(), partial(_clear, run_dir)
    log.addHandler(lines)
    level = log.level
    log.setLevel(logging.INFO)
    ON_INTERRUPT.append(undo)
    try:
        yield
    except KeyboardInterrupt:
        _leave(run_dir, whole, 130)
    except SystemExit as exit:  # SIGTERM
        _leave(run_dir, whole, exit.code)
    except UnderstudyError:
        _clear(run_dir)
        raise
    finally:
        ON_INTERRUPT.remove(undo)
        log.removeHandler(lines)
        log.setLevel(level)


def _leave(run_dir: Path, whole: str, code: Any) -> NoReturn:
    saved = checkpoint.numbered(run_dir)
    if saved:
        done = f"at {int(saved[-1].name):,} of {whole}"
        words = f"interrupted {done}; go on with: understudy resume {quoted(run_dir)}"
    else:
        words = "interrupted before anything was saved"
        _clear(run_dir)
    print(words, file=sys.stderr)
    raise SystemExit(code) from None


def _clear(run_dir: Path) -> None:
    """Remove the directory of a run that has written nothing but its settings."""
    with contextlib.suppress(OSError):
        if [path.name for path in run_dir.iterdir()] == [CONFIG]:
            (run_dir / CONFIG).unlink()
            run_dir.rmdir()
