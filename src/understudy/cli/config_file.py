"""Config files: TOML in, TOML out.

algorithm = "sac"
env = "Pendulum-v1"
gamma = 0.98              # settings of the algorithm: here, or in a table of its name

[run]                     # what happens around it
steps = 20_000

[sac]                     # goes before the top level
learning_rate = 1e-3
"""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

from understudy.algorithms.config import Config, by_topic, nearest
from understudy.cli.plan import Kind, Wishes
from understudy.errors import ConfigError

NAMES = ("algorithm", "env")  # the words at the top that are no settings


def read(path: Path) -> dict[str, Any]:
    """What the file says, and nothing yet about whether it makes sense."""
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


def wishes(path: Path, content: dict[str, Any], kind: Kind) -> tuple[Wishes, list[str]]:
    """What it wishes for this algorithm, and all that is wrong with its keys."""
    tables: dict[str, type[Config]] = {"run": kind.run_class, **kind.configs}
    top: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    problems = []
    for key, value in content.items():
        if key in tables and isinstance(value, dict):
            inside[key], unknown = _known(value, tables[key], kind.run_class, f"[{key}] ")
            problems += unknown
        elif key in tables:
            problems.append(f"{key} is the name of a table: write [{key}]")
        elif isinstance(value, dict):
            known = ", ".join(f"[{name}]" for name in tables)
            problems.append(f"unknown table [{key}]{nearest(key, tables)}; there are: {known}")
        elif key not in NAMES:
            top[key] = value
    top, unknown = _known(top, kind.config_class, kind.run_class, "")
    problems = unknown + problems
    own = inside.get(kind.name, {})
    return Wishes(inside.get("run", {}), top | own, path.name), (
        [f"{path}: {'; '.join(problems)}"] if problems else []
    )


def _known(
    values: dict[str, Any], config_class: type[Config], run_class: type[Config], place: str
) -> tuple[dict[str, Any], list[str]]:
    """Those that the class has, and what is wrong with the others."""
    names, run = _names(config_class), _names(run_class)
    problems = [
        f"{place}{key} belongs under [run]" if key in run else _unknown(key, config_class, place)
        for key in values
        if key not in names
    ]
    return {key: value for key, value in values.items() if key in names}, problems


def _unknown(key: str, config_class: type[Config], place: str) -> str:
    if not place and (meant := nearest(key, [*_names(config_class), *NAMES])):
        return f"unknown key '{key}'{meant}"
    return place + config_class.explain_unknown(key)


def _names(config_class: type[Config]) -> list[str]:
    return [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]


def text(name: str, env: str, run: Config, config: Config) -> str:
    """A file that gives all this again. `name` is the algorithm's."""
    lines = [f"algorithm = {_spelt(name)}", f"env = {_spelt(env)}"]
    for table, settings in (("run", run), (name, config)):
        lines += ["", f"[{table}]"]
        for topic, fields in by_topic(type(settings)).items():
            lines += [f"# {topic}"] if topic else []
            lines += [f"{field.name} = {_spelt(getattr(settings, field.name))}" for field in fields]
    return "\n".join(lines) + "\n"


def _spelt(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_spelt, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else repr(value)
