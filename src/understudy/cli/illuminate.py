"""`understudy illuminate`: quality-diversity. Flags are made from the fields of the method's config
and of the run's, as those of `understudy train` are."""

import argparse
import contextlib
import dataclasses
import math
from pathlib import Path
from typing import Any, final

from understudy.agent.illumination import HEAT_MAP, METHODS, Illumination
from understudy.algorithms.config import Config, nearest, setting, shown_name
from understudy.cli import config_file
from understudy.cli.parsing import Parser, device_of, hint, quoted
from understudy.cli.plan import Kind, Wishes, settle, unknown_loggers
from understudy.cli.repertoire import best_behavior, spoken
from understudy.cli.train import (
    PRECEDENCE,
    add_run,
    add_settings,
    given,
    run_directory,
    words_of,
)
from understudy.cli.training import CONFIG, around, open_loggers
from understudy.distributed.config import Cluster
from understudy.envs.fault_guard import Guard
from understudy.errors import ConfigError
from understudy.qd.run import QDRunConfig
from understudy.runs import checkpoint
from understudy.runs.files import write_whole
from understudy.runs.loggers import Logger
from understudy.runs.run_directory import CURVE

DEFAULT_METHOD, DEFAULT_ENVIRONMENT = "pga-me", "jax:PointNavigation-v0"
DEFAULT_EVALUATIONS, DEFAULT_EVALUATIONS_ELSEWHERE = 5_000, 20_000
LOGS = 50  # in a run, unless told otherwise


@final
@dataclasses.dataclass(frozen=True)
class IlluminationSettings(Config):
    """The keys of a file's [run] table, and flags of `understudy illuminate`."""

    evaluations: int | None = setting(None, at_least=1)
    """Policies to evaluate in all, in whole generations (default: 5,000 on
    jax:PointNavigation-v0, elsewhere 20,000)."""
    descriptor: str | None = setting(None)
    """What tells behaviors apart, by its name (default: the environment's usual one)."""
    seed: int = setting(0, at_least=0)
    """Of everything that is random."""
    env_workers: int = setting(0, at_least=0)
    """Worker processes that step the environments; with 0 this process does."""
    step_timeout: float = setting(60.0, above=0.0, at_most=1e6)
    """Seconds a worker process has for one step, before it is replaced."""
    collectors: int = setting(0, at_least=0)
    """Processes on a Ray cluster that play a generation's episodes; with 0 this one does."""
    address: str | None = setting(None)
    """The Ray cluster to join, auto or host:port (default: one is started here)."""
    log_every: int | None = setting(None, at_least=1)
    """Generations between rows of the log (default: a fiftieth of the run)."""
    checkpoint_every: int | None = setting(None, at_least=0)
    """Generations between checkpoints, 0 for the end only (default: every minute or so)."""
    keep_checkpoints: int = setting(2, at_least=1)
    """How many checkpoints are kept."""
    reevaluation_episodes: int = setting(5, at_least=0)
    """Fresh episodes of every policy at the end, for a score without luck; 0 leaves it out."""
    logger: tuple[str, ...] = setting(())
    """Beside progress.csv: tensorboard, wandb, mlflow, or several, separated by commas."""
    device: str = setting("auto", choices=("auto", "cpu", "gpu"))
    """Where to compute; auto is JAX's choice."""

    def contradictions(self) -> list[str]:
        lonely = self.address is not None and not self.collectors
        problems = ["address is where collectors are: give --collectors, too"] if lonely else []
        return problems + unknown_loggers(self.logger)


def parser(arguments: list[str]) -> Parser:
    """Its flags depend on the method, which is looked up among the arguments first, then in the
    file."""
    finder = Parser(prog="understudy illuminate", add_help=False)
    finder.add_argument("--config", type=Path)
    path = finder.parse_known_args(arguments)[0].config
    content = {} if path is None else config_file.read(path)
    name, env = _names(words_of(arguments), content)
    method = METHODS[name]
    result = Parser(
        prog="understudy illuminate",
        usage="understudy illuminate [METHOD] [ENV] [flags]",
        description="Find the best policy of every kind of behavior; keep them, their map and "
        "their log in a directory.",
        epilog=PRECEDENCE,
    )
    result.set_defaults(command=_illuminate, file=content, found=method, place=env)
    add = result.add_argument
    add("method", nargs="?", metavar="METHOD",
        help=f"one of {', '.join(METHODS)} (default: {DEFAULT_METHOD})")  # fmt: skip
    names = 'a Gymnasium id, "jax:ID" or "brax:NAME"'
    add("env", nargs="?", metavar="ENV", help=f"{names} (default: {DEFAULT_ENVIRONMENT})")
    add_run(result, IlluminationSettings)
    add_settings(result, f"settings of {shown_name(name)}", method.config_class)
    return result


def _names(words: list[str], content: dict[str, Any]) -> tuple[str, str]:
    """Method and environment. A single word is the environment, unless it looks like a method."""
    alone = len(words) == 1 and words[0].lower() not in METHODS and not nearest(words[0], METHODS)
    method, env = [*words, None, None][:2] if not alone else (None, words[0])
    method = (method or content.get("algorithm", DEFAULT_METHOD)).lower()
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise ConfigError(f"no method '{method}'{nearest(method, METHODS)}; there are: {known}")
    return method, env or content.get("env", DEFAULT_ENVIRONMENT)


def _illuminate(options: argparse.Namespace) -> None:
    method, env = options.found, options.place
    run, config, preset = _settled(options, method.method, env)
    loggers = open_loggers(run.logger)
    found = method(
        env,
        config,
        descriptor=run.descriptor,
        seed=run.seed,
        env_workers=run.env_workers,
        guard=Guard(step_timeout=run.step_timeout),
        cluster=Cluster(run.collectors, address=run.address) if run.collectors else None,
        device=device_of(run.device),
    )
    found.preset = preset
    text = config_file.text(method.method, env, run, config)
    if options.print_config:
        found.close()
        print(text, end="")
        return
    run_dir = run_directory(options.run, method.method, env)
    write_whole(run_dir / CONFIG, text)
    names = [field.name for field in dataclasses.fields(QDRunConfig)]
    run_config = QDRunConfig(**{name: getattr(run, name) for name in names})
    start = f"{run.evaluations:,} evaluations, preset: {preset}"
    illuminate(found, run_dir, run.evaluations, run_config, loggers, not options.quiet, start)


def _settled(options: argparse.Namespace, name: str, env: str) -> tuple[Any, Any, str]:
    configs = {name: each.config_class for name, each in METHODS.items()}
    kind = Kind(name, configs, IlluminationSettings)
    flags = Wishes(given(options, "run:"), given(options, "config:"), "your flags")
    layers, problems = [flags], []
    if options.config is not None:
        wishes, problems = config_file.wishes(options.config, options.file, kind)
        layers = [wishes, flags]
    run, config, preset = settle(kind, env, layers, problems)
    familiar = env == DEFAULT_ENVIRONMENT
    usual = DEFAULT_EVALUATIONS if familiar else DEFAULT_EVALUATIONS_ELSEWHERE
    generations = math.ceil((run.evaluations or usual) / config.generation_size)
    every = run.log_every or max(1, generations // LOGS)
    total = generations * config.generation_size
    return dataclasses.replace(run, evaluations=total, log_every=every), config, preset


def illuminate(
    found: Illumination,
    run_dir: Path,
    total: int,
    config: QDRunConfig,
    loggers: list[Logger],
    progress: bool,
    start: str,
) -> None:
    """Illuminate until `total` evaluations, from the line that says what starts to the one that
    says what to do next."""
    grid, names = found.config.grid, ", ".join(found.descriptor.axis_names)
    shape = "×".join(map(str, grid or ()))
    cells = f"a grid of {shape} cells" if grid else f"a CVT of {found.config.cells:,} cells"
    # At once: it may be hours to the next line, and a reader of one line may leave after it.
    print(f"{found.name} on {found.env_name}, {start}")
    print(f"behaviors      {names}; {cells}\nrun directory   {run_dir}", flush=True)
    with around(run_dir, f"{total:,} evaluations"), contextlib.closing(found):
        summary = found.illuminate(
            total - found.evaluations,
            run=config,
            run_dir=run_dir,
            logger=loggers,
            progress=progress,
        )
    rate = summary.evaluations / max(summary.seconds, 1e-9)
    print(f"illuminated for {summary.seconds:.1f} s ({rate:,.0f} evaluations/s)")
    print(f"repertoire      {spoken(summary.metrics, summary.metrics['score_offset'])}")
    if summary.corrected is not None:
        episodes = config.reevaluation_episodes
        print(f"corrected       {spoken(summary.corrected)} (over {episodes} fresh episodes each)")
    print(f"heat map        {run_dir / HEAT_MAP}")
    print(f"curves          {run_dir / CURVE}")
    print(f"checkpoint      {checkpoint.place_of(run_dir, found.evaluations)}")
    print(f'in Python       us.{type(found).__name__}.load("{run_dir}").repertoire.select([…])')
    place, at = quoted(run_dir), "".join(f" --at {one}" for one in best_behavior(found))
    hint(f"report {place}", f"eval {place}{at}", f"plot {place}")
