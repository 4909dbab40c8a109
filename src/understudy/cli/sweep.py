"""`understudy sweep`."""

import argparse
import re
from pathlib import Path
from typing import Any

from understudy.agent import agent_class
from understudy.algorithms import available, find
from understudy.algorithms.config import Config, shown_name
from understudy.cli.flags import add_settings, flags_in, parse_value, words_of
from understudy.cli.parsing import Parser, count, device_of, entry
from understudy.cli.running import new_directory
from understudy.cli.settings import Plan, RunSettings, Schema, make_plan, takes_list, tidy
from understudy.cli.train import DEFAULT_ALGORITHM, TrainSettings, config_classes
from understudy.distributed.config import Cluster
from understudy.errors import ConfigError
from understudy.runs.config import RunConfig
from understudy.sweep import Range, SweepResult, search, sweep
from understudy.sweep.result import DIVERGED, FAILED
from understudy.sweep.vectorized import CSV, PICTURE

SECTIONS = {
    TrainSettings: ("steps", "envs"),
    RunSettings: ("seed", "device"),
    RunConfig: ("evaluation_episodes",),
}
DESCRIPTION = """\
Try many settings and rank them by their evaluations. All of them train in one program: member i
has its own settings and seed + i. Only settings that can change during training vary in this way
(learning rates, gamma, tau, noise …). With --optuna any setting can vary; trials then run one after
another, or several at a time on a Ray cluster (--address, --at-once).

A field varies over lo..hi, lo..hi:log (logarithmic) or a list a,b,c (64x64 for layers). Lists
alone make a grid; otherwise --members points are spread over the space."""


def parser(arguments: list[str]) -> Parser:
    words = words_of(arguments)
    schema = Schema(find(words[0] if words else DEFAULT_ALGORITHM).name, config_classes(), SECTIONS)
    result = Parser("sweep ALGO ENV --vary FIELD=VALUES … [flags]", DESCRIPTION, _sweep)
    result.set_defaults(schema=schema)
    add = result.add_argument
    add("algorithm", metavar="ALGO", help=f"one of {', '.join(available())}")
    add("env", metavar="ENV", help='a Gymnasium id, "jax:ID" or "atari:GAME"')
    group = result.add_argument_group("the sweep")
    add = group.add_argument
    add("--vary", action="append", default=[], metavar="FIELD=VALUES",
        help="a field that varies; may be given several times")  # fmt: skip
    add("--members", type=count, metavar="N",
        help="agents in total (default: 16 settings, or the whole grid)")  # fmt: skip
    add("--repeats", type=count, default=1, metavar="R",
        help="agents per setting, with other seeds; their mean ranks it (default: 1)")  # fmt: skip
    add("--optuna", type=Path, metavar="STUDY.db",
        help="search with Optuna; the same command continues the study in this file")  # fmt: skip
    add("--trials", type=count, metavar="N", help="trials of the search in total")
    add("--address", metavar="HOST:PORT",
        help='the Ray cluster that runs the trials; "auto" finds it')  # fmt: skip
    add("--at-once", type=count, metavar="N",
        help="trials at a time (default: one for each core of the cluster); without --address "
        "Ray is started on this machine")  # fmt: skip
    add("--run", type=Path, metavar="DIR", help="directory of the results (default: in runs/)")
    add("--quiet", action="store_true", help="show no progress bar")
    add_settings(result, group, schema, f"settings of {shown_name(schema.name)} that do not vary")
    return result


def _sweep(options: argparse.Namespace) -> None:
    flags = flags_in(options)
    plan = make_plan(options.schema, options.env, [flags], _contradictions(options))
    vary = _vary(options.vary, type(plan.config))
    both = sorted(set(vary) & flags.config.keys())
    if both:
        raise ConfigError(f"{both[0]} cannot vary and be {flags.config[both[0]]}: drop one")
    result, table, picture = _try(options, plan, vary)
    name = shown_name(plan.schema.name)
    print(f"{name} on {plan.env}, {result.train_steps:,} steps each, preset: {plan.preset}")
    print(result.table())
    print(entry("table", table))
    print(entry("picture", picture))
    if result.best.state not in (DIVERGED, FAILED):
        print(entry("best", result.command()))


def _contradictions(options: argparse.Namespace) -> list[str]:
    problems = []
    if options.optuna and options.members:
        problems.append("--members are those of one program: with --optuna give --trials")
    if options.optuna and not options.trials:
        problems.append("--optuna needs --trials")
    if options.optuna and options.run:
        problems.append("with --optuna results go beside the study: there is no --run")
    if options.trials and not options.optuna:
        problems.append("--trials are those of --optuna STUDY.db")
    for flag, value in (("--address", options.address), ("--at-once", options.at_once)):
        if value and not options.optuna:
            problems.append(f"{flag} is about trials of --optuna STUDY.db")
    return problems


def _try(
    options: argparse.Namespace, plan: Plan, vary: dict[str, Any]
) -> tuple[SweepResult, Path, Path]:
    """The result, and the paths of its table and its picture."""
    train, run = plan.run[TrainSettings], plan.run[RunSettings]
    agent = agent_class(plan.schema.name)
    shared: dict[str, Any] = {
        "steps": train.steps_on(plan.env),
        "repeats": options.repeats,
        "config": plan.config,
        "seed": run.seed,
        "num_envs": train.envs,
        "device": device_of(run.device),
        "episodes": plan.run[RunConfig].evaluation_episodes,
    }
    if not options.optuna:
        place = new_directory(options.run, f"sweep-{plan.schema.name}", plan.env)
        own = {"members": options.members, "run_dir": place, "progress": not options.quiet}
        return sweep(agent, plan.env, vary, **own, **shared), place / CSV, place / PICTURE
    study: Path = options.optuna
    result = search(
        agent,
        plan.env,
        vary,
        study,
        trials=options.trials,
        cluster=Cluster(address=options.address) if options.address or options.at_once else None,
        at_once=options.at_once,
        say=lambda line: print(line, flush=True),
        **shared,
    )
    return result, study.with_suffix(".csv"), study.with_suffix(".png")


def _vary(given: list[str], config_class: type[Config]) -> dict[str, Any]:
    """Parse each FIELD=VALUES into a range or a list."""
    if not given:
        raise ConfigError("what varies? For example: --vary learning_rate=1e-4..1e-2:log")
    vary: dict[str, Any] = {}
    for text in given:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values:
            raise ConfigError(f"--vary {text}: must be FIELD=lo..hi, FIELD=lo..hi:log or FIELD=a,b")
        if name in vary:
            raise ConfigError(f"--vary {name} is given twice")
        field = getattr(config_class, "__dataclass_fields__", {}).get(name)
        if field is None:
            raise ConfigError(f"--vary: {config_class.explain_unknown(name)}")
        layers = takes_list(field.type)
        vary[name] = _range(text, values) or [
            tidy(config_class, {name: _value(item, layers)})[name] for item in values.split(",")
        ]
    return vary


def _range(text: str, values: str) -> Range | None:
    found = re.fullmatch(r"(.+?)\.\.(.+?)(:log)?", values)
    if found is None:
        return None
    try:
        return Range(float(found[1]), float(found[2]), log=found[3] is not None)
    except ValueError:
        raise ConfigError(f"--vary {text}: a range is lo..hi or lo..hi:log") from None


def _value(item: str, layers: bool) -> Any:
    return tuple(parse_value(part) for part in item.split("x")) if layers else parse_value(item)
