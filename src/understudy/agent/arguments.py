"""The arguments of agents: their config, and answers to names of other libraries."""

import dataclasses
import inspect
import logging
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from understudy.algorithms.config import Config, nearest
from understudy.aliases import POLICIES, explain
from understudy.errors import ConfigError

GIVEN = "given"  # the name of the preset of an agent that got a whole config
MOST_DEPARTURES = 6  # that a line names

_log = logging.getLogger("understudy.presets")

P = ParamSpec("P")
R = TypeVar("R")


def choose_config(
    config_class: type[Config], environment: str | None, config: Any, settings: Mapping[str, Any]
) -> tuple[Any, str]:
    """Return the given config as it is, or the environment's preset with these settings over it,
    one of which may be a recipe; and the sources of its values in words."""
    if config is None:
        made, name = (
            config_class.preset(environment, **settings),
            config_class.preset_name(environment),
        )
        if settings.get("recipe") is not None:
            name += f", recipe {settings['recipe']}"
        fields = [field for field in settings if field != "recipe"]
        over = ", ".join(f"{field}={getattr(made, field)!r}" for field in fields)
        return made, f"{name} with {over}" if over else name
    if settings:
        names = [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
        names.append("recipe")
        problems = [config_class.explain_unknown(name) for name in settings if name not in names]
        both = (
            f"give a config or single settings ({', '.join(settings)}), not both: "
            "dataclasses.replace(config, …) changes a config, settings alone change the preset"
        )
        raise ConfigError("; ".join(problems or [both]))
    return config, GIVEN


def tell_departures(agent: Any, done: int) -> None:
    """Before the first of its steps, log where the config that an agent was given departs from the
    preset of its environment."""
    if agent.preset == GIVEN and not done:
        log_departures(agent.config, agent.config.preset_name(agent.env_name))


@cache  # logs once
def log_departures(config: Config, name: str) -> None:
    """Log in which fields a config departs from the preset of that name."""
    usual = config.preset(name)
    departures = [
        f"{field.name} {getattr(config, field.name)!r} (preset {getattr(usual, field.name)!r})"
        for field in dataclasses.fields(config)  # type: ignore[arg-type]
        if getattr(config, field.name) != getattr(usual, field.name)
    ]
    if name in config.presets and departures:
        more = len(departures) - MOST_DEPARTURES
        words = departures[:MOST_DEPARTURES] + [f"{more} more"] * (more > 0)
        kind = type(config).__name__
        _log.warning("this %s departs from the preset %s: %s", kind, name, ", ".join(words))


def check_names(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse a policy's name as the first argument, and keyword arguments that the function does
    not have: say which name to use instead."""
    signature = inspect.signature(function).parameters
    takes_settings = any(one.kind is one.VAR_KEYWORD for one in signature.values())
    known = [name for name in signature if name != "self"]

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        for policy in (word for word in args[1:2] if isinstance(word, str) and word in POLICIES):
            raise ConfigError(
                f"'{policy}' is not needed: the first argument is the environment, and its spaces "
                "choose the networks (hidden_sizes, activation and encoder change them)"
            )
        unknown = [] if takes_settings else [name for name in named if name not in signature]
        if unknown:
            words = (
                explain(name, known) or f"unknown argument '{name}'{nearest(name, known)}"
                for name in unknown
            )
            raise ConfigError(f"{function.__name__}: {'; '.join(words)}")
        return function(*args, **named)

    return call


def miss(agent: Any, name: str) -> NoReturn:
    """Raise the error for an attribute that an agent does not have."""
    hint = explain(name, dir(type(agent)), "agent.{}".format)
    default = f"'{type(agent).__name__}' object has no attribute '{name}'"
    raise AttributeError(hint or default, name=name, obj=agent)
