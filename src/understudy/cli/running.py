"""Start or continue a run: its first lines, its last lines, and what an interruption prints."""

import argparse
import contextlib
import itertools
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, final

from understudy.agent import Agent
from understudy.agent.illumination import HEAT_MAP, Illumination
from understudy.agent.training import Summary
from understudy.cli import config_file, printing
from understudy.cli.parsing import ON_INTERRUPT, device_of, entry, hint, quoted
from understudy.cli.settings import Plan, RunSettings
from understudy.distributed.config import Cluster
from understudy.envs.fault_guard import Guard
from understudy.errors import ConfigError, UnderstudyError
from understudy.ops.statistics import summary as summarize
from understudy.qd.run import QDSummary
from understudy.runs import checkpoint
from understudy.runs.config import QDRunConfig, RunConfig
from understudy.runs.files import make_directory, write_whole
from understudy.runs.loggers import BY_NAME, Logger
from understudy.runs.run_directory import CURVE

REPLAY_LOG = "understudy.training.replay"  # says how large the buffer is before it is made
CONFIG = "config.toml"  # in a run directory: `understudy train --config` starts the same run again


def open_loggers(names: Sequence[str]) -> list[Logger]:
    """Open loggers before anything else, so that a missing package leaves nothing behind."""
    return [BY_NAME[name]() for name in names]


def resources_of(plan: Plan) -> dict[str, Any]:
    """The arguments that agents and quality-diversity methods share."""
    run, cluster = plan.run[RunSettings], plan.run[Cluster]
    if cluster.address is not None and not cluster.remote:
        raise ConfigError("address is the Ray cluster of the collectors: give --collectors, too")
    return {
        "seed": run.seed,
        "env_workers": run.env_workers,
        "guard": plan.run[Guard],
        # None where one process on one device does everything.
        "cluster": cluster if cluster.remote or cluster.devices > 1 else None,
        "device": device_of(run.device),
        "env_args": plan.env_args,
    }


def start(
    options: argparse.Namespace,
    plan: Plan,
    trained: Agent | Illumination,
    total: int,
    config: RunConfig | QDRunConfig,
    loggers: list[Logger],
) -> None:
    """Start the run that is planned, or print its settings."""
    trained.preset = plan.preset
    text = config_file.text(plan)
    if options.print_config:
        trained.close()
        print(text, end="")
        return
    run_dir = new_directory(options.run, plan.schema.name, plan.env)
    make_directory(run_dir)
    write_whole(run_dir / CONFIG, text)
    proceed(trained, run_dir, total, config, loggers, not options.quiet)


def new_directory(wanted: Path | None, name: str, env: str) -> Path:
    """The directory that is asked for, which must be empty; or a new one named after the run."""
    if wanted is not None:
        if wanted.is_dir() and any(wanted.iterdir()):
            raise ConfigError(f"{wanted} is not empty: choose another --run")
        return wanted
    env = env.replace(":", "-").replace("/", "-")
    stem = f"{name}-{env}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([stem], (f"{stem}-{copy}" for copy in itertools.count(2)))
    return next(path for name in names if not (path := Path("runs") / name).exists())


def proceed(
    trained: Agent | Illumination,
    run_dir: Path,
    total: int,
    config: Any,
    loggers: list[Logger],
    progress: bool,
) -> None:
    """Train or illuminate until `total` steps or evaluations, and print how it went."""
    done, unit = printing.progress_of(trained)
    whole = f"{total:,} {unit}"
    first = f"going on at {done:,} of {whole}" if done else whole + printing.name_seeds(trained)
    lines = [f"{printing.name_run(trained)}, {first}, preset: {trained.preset}"]
    if isinstance(trained, Illumination):
        lines.append(entry("behaviors", _describe_cells(trained)))
    lines.append(entry("run directory", run_dir))
    print("\n".join(lines), flush=True)  # at once: it may take hours until the next line
    go_on: Any = trained.illuminate if isinstance(trained, Illumination) else trained.train
    with _around(run_dir, whole), contextlib.closing(trained):
        summary = go_on(
            total - done, run=config, run_dir=run_dir, logger=loggers, progress=progress
        )
    if isinstance(trained, Illumination):
        _print_illuminated(trained, summary, run_dir, config.reevaluation_episodes)
    else:
        _print_trained(trained, summary, run_dir)


def _print_trained(agent: Agent, summary: Summary, run_dir: Path) -> None:
    several = agent.num_seeds > 1
    rate = summary.steps / max(summary.seconds, 1e-9)
    each = " per seed" * several
    print(entry("trained for", f"{summary.seconds:.1f} s ({rate:,.0f} steps/s{each})"))
    if summary.returns is not None:
        returns = summary.returns if several else summary.returns[0]
        print(printing.describe_returns(summarize(returns), agent))
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
    seconds = f"{summary.seconds:.1f} s ({rate:,.0f} evaluations/s)"
    print(entry("illuminated for", seconds))
    print(entry("repertoire", printing.describe_metrics(metrics, metrics["score_offset"])))
    if summary.corrected is not None:
        over = f"(over {episodes} fresh episodes each)"
        print(entry("corrected", f"{printing.describe_metrics(summary.corrected)} {over}"))
    print(entry("heat map", run_dir / HEAT_MAP))
    print(entry("curves", run_dir / CURVE))
    print(entry("checkpoint", checkpoint.place_of(run_dir, found.evaluations)))
    loaded = f'us.{type(found).__name__}.load("{run_dir}")'
    print(entry("in Python", f"{loaded}.repertoire.select([…])"))
    place = quoted(run_dir)
    hint(f"report {place}", f"eval {place}{printing.at_best(found)}", f"plot {place}")


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
