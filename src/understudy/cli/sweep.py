"""`understudy sweep`."""

import argparse
import re
import time
from pathlib import Path
from typing import Any

from understudy.agent import agent_class
from understudy.algorithms import available, find
from understudy.algorithms.config import Config
from understudy.cli.parsing import Parser, count, device_of
from understudy.cli.plan import Plan, RunSettings, Wishes, make_plan, takes_a_list, tidied
from understudy.cli.train import (
    DEFAULT_ALGORITHM,
    add_fields,
    add_settings,
    given,
    value_of,
    words_of,
)
from understudy.distributed.config import Cluster
from understudy.errors import ConfigError
from understudy.sweep import Range, SweepResult, search, sweep
from understudy.sweep.result import DIVERGED, FAILED
from understudy.sweep.vectorized import CSV, PICTURE

RUN_FLAGS = ("steps", "seed", "envs", "evaluation_episodes", "device")
DESCRIPTION = """\
Try many settings and rank them by their evaluations. They are the members of one program:
member i has its own settings and seed + i. Only settings that can move vary so (learning rates,
gamma, tau, noise …); with --optuna any setting does, one training after another, or many at
once on a Ray cluster (--address, --at-once).

A field varies over lo..hi, lo..hi:log (by factors) or a list a,b,c (64x64 for layers). Lists
alone make a grid; otherwise --members of them are spread over the space."""


def parser(arguments: list[str]) -> Parser:
    words = words_of(arguments)
    algorithm = find(words[0] if words else DEFAULT_ALGORITHM)
    result = Parser(
        prog="understudy sweep",
        usage="understudy sweep ALGO ENV --vary FIELD=VALUES … [flags]",
        description=DESCRIPTION,
    )
    result.set_defaults(command=_sweep, found=algorithm)
    result.refused = algorithm.config_class.refused
    result.renamed = algorithm.config_class.renamed
    add = result.add_argument
    add("algorithm", metavar="ALGO", help=f"one of {', '.join(available())}")
    add("env", metavar="ENV", help='a Gymnasium id, "jax:ID" or "atari:GAME"')
    group = result.add_argument_group("the sweep")
    add = group.add_argument
    add("--vary", action="append", default=[], metavar="FIELD=VALUES",
        help="what varies; may be given several times")  # fmt: skip
    add("--members", type=count, metavar="N",
        help="members in all (default: 16 settings, or the whole grid)")  # fmt: skip
    add("--repeats", type=count, default=1, metavar="R",
        help="members of each setting, of other seeds; their mean counts (default: 1)")  # fmt: skip
    add("--optuna", type=Path, metavar="STUDY.db",
        help="search one after another; the same command again goes on")  # fmt: skip
    add("--trials", type=count, metavar="N", help="trainings of such a search, in all")
    add("--address", metavar="HOST:PORT",
        help='the Ray cluster whose processes are such trials; "auto" finds it')  # fmt: skip
    add("--at-once", type=count, metavar="N",
        help="trials at a time (default: one for each core of the cluster); without --address "
        "Ray is started on this machine")  # fmt: skip
    add("--run", type=Path, metavar="DIR", help="where results go (default: a new one in runs/)")
    add("--quiet", action="store_true", help="no progress bar")
    add_fields(group, RunSettings, "run", RUN_FLAGS)
    title = f"settings of {algorithm.name.upper()} that do not vary"
    add_settings(result, title, algorithm.config_class)
    return result


def _sweep(options: argparse.Namespace) -> None:
    flags = Wishes(given(options, "run:"), given(options, "config:"), "your flags")
    plan = make_plan(options.found, options.env, [flags], _contradictions(options))
    vary = _vary(options.vary, type(plan.config))
    both = sorted(set(vary) & flags.config.keys())
    if both:
        raise ConfigError(f"{both[0]} cannot vary and be {flags.config[both[0]]}: drop one")
    result, table, picture = (_search if options.optuna else _at_once)(options, plan, vary)
    name = plan.algorithm.name.upper()
    print(f"{name} on {plan.env}, {plan.run.steps:,} steps each, preset: {plan.preset}")
    print(result.table())
    print(f"table           {table}")
    print(f"picture         {picture}")
    if result.best.state not in (DIVERGED, FAILED):
        print(f"best            {result.command()}")


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


def _at_once(
    options: argparse.Namespace, plan: Plan, vary: dict[str, Any]
) -> tuple[SweepResult, Path, Path]:
    directory = _directory(options.run, plan)
    result = sweep(
        agent_class(plan.algorithm.name),
        plan.env,
        vary,
        members=options.members,
        run_dir=directory,
        progress=not options.quiet,
        **_common(options, plan),
    )
    return result, directory / CSV, directory / PICTURE


def _search(
    options: argparse.Namespace, plan: Plan, vary: dict[str, Any]
) -> tuple[SweepResult, Path, Path]:
    database: Path = options.optuna
    elsewhere = options.address or options.at_once
    result = search(
        agent_class(plan.algorithm.name),
        plan.env,
        vary,
        database,
        trials=options.trials,
        cluster=Cluster(address=options.address) if elsewhere else None,
        at_once=options.at_once,
        say=lambda line: print(line, flush=True),
        **_common(options, plan),
    )
    return result, database.with_suffix(".csv"), database.with_suffix(".png")


def _common(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    assert plan.run.steps is not None
    return {
        "steps": plan.run.steps,
        "repeats": options.repeats,
        "config": plan.config,
        "seed": plan.run.seed,
        "num_envs": options.__dict__["run:envs"] and plan.run.envs,  # the best command's --envs
        "device": device_of(plan.run.device),
        "episodes": plan.run.evaluation_episodes,
    }


def _directory(wanted: Path | None, plan: Plan) -> Path:
    """Where results will go, once there are any."""
    if wanted is not None:
        if wanted.is_dir() and any(wanted.iterdir()):
            raise ConfigError(f"{wanted} is not empty: choose another --run")
        return wanted
    env = plan.env.replace(":", "-").replace("/", "-")
    return Path("runs") / f"sweep-{plan.algorithm.name}-{env}-{time.strftime('%Y%m%d-%H%M%S')}"


def _vary(given: list[str], config_class: type[Config]) -> dict[str, Any]:
    """FIELD=VALUES, each, as ranges and lists."""
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
        layers = takes_a_list(field.type)
        vary[name] = _range(text, values) or [
            tidied(config_class, {name: _value(item, layers)})[name] for item in values.split(",")
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
    return tuple(value_of(part) for part in item.split("x")) if layers else value_of(item)
