"""`understudy train`. Flags are made from the fields of the algorithm's config and of the run's, so
the command line never lags behind the library."""

import argparse
import dataclasses
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from understudy.agent import Agent, agent_class
from understudy.agent.illumination import METHODS
from understudy.algorithms import Algorithm, available, find
from understudy.algorithms.config import Config, by_topic, field_docs
from understudy.cli import config_file
from understudy.cli.parsing import Parser, device_of, show
from understudy.cli.plan import (
    DEFAULT_ALGORITHM,
    DEFAULT_ENVIRONMENT,
    Plan,
    RunSettings,
    Wishes,
    kind_of,
    make_plan,
    takes_a_list,
)
from understudy.cli.training import CONFIG, open_loggers, run
from understudy.envs.fault_guard import Guard
from understudy.errors import ConfigError
from understudy.runs.files import write_whole
from understudy.runs.run import RunConfig
from understudy.training.devices import suit

SWITCHES = ("--quiet", "--print-config")  # flags without a value
PRECEDENCE = """\
A flag goes before the file, the file before the environment's preset (understudy list presets),
the preset before the defaults shown here. "none" means no value."""


def parser(arguments: list[str]) -> Parser:
    """Its flags depend on the algorithm, which is looked up among the arguments first, then in
    the file."""
    finder = Parser(prog="understudy train", add_help=False)
    finder.add_argument("--config", type=Path)
    path = finder.parse_known_args(arguments)[0].config
    content = {} if path is None else config_file.read(path)
    words = words_of(arguments)
    name = words[0] if words else content.get("algorithm", DEFAULT_ALGORITHM)
    if name.lower() in METHODS:
        raise ConfigError(f"{name} trains no agent: understudy illuminate {name}")
    algorithm = find(name)
    result = Parser(
        prog="understudy train",
        usage="understudy train [ALGO] [ENV] [flags]",
        description="Train an agent; keep its log, learning curve and checkpoints in a directory.",
        epilog=PRECEDENCE,
    )
    result.set_defaults(command=_train, file=content, found=algorithm)
    result.refused = algorithm.config_class.refused
    result.renamed = algorithm.config_class.renamed
    add = result.add_argument
    add("algorithm", nargs="?", metavar="ALGO",
        help=f"one of {', '.join(available())} (default: {DEFAULT_ALGORITHM})")  # fmt: skip
    names = 'a Gymnasium id, "jax:ID" or "atari:GAME"'
    add("env", nargs="?", metavar="ENV", help=f"{names} (default: {DEFAULT_ENVIRONMENT})")
    add_run(result, RunSettings)
    add_settings(result, f"settings of {algorithm.name.upper()}", algorithm.config_class)
    return result


def add_run(parser: Parser, settings: type[Config]) -> None:
    """The flags that say where and how something runs."""
    group = parser.add_argument_group("the run")
    add = group.add_argument
    add("--run", type=Path, metavar="DIR", help="run directory (default: a new one in runs/)")
    add("--config", type=Path, metavar="FILE", help="settings as TOML (docs/command_line.md)")
    add("--print-config", action="store_true", help="print what would run as such a file")
    add("--quiet", action="store_true", help="no progress bar")
    add_fields(group, settings, "run")


def words_of(arguments: list[str]) -> list[str]:
    """The arguments that are neither flags nor their values."""
    words, value = [], False
    for argument in arguments:
        if not argument.startswith("-"):
            words += [] if value else [argument]
            value = False
        else:
            value = argument.startswith("--") and "=" not in argument and argument not in SWITCHES
    return words


def add_settings(parser: Parser, title: str, config_class: type[Config]) -> None:
    """A flag for every field of an algorithm's config, in a group for every topic."""
    for topic, fields in by_topic(config_class).items():
        group = parser.add_argument_group(title + f": {topic}" * bool(topic))
        add_fields(group, config_class, "config", [field.name for field in fields])


def add_fields(
    group: Any, config_class: type[Config], kind: str, only: Collection[str] | None = None
) -> None:
    """A flag for every field, or for some."""
    docs = field_docs(config_class)
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        if only is not None and field.name not in only:
            continue
        notes = [", ".join(field.metadata["choices"])] if field.metadata["choices"] else []
        if field.default not in (None, ()):
            notes.append(f"default: {show(field.default)}")
        shown = " ".join(docs[field.name].split()).rstrip(".")
        shown += f" ({'; '.join(notes)})" if notes else ""
        words = field.type == tuple[str, ...]  # may also be given one by one
        group.add_argument(
            "--" + field.name.replace("_", "-"),
            dest=f"{kind}:{field.name}",
            action="extend" if words else "store",
            type=(lambda text: text.split(",")) if words else value_of,
            metavar=_placeholder(field.type),
            help=shown.replace("%", "%%"),
        )


def _placeholder(annotation: Any) -> str:
    if takes_a_list(annotation):
        return "A,B"
    for kind, shown in ((bool, "true|false"), (int, "N"), (float, "X")):
        if annotation in (kind, kind | None):
            return shown
    return "WORD"


def value_of(text: str) -> Any:
    """A flag's text as TOML would have it: number, true or false, a,b,c or a word."""
    words = {"true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    if "," in text:
        return tuple(value_of(part) for part in text.strip(",").split(","))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _plan(options: argparse.Namespace) -> Plan:
    algorithm: type[Algorithm] = options.found
    env = options.env or options.file.get("env", DEFAULT_ENVIRONMENT)
    flags = Wishes(given(options, "run:"), given(options, "config:"), "your flags")
    layers, problems = [flags], []
    if options.config is not None:
        wishes, problems = config_file.wishes(options.config, options.file, kind_of(algorithm))
        layers = [wishes, flags]
    return make_plan(algorithm, env, layers, problems)


def given(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    return {
        name.removeprefix(kind): value
        for name, value in vars(options).items()
        if name.startswith(kind) and value is not None
    }


def _train(options: argparse.Namespace) -> None:
    plan = _plan(options)
    loggers = open_loggers(plan.run.logger)
    agent = _agent(plan)
    text = config_file.text(plan.algorithm.name, plan.env, plan.run, plan.config)
    if options.print_config:
        agent.close()
        print(text, end="")
        return
    run_dir = run_directory(options.run, plan.algorithm.name, plan.env)
    write_whole(run_dir / CONFIG, text)
    assert plan.run.steps is not None
    seeds = f", seeds {agent.seed}–{agent.seed + agent.num_seeds - 1}" * (agent.num_seeds > 1)
    start = f"{plan.run.steps:,} steps{seeds}, preset: {plan.preset}"
    names = [field.name for field in dataclasses.fields(RunConfig)]
    run_config = RunConfig(**{name: getattr(plan.run, name) for name in names})
    run(agent, run_dir, plan.run.steps, run_config, loggers, not options.quiet, start)


def _agent(plan: Plan) -> Agent:
    suit(plan.algorithm(plan.config).needs)
    agent = agent_class(plan.algorithm.name)(
        plan.env,
        plan.config,
        seed=plan.run.seed,
        num_seeds=plan.run.seeds,
        num_envs=plan.run.envs,
        env_workers=plan.run.env_workers,
        guard=Guard(step_timeout=plan.run.step_timeout),
        cluster=plan.run.cluster(),
        device=device_of(plan.run.device),
    )
    agent.preset = plan.preset
    return agent


def run_directory(wanted: Path | None, name: str, env: str) -> Path:
    """The one asked for, which must be new; or a new one named after what is run."""
    if wanted is not None:
        if wanted.is_dir() and any(wanted.iterdir()):
            raise ConfigError(f"{wanted} is not empty: choose another --run")
        return _made(wanted)
    place = env.replace(":", "-").replace("/", "-")
    stem = f"{name}-{place}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory, copies = Path("runs") / stem, 1
    while directory.exists():
        copies += 1
        directory = Path("runs") / f"{stem}-{copies}"
    return _made(directory)


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made: {error.strerror}") from error
    return directory
