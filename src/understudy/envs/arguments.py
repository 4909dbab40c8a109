"""The keyword arguments of an environment that is given by its name. Free of JAX: environment
workers import it."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from gymnasium.envs.registration import EnvSpec, load_env_creator

from understudy.errors import ConfigError, EnvironmentError

EnvArgs = Mapping[str, Any]


def check_env_args(given: Any) -> dict[str, Any]:
    """Return the arguments, with tuples for lists. They are data that JSON can store."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"env_args must be a dict of names and values, got {given!r:.100}")
    for name, value in given.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ConfigError(f"env_args: {name!r:.60} cannot be the name of an argument")
        if not all(map(_is_plain, value if isinstance(value, list | tuple) else [value])):
            raise ConfigError(
                f"env_args: {name} must be a number, a bool, None, a string or a tuple of these, "
                f"got {value!r:.60}; for other values give a callable that makes the environment"
            )
    return {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def show_env_args(args: EnvArgs) -> str:
    """The arguments in words: frame_skip=2, xml_file='ant.xml'."""
    return ", ".join(f"{name}={value!r}" for name, value in args.items())


def refuse_env_args(name: str, args: EnvArgs, why: str) -> None:
    if args:
        raise EnvironmentError(f'"{name}" does not take env_args {show_env_args(args)}: {why}')


def check_fields(name: str, made: type, args: EnvArgs, hidden: Iterable[str] = ()) -> None:
    """Refuse arguments that are no fields of the dataclass `made`, or have another type."""
    fields: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(made)}
    known = {field: kind for field, kind in fields.items() if field not in hidden}
    for argument, value in args.items():
        kind: Any = known.get(argument)
        accepted = {float: (float, int), int: (int,), bool: (bool,), str: (str,)}.get(kind)
        if argument not in known or (accepted and type(value) not in accepted):
            problem = f"{argument} must be of type {kind.__name__}" if accepted else "no such name"
            raise cannot_be_made(name, args, problem, made, hidden)


def cannot_be_made(
    name: str | None, args: EnvArgs, problem: str, creator: Any, hidden: Iterable[str] = ()
) -> EnvironmentError:
    """Make the error for arguments with which an environment cannot be made. `creator` takes them,
    or is its signature as text."""
    return EnvironmentError(
        f"{name or 'the environment'} cannot be made with env_args {show_env_args(args)}: "
        f"{problem}; its arguments are {_signature(_creator_of(creator), hidden)}"
    )


def _creator_of(factory: Any) -> Callable[..., Any]:
    """The class, or the function, whose arguments are the arguments of the environment."""
    if isinstance(factory, partial) and factory.args and isinstance(factory.args[0], EnvSpec):
        entry = factory.args[0].entry_point
        return load_env_creator(entry) if isinstance(entry, str) else entry or factory
    return factory.func if isinstance(factory, partial) else factory


def _signature(creator: Any, hidden: Iterable[str]) -> str:
    if isinstance(creator, str):
        return creator
    try:
        signature = inspect.signature(creator)
    except (TypeError, ValueError):  # some functions in C have none
        return "unknown"
    shown = [
        parameter.replace(annotation=parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name not in hidden
    ]
    return str(signature.replace(parameters=shown, return_annotation=signature.empty))
