"""Flags made from the fields of config classes; their help is the fields' docstrings."""

import argparse
import dataclasses
from collections import ChainMap
from collections.abc import Collection
from pathlib import Path
from typing import Any

from understudy.algorithms.config import Config, by_topic, field_docs, shown_name
from understudy.cli import config_file
from understudy.cli.parsing import Parser, add_env_args, parse_value, show
from understudy.cli.settings import Plan, Schema, field_names, make_plan, takes_list

ENVIRONMENT = "a Gymnasium id, or a name such as jax:Pendulum-v1 (see understudy list envs)"
SWITCHES = ("--quiet", "--print-config")  # flags without a value
PRECEDENCE = """\
A flag overrides the file, the file overrides the environment's preset (understudy list presets),
and the preset overrides the defaults shown here. A recipe (understudy list recipes) comes between
the file and the preset. "none" means no value."""


def read_config_file(arguments: list[str]) -> dict[str, Any]:
    """The content of the file that `--config` names; empty without that flag."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config", nargs="?")  # the parser of the command refuses one without file
    path = early.parse_known_args(arguments)[0].config
    return config_file.read(Path(path)) if path else {}


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


def add_run(parser: Parser, kind: str, schema: Schema, env: str, content: dict[str, Any]) -> None:
    """Add the arguments of a command that starts a run. `kind` is the name of the first one in the
    usage, `content` that of the config file."""
    parser.epilog = PRECEDENCE
    parser.set_defaults(content=content, chosen_env=env)
    names = f"one of {', '.join(schema.configs)}"
    parser.add_argument("name", nargs="?", metavar=kind, help=names)
    parser.add_argument("env", nargs="?", metavar="ENV", help=ENVIRONMENT)
    group = parser.add_argument_group("the run")
    add = group.add_argument
    add("--run", type=Path, metavar="DIR", help="run directory (default: a new one in runs/)")
    add("--config", type=Path, metavar="FILE", help="TOML file of settings (docs/command_line.md)")
    add("--print-config", action="store_true", help="print all settings as such a file and exit")
    add("--quiet", action="store_true", help="show no progress bar")
    add_env_args(group)
    add_settings(parser, group, schema, f"settings of {shown_name(schema.name)}")


def add_settings(parser: Parser, group: Any, schema: Schema, title: str) -> None:
    """Add a flag for every setting: those of the run to `group`, those of the algorithm to a group
    for each topic."""
    parser.set_defaults(schema=schema)
    for section, names in schema.sections.items():
        _add_fields(group, section, names)
    for topic, fields in by_topic(schema.config_class).items():
        own = parser.add_argument_group(title + f": {topic}" * bool(topic))
        _add_fields(own, schema.config_class, [field.name for field in fields])
    configs = [one for one in (schema.config_class, *schema.sections) if issubclass(one, Config)]
    parser.refused = ChainMap(*(dict(one.refused) for one in configs))


def _add_fields(group: Any, config_class: type, names: Collection[str]) -> None:
    docs = field_docs(config_class)
    for field in dataclasses.fields(config_class):
        if field.name not in names:
            continue
        choices = field.metadata.get("choices")
        notes = [", ".join(choices)] if choices else []
        if field.default not in (None, ()):
            notes.append(f"default: {show(field.default)}")
        shown = " ".join(docs[field.name].split()).rstrip(".")
        shown += f" ({'; '.join(notes)})" if notes else ""
        several = field.type == tuple[str, ...]  # may also be given one by one
        group.add_argument(
            "--" + field.name.replace("_", "-"),
            action="extend" if several else "store",
            type=(lambda text: text.split(",")) if several else parse_value,
            metavar=_placeholder(field.type),
            help=shown.replace("%", "%%"),
        )


def _placeholder(annotation: Any) -> str:
    if takes_list(annotation):
        return "A,B"
    for kind, shown in ((bool, "true|false"), (int, "N"), (float, "X")):
        if annotation in (kind, kind | None):
            return shown
    return "WORD"


def flags_in(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that are given as flags."""
    names = {*options.schema.run_names, *field_names(options.schema.config_class)}
    given = vars(options).items()
    return {name: value for name, value in given if name in names and value is not None}


def plan_run(options: argparse.Namespace) -> Plan:
    """The plan that the flags and the config file of an `add_run` command ask for."""
    schema, layers, problems, env_args = options.schema, {}, [], {}
    if options.config is not None:
        if options.content.get("env", options.chosen_env) == options.chosen_env:
            env_args = config_file.env_args_in(options.content)
        values, problems = config_file.settings_in(options.config, options.content, schema)
        layers[options.config.name] = values
    layers["your flags"] = flags_in(options)
    plan = make_plan(schema, options.chosen_env, layers, problems)
    return dataclasses.replace(plan, env_args=env_args | dict(options.env_arg))
