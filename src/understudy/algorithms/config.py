"""Configs: frozen, complete, and checked as a whole before anything starts.

`setting(default, …)` declares a field with its bounds, and whether it can move during training
(then it is an array in `state.hyper`). The docstring under a field is its help text on the command
line. All problems of a config are reported together.
"""

import ast
import contextlib
import dataclasses
import difflib
import inspect
import itertools
import math
import numbers
import re
import textwrap
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, final

from understudy.algorithms.recipes import Recipe, algorithms_with
from understudy.aliases import PLACES, VALUES, explain
from understudy.ops.schedules import Schedule, cosine, linear
from understudy.types import ConfigError


def setting(
    default: Any,
    *,
    at_least: int | float | None = None,
    at_most: int | float | None = None,
    above: int | float | None = None,
    choices: tuple[str, ...] | None = None,
    moving: bool = False,
    topic: str = "",
) -> Any:
    """Declare a config field with its bounds. `moving` fields can have schedules and can be changed
    during training; fields of one topic are listed together."""
    rules = {"at_least": at_least, "at_most": at_most, "above": above, "choices": choices}
    return dataclasses.field(default=default, metadata={**rules, "moving": moving, "topic": topic})


encoder_setting = partial(setting, topic="seeing and remembering")
optimizer_setting = partial(setting, topic="optimizer")
critic_setting = partial(setting, topic="distributional critics")

OPTIMIZERS = ("adam", "adamw", "rmsprop")


def shown_name(name: str) -> str:
    """Return the name of an algorithm or a method as it is written in text."""
    return {"map-elites": "MAP-Elites"}.get(name, name.upper())


def by_topic(config_class: type) -> dict[str, list[dataclasses.Field]]:
    """Return the fields of a config by topic; those without a topic come first, under ""."""
    topics: dict[str, list[dataclasses.Field]] = {"": []}
    for field in dataclasses.fields(config_class):
        topics.setdefault(field.metadata["topic"], []).append(field)
    return topics


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return ' (did you mean x?)', or '' if no candidate is near."""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""


@final
class _Documentation:
    """The docstring of a config class: its summary and all settings. It is made when it is read,
    because the texts come from the source."""

    def __init__(self, summary: str):
        self._summary = summary

    def __get__(self, instance: Any, owner: type) -> str:
        finished = "__match_args__" in vars(owner)  # `dataclass` reads the docstring before that
        return describe_settings(owner, self._summary) if finished else self._summary


@final
class _Signature:
    """The signature of a config class: that of its `__init__`, not of `Config.__new__`."""

    def __get__(self, instance: Any, owner: Any) -> inspect.Signature:
        signature = inspect.signature(owner.__init__)
        return signature.replace(parameters=[*signature.parameters.values()][1:])


class Config:
    """The abstract base of every algorithm's config: a frozen dataclass of settings."""

    # `coerce` checks annotations with clear messages; a type checker that ran before it would
    # raise a traceback for bad input.
    __no_type_check__ = True

    # Environment id -> settings for it, and for other versions of it (see `read_presets`).
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    # Settings of papers by name (see `read_recipes`).
    recipes: ClassVar[Mapping[str, Recipe]] = {}

    normalization = "off"  # no field here; algorithms that support BatchNorm have it as a setting

    actor_layer_norm = False  # no field either

    # Settings of its siblings that this algorithm cannot have -> why.
    refused: ClassVar[Mapping[str, str]] = {}

    __signature__ = _Signature()

    def __init_subclass__(cls) -> None:
        if cls.__doc__:
            cls.__doc__ = _Documentation(cls.__doc__)  # type: ignore[assignment]

    def __new__(cls, *args: Any, **settings: Any) -> Any:
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        unknown = [name for name in settings if name not in names]
        if unknown:
            problems = [cls.explain_unknown(name) for name in unknown]
            try:
                cls(*args, **{name: settings[name] for name in settings if name in names})
            except ConfigError as others:
                problems.append(str(others).removeprefix(f"{cls.__name__}: "))
            raise ConfigError(f"{cls.__name__}: " + "; ".join(problems))
        return super().__new__(cls)

    @classmethod
    def explain_unknown(cls, name: str) -> str:
        """Say why there is no setting of that name, or which one was probably meant."""
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        known = explain(name, names, refused=cls.refused)
        return known or f"unknown field '{name}'{nearest(name, [*names, *PLACES])}"

    def __post_init__(self) -> None:
        problems = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            try:
                value = coerce(getattr(self, field.name), field.type)
                object.__setattr__(self, field.name, value)
                problem = _out_of_bounds(value, field.metadata)
            except ValueError as error:
                problem = str(error)
                if callable(getattr(self, field.name)) and field.metadata["moving"]:
                    problem += "; agent.train(schedules=…) takes functions of the step"
            if problem:
                problems.append(f"{field.name} {problem}")
        try:
            problems += self.contradictions()
        except (TypeError, ValueError):
            if not problems:  # otherwise a field of the wrong type is already reported
                raise
        if problems:
            raise ConfigError(f"{type(self).__name__}: " + "; ".join(problems))

    def contradictions(self) -> list[str]:
        """Return the problems between fields that are each valid by itself."""
        return []

    def moving(self) -> dict[str, float]:
        """Return the settings that can move, with their initial values."""
        return {
            field.name: float(getattr(self, field.name))
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if field.metadata["moving"] and getattr(self, field.name) is not None
        }

    @property
    def batch_setting(self) -> str | None:
        """The setting by which networks use the statistics of batches; None if there is none."""
        return None

    def schedules(self) -> dict[str, Schedule]:
        """Return the config's own schedules of settings; `train(schedules=…)` overrides them."""
        return {}

    @classmethod
    def check_moving(cls, name: str, value: int | float) -> None:
        """Raise ConfigError for a value that the setting of that name cannot have."""
        field = cls.__dataclass_fields__.get(name)  # type: ignore[attr-defined]
        problem = _out_of_bounds(value, field.metadata) if field else None
        if problem:
            raise ConfigError(f"{name} {problem}")

    @classmethod
    def preset(
        cls, environment: str | None, /, *, recipe: str | None = None, **settings: Any
    ) -> Any:
        """Return the preset for an environment id (the defaults, if there is none), with a recipe
        over it and single settings over both: `us.SACConfig.preset("Ant-v5", recipe="redq")`."""
        preset = cls.presets.get(cls.preset_name(environment), {})
        return cls(**{**preset, **cls.recipe_settings(recipe), **settings})

    @classmethod
    def recipe_settings(cls, name: str | None) -> Mapping[str, Any]:
        """Return the settings of the recipe of that name; nothing for None."""
        if name is None:
            return {}
        if name not in cls.recipes:
            owners = ", ".join(map(shown_name, algorithms_with(name)))
            hint = f" (it is a recipe of {owners})" if owners else nearest(str(name), cls.recipes)
            known = ", ".join(cls.recipes) or "none"
            raise ConfigError(f"{cls.__name__}: no recipe '{name}'{hint}; there are: {known}")
        return cls.recipes[name].settings

    @classmethod
    def preset_name(cls, environment: str | None) -> str:
        """Return the name of the preset for an environment id, or "defaults"."""
        name = re.sub("^(jax|gymnax|envpool):", "", environment or "")  # the same tasks, elsewhere
        if name not in cls.presets:  # look for another version, or for a family of environments
            stem, family = name.rpartition("-v")[0], re.split("[-:/]", name)[0]
            others = (known for known in cls.presets if known.startswith(f"{stem}-v"))
            name = next(others, family if family in cls.presets else "")
        return name or "defaults"


def read_presets(config_file: str) -> dict[str, dict[str, Any]]:
    """Read `presets.toml` beside a config's file: settings by environment id.

    A table is a preset for its `environments`, by default for the one that it is named after. With
    `base` it adds to another table, of the same file or of `algorithms/presets.toml`. "none" means
    None, which TOML lacks."""
    tables: dict[str, dict[str, Any]] = {}
    for folder in (Path(__file__).parent, Path(config_file).parent):
        tables |= tomllib.loads((folder / "presets.toml").read_text(encoding="utf-8"))

    def settings(name: str) -> dict[str, Any]:
        own = {k: tuple(v) if isinstance(v, list) else v for k, v in tables[name].items()}
        own = {k: None if v == "none" else v for k, v in own.items()}
        own.pop("environments", None)
        base: Any = own.pop("base", None)
        return settings(base) | own if base else own

    return {
        environment: settings(name)
        for name, table in tables.items()
        for environment in table.get("environments", [name])
    }


def coerce(value: Any, annotation: Any) -> Any:
    """Convert a value to the annotated type if that is exact; raise ValueError otherwise.

    An int is a valid float, and a whole float (5e3) a valid int; a string is neither.
    """
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    options = typing.get_args(annotation) if is_union else (annotation,)
    for kind in options:
        if typing.get_origin(kind) is tuple:
            if isinstance(value, (list, tuple)):
                return tuple(coerce(item, typing.get_args(kind)[0]) for item in value)
        elif kind in (int, float):
            whole = _is_number(value) and math.isfinite(value) and int(value) == value
            if whole or (kind is float and _is_number(value)):
                return kind(value)
        elif isinstance(value, kind):
            return value
    raise ValueError(f"must be {_spell(options)}, got {value!r}")


def whole_number(name: str, value: Any, least: int) -> int:
    """Return an argument as an int of at least `least`, or raise ConfigError."""
    try:
        number = coerce(value, int)
    except ValueError as error:
        raise ConfigError(f"{name} {error}") from None
    if number < least:
        raise ConfigError(f"{name} must be at least {least}, got {number}")
    return number


def _is_number(value: Any) -> bool:
    """Accept NumPy's numbers too, but not True and False."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _spell(options: tuple[Any, ...]) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    spelt = (
        "none" if kind is type(None) else names.get(kind, "a list of whole numbers")
        for kind in options
    )
    return " or ".join(spelt)


def _out_of_bounds(value: Any, rules: Mapping[str, Any]) -> str | None:
    if None not in (value, rules["choices"]) and value not in rules["choices"]:
        hint = nearest(VALUES.get(str(value), str(value)), rules["choices"])
        return f"must be one of {', '.join(rules['choices'])}, got {value!r}{hint}"
    numbers = value if isinstance(value, tuple) else (value,)
    for number in numbers:
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            continue
        if not math.isfinite(number):
            return f"must be finite, got {number}"
        if rules["at_least"] is not None and number < rules["at_least"]:
            return f"must be at least {rules['at_least']:g}, got {number:g}"
        if rules["above"] is not None and number <= rules["above"]:
            return f"must be above {rules['above']:g}, got {number:g}"
        if rules["at_most"] is not None and number > rules["at_most"]:
            return f"must be at most {rules['at_most']:g}, got {number:g}"
    return None


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring under each field, read from the source of the class and its base."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        if not dataclasses.is_dataclass(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body  # type: ignore
        for statement, below in itertools.pairwise(body):
            documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(statement, ast.AnnAssign) and documented:
                docs[statement.target.id] = inspect.cleandoc(below.value.value)  # type: ignore
    return docs


def check_optimizer(config: Any) -> list[str]:
    """Return the problems between the settings of the optimizer."""
    problems = []
    if config.weight_decay is not None and config.optimizer != "adamw":
        problems.append(f"weight_decay is AdamW's: optimizer must be adamw, not {config.optimizer}")
    if config.adam_beta1 == 1.0 or config.adam_beta2 == 1.0:
        problems.append("adam_beta1 and adam_beta2 must be below 1")
    return problems


def check_rewards(config: Any) -> list[str]:
    """Return the problems between the settings of reward normalization."""
    if config.return_limit is not None and not config.normalize_rewards:
        return ["return_limit bounds normalized rewards: it needs normalize_rewards"]
    return []


def anneal_learning_rates(
    config: Config, end: float = 0.0, shape: str = "linear"
) -> dict[str, Schedule]:
    """Return schedules that decrease all learning rates to the share `end` of their start."""
    rates = {name: rate for name, rate in config.moving().items() if "learning_rate" in name}
    curve = {"linear": linear, "cosine": cosine}[shape]
    return {name: curve(rate, end * rate) for name, rate in rates.items()}


def memory_width(memory: str | None, size: int) -> int:
    """Return the length of such a cell's recurrent state; 0 without a cell."""
    cells = {None: 0, "gru": 1, "lstm": 2}
    return cells[memory] * size


def describe_settings(cls: Any, summary: str) -> str:
    """Return the summary of a config class, then type, default, bounds and text of each setting."""
    docs, lines = dict[str, str](), [inspect.cleandoc(summary)]
    with contextlib.suppress(OSError, TypeError):  # a class that has no source file
        docs = field_docs(cls)
    for topic, fields in by_topic(cls).items():
        lines += ["", f"Settings: {topic}" if topic else "Settings"]
        for field in fields:
            notes = "; ".join(_notes(field.metadata))
            kind = inspect.formatannotation(field.type)
            lines.append(f"{field.name}: {kind} = {field.default!r}" + f" ({notes})" * bool(notes))
            lines += [f"    {line}" for line in docs.get(field.name, "").splitlines()]
    return "\n".join(lines)


def _notes(rules: Mapping[str, Any]) -> list[str]:
    """Return the bounds of a setting in words, and whether it can move."""
    bounds = ("at_least", "above", "at_most")
    notes = [f"{b.replace('_', ' ')} {rules[b]:g}" for b in bounds if rules[b] is not None]
    notes += [f"one of {', '.join(rules['choices'])}"] if rules["choices"] else []
    return notes + ["can change during training"] * rules["moving"]
