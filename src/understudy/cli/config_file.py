"""Config files: TOML in, TOML out.

algorithm = "sac"
env = "Pendulum-v1"
gamma = 0.98              # settings of the algorithm: here, or in a table of its name

[run]                     # settings of the run
steps = 20_000

[sac]                     # overrides the top level
learning_rate = 1e-3

[env_args]                # keyword arguments of the environment
g = 9.81
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from understudy.algorithms.config import by_topic, nearest
from understudy.aliases import explain
from understudy.cli.settings import Plan, Schema, field_names
from understudy.errors import ConfigError

NAMES = ("algorithm", "env")  # the keys at the top that are no settings
ENV_ARGS = "env_args"  # the table that holds no settings


def read(path: Path) -> dict[str, Any]:
    """Parse the file. Its keys are not checked yet."""
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    for name in NAMES:
        if not isinstance(content.get(name, ""), str):
            raise ConfigError(f"{path}: {name} must be a word in quotes, got {content[name]!r}")
    return content


def settings_in(
    path: Path, content: dict[str, Any], schema: Schema
) -> tuple[dict[str, Any], list[str]]:
    """The settings in a file that apply to the schema's algorithm, and what is wrong with its
    keys."""
    known = {"run": schema.run_names}
    known |= {name: field_names(config) for name, config in schema.configs.items()}
    found: dict[str, dict[str, Any]] = {"": {}, **{table: {} for table in known}}
    problems = []
    for key, value in content.items():
        if key == ENV_ARGS:
            problems += [] if isinstance(value, dict) else [f"{key} is a table: write [{key}]"]
        elif key in known and isinstance(value, dict):
            found[key] = value
        elif key in known:
            problems.append(f"{key} is the name of a table: write [{key}]")
        elif isinstance(value, dict):
            tables = [*known, ENV_ARGS]
            shown = ", ".join(f"[{name}]" for name in tables)
            problems.append(f"unknown table [{key}]{nearest(key, tables)}; there are: {shown}")
        elif key not in NAMES:
            found[""][key] = value
    known[""] = known[schema.name]
    for table, values in found.items():
        unknown = [key for key in values if key not in known[table]]
        problems += [_explain_unknown(key, table, schema) for key in unknown]
        found[table] = {key: value for key, value in values.items() if key in known[table]}
    settings = found["run"] | found[""] | found[schema.name]
    return settings, [f"{path}: {'; '.join(problems)}"] if problems else []


def env_args_in(content: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of the environment in a file. "none" means None, which TOML lacks."""
    table = content.get(ENV_ARGS)
    given = table.items() if isinstance(table, dict) else ()
    return {name: None if value == "none" else value for name, value in given}


def _explain_unknown(key: str, table: str, schema: Schema) -> str:
    place = f"[{table}] " if table else ""
    if table == "run":
        meant = explain(key, schema.run_names)
        return place + (meant or f"unknown field '{key}'{nearest(key, schema.run_names)}")
    if key in schema.run_names:
        return f"{place}{key} belongs under [run]"
    config_class = schema.configs[table or schema.name]
    names = [*field_names(config_class), *NAMES]
    if not table and not explain(key, names) and (meant := nearest(key, names)):
        return f"unknown key '{key}'{meant}"
    return place + config_class.explain_unknown(key)


def text(plan: Plan) -> str:
    """A file that gives the same plan again."""
    name, schema = plan.schema.name, plan.schema
    lines = [f"algorithm = {_spell(name)}", f"env = {_spell(plan.env)}", "", "[run]"]
    for section, names in schema.sections.items():
        lines += [f"{key} = {_spell(getattr(plan.run[section], key))}" for key in names]
    lines += ["", f"[{name}]"]
    for topic, fields in by_topic(schema.config_class).items():
        lines += [f"# {topic}"] if topic else []
        lines += [f"{field.name} = {_spell(getattr(plan.config, field.name))}" for field in fields]
    if plan.env_args:
        lines += ["", f"[{ENV_ARGS}]"]
        lines += [f"{name} = {_spell(value)}" for name, value in plan.env_args.items()]
    return "\n".join(lines) + "\n"


def _spell(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_spell, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else repr(value)
