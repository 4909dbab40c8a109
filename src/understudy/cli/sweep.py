"""Try many settings and rank them by their evaluations. All of them train in one program: member i
has its own settings and seed + i. Only settings that can change during training vary in this way
(learning rates, gamma, tau, noise …). With --optuna any setting can vary; trials then run one after
another, or several at a time on a Ray cluster (--address, --at-once).

A field varies over lo..hi, lo..hi:log (logarithmic) or a list a,b,c (64x64 for layers). Lists
alone make a grid; otherwise --members points are spread over the space."""

import argparse
import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Any, final

from understudy.agent import agent_class
from understudy.algorithms import available, find
from understudy.algorithms.config import Config, setting, shown_name
from understudy.cli import settings
from understudy.cli.flags import ENVIRONMENT, add_settings, flags_in, words_of
from understudy.cli.parsing import Parser, add_env_args, device_of, entry, parse_value
from understudy.cli.running import new_directory
from understudy.cli.train import DEFAULT_ALGORITHM, TrainSettings, config_classes
from understudy.distributed.config import Cluster
from understudy.errors import ConfigError
from understudy.runs.config import RunConfig
from understudy.sweep import Range, SweepResult, search, sweep
from understudy.sweep.result import DIVERGED, FAILED
from understudy.sweep.vectorized import CSV, PICTURE

USAGE = "sweep ALGO ENV --vary FIELD=VALUES … [flags]"


@final
@dataclasses.dataclass(frozen=True)
class SweepSettings(Config):
    """Settings of `understudy sweep` alone."""

    members: int | None = setting(None, at_least=1)
    """Agents in total (default: 16 settings, or the whole grid)."""
    repeats: int = setting(1, at_least=1)
    """Agents per setting, with different seeds; their mean ranks the setting."""
    optuna: str | None = setting(None)
    """File of a search with Optuna, such as study.db; the same command continues the search."""
    trials: int | None = setting(None, at_least=1)
    """Trials of the search in total."""
    address: str | None = setting(None)
    """The Ray cluster that runs the trials: auto, or host:port."""
    at_once: int | None = setting(None, at_least=1)
    """Trials at a time (default: one for each core of the cluster); without an address Ray is
    started on this machine."""

    def contradictions(self) -> list[str]:
        rules = {
            "--trials are those of --optuna STUDY.db": self.trials,
            "--address is about trials of --optuna STUDY.db": self.address,
            "--at-once is about trials of --optuna STUDY.db": self.at_once,
        }
        if self.optuna:
            rules = {
                "--members are those of one program: with --optuna give --trials": self.members,
                "--optuna needs --trials": not self.trials,
            }
        return [problem for problem, broken in rules.items() if broken]


SECTIONS = {
    SweepSettings: settings.field_names(SweepSettings),
    TrainSettings: ("steps", "envs", "recipe"),
    settings.RunSettings: ("seed", "device"),
    RunConfig: ("evaluation_episodes",),
}


def add_flags(parser: Parser, arguments: list[str]) -> None:
    words = words_of(arguments)
    name = find(words[0] if words else DEFAULT_ALGORITHM).name
    schema = settings.Schema(name, config_classes(), SECTIONS)
    parser.add_argument("algorithm", metavar="ALGO", help=f"one of {', '.join(available())}")
    parser.add_argument("env", metavar="ENV", help=ENVIRONMENT)
    group = parser.add_argument_group("the sweep")
    add = group.add_argument
    what = "a field that varies; may be given several times"
    add("--vary", action="append", default=[], metavar="FIELD=VALUES", help=what)
    add("--run", type=Path, metavar="DIR", help="directory of the results (default: in runs/)")
    add("--quiet", action="store_true", help="show no progress bar")
    add_env_args(group)
    add_settings(parser, group, schema, f"settings of {shown_name(schema.name)} that do not vary")


def run(options: argparse.Namespace) -> None:
    flags = flags_in(options)
    problems = []
    if options.run and "optuna" in flags:
        problems = ["with --optuna results go beside the study: there is no --run"]
    plan = settings.make_plan(options.schema, options.env, {"your flags": flags}, problems)
    vary = _vary(options.vary, type(plan.config))
    both = sorted(set(vary) & flags.keys())
    if both:
        raise ConfigError(f"{both[0]} cannot vary and be {flags[both[0]]}: drop one")
    result, table, picture = _try(options, plan, vary)
    name = shown_name(plan.schema.name)
    print(f"{name} on {plan.env}, {result.train_steps:,} steps each, preset: {plan.preset}")
    print(result.table())
    print(entry("table", table))
    print(entry("picture", picture))
    if result.best.state not in (DIVERGED, FAILED):
        print(entry("best", result.command()))


def _try(
    options: argparse.Namespace, plan: settings.Plan, vary: dict[str, Any]
) -> tuple[SweepResult, Path, Path]:
    """The result, and the paths of its table and its picture."""
    own, train, run = (
        plan.run[one] for one in (SweepSettings, TrainSettings, settings.RunSettings)
    )
    agent = agent_class(plan.schema.name)
    shared: dict[str, Any] = {
        "steps": train.steps_on(plan.env),
        "repeats": own.repeats,
        "config": plan.config,
        "seed": run.seed,
        "num_envs": train.envs,
        "env_args": dict(options.env_arg),
        "device": device_of(run.device),
        "episodes": plan.run[RunConfig].evaluation_episodes,
    }
    if own.optuna is None:
        place = new_directory(options.run, f"sweep-{plan.schema.name}", plan.env)
        shared |= {"members": own.members, "run_dir": place, "progress": not options.quiet}
        return sweep(agent, plan.env, vary, **shared), place / CSV, place / PICTURE
    study = Path(own.optuna)
    cluster = Cluster(address=own.address) if own.address or own.at_once else None
    shared |= {"trials": own.trials, "cluster": cluster, "at_once": own.at_once}
    result = search(agent, plan.env, vary, study, say=partial(print, flush=True), **shared)
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
        layers = settings.takes_list(field.type)
        vary[name] = _range(text, values) or [
            settings.tidy(config_class, {name: _value(item, layers)})[name]
            for item in values.split(",")
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
