"""The settings of a run: flags over a file over a recipe over the environment's preset over the
defaults.

A setting is a field of a config class. The class declares it once: its flag, its key in a file, its
check and its help come from there.
"""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, final

from understudy.algorithms.config import Config, nearest, setting
from understudy.errors import ConfigError
from understudy.runs.loggers import BY_NAME


@final
@dataclasses.dataclass(frozen=True)
class RunSettings(Config):
    """Settings that `understudy train` and `understudy illuminate` share."""

    seed: int = setting(0, at_least=0)
    """Seed of all random numbers; with several seeds, the first of them."""
    env_workers: int = setting(0, at_least=0)
    """Worker processes that step the environments; with 0 this process steps them."""
    logger: tuple[str, ...] = setting(())
    """Loggers beside progress.csv: tensorboard, wandb, mlflow, or several, separated by commas."""
    device: str = setting("auto", choices=("auto", "cpu", "gpu"))
    """Device to compute on; auto leaves the choice to JAX."""

    def contradictions(self) -> list[str]:
        return [
            f"unknown logger '{name}'{nearest(name, BY_NAME)}; there are: {', '.join(BY_NAME)}"
            for name in self.logger
            if name not in BY_NAME
        ]


def field_names(config_class: type) -> list[str]:
    return [field.name for field in dataclasses.fields(config_class)]


@final
@dataclasses.dataclass(frozen=True)
class Schema:
    """All settings that a command takes."""

    name: str
    """The algorithm or the method."""
    configs: Mapping[str, type[Config]]
    """The config classes of all algorithms or methods, by name."""
    sections: Mapping[type, Sequence[str]]
    """The classes whose fields are the settings of the run -> the fields that can be set."""

    @property
    def config_class(self) -> type[Config]:
        return self.configs[self.name]

    @property
    def run_names(self) -> list[str]:
        return [name for names in self.sections.values() for name in names]


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """A run before it starts."""

    schema: Schema
    env: str
    run: dict[type, Any]
    """An instance of each of the schema's sections, and the config."""
    config: Any
    preset: str
    """The sources of the settings, in words."""
    env_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The keyword arguments of the environment."""


def make_plan(
    schema: Schema, env: str, layers: Mapping[str, dict[str, Any]], problems: list[str]
) -> Plan:
    """Merge the layers (settings by their source), later ones over earlier ones, and check the
    result. `problems` that are known already are reported together with those found here."""
    config_class = schema.config_class
    sections = {config_class: field_names(config_class), **schema.sections}
    given = {name: value for values in layers.values() for name, value in values.items()}
    recipe = None if given.get("recipe") in (None, "none") else str(given["recipe"])
    sources = [config_class.preset_name(env)] + ([f"recipe {recipe}"] if recipe else [])
    own_names = set(sections[config_class])
    sources += [source for source, values in layers.items() if own_names.intersection(values)]
    made, problems = {}, [*problems]
    for section, names in sections.items():
        own = {name: given[name] for name in names if name in given}
        prefix = f"{section.__name__}: " if section in schema.sections else ""
        try:
            own = tidy(section, own)
            is_config = section is config_class
            make = partial(config_class.preset, env, recipe=recipe) if is_config else section
            made[section] = make(**own)
        except ConfigError as error:
            problems.append(str(error).removeprefix(prefix))
    if problems:
        raise ConfigError("; ".join(problems))
    named = " and ".join([", ".join(sources[:-1]), sources[-1]] if sources[1:] else sources)
    return Plan(schema, env, made, made[config_class], named)


def tidy(config_class: type, values: dict[str, Any]) -> dict[str, Any]:
    """Turn "none" into None, which TOML lacks, and a single value into a list where a list is
    expected."""
    kinds = {field.name: field.type for field in dataclasses.fields(config_class)}
    result = {}
    for name, value in values.items():
        if isinstance(value, str) and value.lower() == "none":
            value = None
        elif value is not None and takes_list(kinds[name]) and not isinstance(value, list | tuple):
            value = (value,)
        if kinds[name] == tuple[str, ...]:
            value = [item for item in value or () if item != "none"]
        result[name] = value
    return result


def takes_list(annotation: Any) -> bool:
    return any(
        typing.get_origin(kind) is tuple for kind in (annotation, *typing.get_args(annotation))
    )
