"""A run as the terminal sees it: its first line, its end, and how to go on."""

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, final

from understudy.agent import Agent
from understudy.cli.parsing import WHEN_INTERRUPTED, hint, quoted
from understudy.errors import UnderstudyError
from understudy.ops.statistics import summary as summarize
from understudy.runs import checkpoint
from understudy.runs.loggers import BY_NAME, Logger
from understudy.runs.progress import compact
from understudy.runs.run import RunConfig
from understudy.runs.run_directory import CURVE

CONFIG = "config.toml"  # in a run directory: `understudy train --config` starts the same again


def open_loggers(names: Sequence[str]) -> list[Logger]:
    """Made before anything else is, so that a missing package leaves nothing behind."""
    return [BY_NAME[name]() for name in names]


def run(
    agent: Agent,
    run_dir: Path,
    total: int,
    config: RunConfig,
    loggers: list[Logger],
    progress: bool,
    start: str,
) -> None:
    """Train until `total` steps, from the line that says what starts to the one that says what
    to do next."""
    # At once: it may be hours to the next line, and a reader of one line may leave after it.
    print(f"{agent.name} on {agent.env_title}, {start}\nrun directory   {run_dir}", flush=True)
    with around(run_dir, f"{total:,} steps"), contextlib.closing(agent):
        summary = agent.train(
            total - agent.steps, run=config, run_dir=run_dir, logger=loggers, progress=progress
        )
    each = " per seed" if agent.num_seeds > 1 else ""
    rate = summary.steps / max(summary.seconds, 1e-9)
    print(f"trained for     {summary.seconds:.1f} s ({rate:,.0f} steps/s{each})")
    if summary.returns is not None:
        returns = summary.returns if agent.num_seeds > 1 else summary.returns[0]
        print(spoken(summarize(returns), agent))
    print(f"learning curve  {run_dir / CURVE}")
    print(f"checkpoint      {checkpoint.place_of(run_dir, agent.steps)}")
    place = quoted(run_dir)
    hint(f"eval {place}", f"plot {place}", f"report {place}")


def spoken(result: dict[str, Any], agent: Agent) -> str:
    """An evaluation in one line."""
    several = agent.num_seeds > 1
    episodes = len(result["returns"][0] if several else result["returns"])
    low, high = map(compact, result["ci95"])
    over = f"{episodes} episode{'s' * (episodes > 1)}{' per seed' * several}"
    units = f"{agent.num_seeds} seeds" if several else "episodes"
    return (
        f"return over {over}: mean {compact(result['mean'])} (95 % interval {low} … {high}), "
        f"standard deviation {compact(result['std'])}, IQM of the {units} {compact(result['iqm'])}"
    )


@final
class _Lines(logging.Handler):
    """Prints "replay: 6.6 GiB" in the columns of the other lines."""

    def emit(self, record: logging.LogRecord) -> None:
        name, _, rest = record.getMessage().partition(": ")
        print(f"{name:15} {rest}", flush=True)


@contextlib.contextmanager
def _saying_what_is_large() -> Iterator[None]:
    """How large replay is and where it is kept, before it is made."""
    log, lines = logging.getLogger("understudy.training.replay"), _Lines()
    before = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(lines)
        log.setLevel(before)


@contextlib.contextmanager
def around(run_dir: Path, whole: str) -> Iterator[None]:
    """Says what is large, and after an interruption how to go on; `whole` is the run in words,
    "5,000 steps"."""
    undo = partial(_clear, run_dir)
    WHEN_INTERRUPTED.append(undo)
    try:
        with _saying_what_is_large():
            yield
    except KeyboardInterrupt:
        _leave(run_dir, whole, 130)
    except SystemExit as exit:  # SIGTERM
        _leave(run_dir, whole, exit.code)
    except UnderstudyError:
        _clear(run_dir)
        raise
    finally:
        WHEN_INTERRUPTED.remove(undo)


def _leave(run_dir: Path, whole: str, code: Any) -> NoReturn:
    kept = checkpoint.numbered(run_dir)
    if kept:
        done = f"at {int(kept[-1].name):,} of {whole}"
        words = f"interrupted {done}; go on with: understudy resume {quoted(run_dir)}"
    else:
        words = "interrupted before anything was saved"
        _clear(run_dir)
    print(words, file=sys.stderr)
    raise SystemExit(code) from None


def _clear(run_dir: Path) -> None:
    """A run that never began leaves nothing."""
    with contextlib.suppress(OSError):
        if [path.name for path in run_dir.iterdir()] == [CONFIG]:
            (run_dir / CONFIG).unlink()
            run_dir.rmdir()
