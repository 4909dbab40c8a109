"""Changes of the environments of a training: attributes that are set, methods that are called.

A change is recorded, and applied to each environment at its next reset. So an environment that is
made again (after a fault, or by a resumed run) can get exactly the changes that it had. Free of
JAX: environment workers import it.
"""

import copy
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from understudy.errors import ConfigError, EnvironmentError

SET, CALL, GET = "set_attr", "call", "get_attr"
LARGEST_VALUE = 100_000  # characters of JSON
MOST_CALLS = 1_000
MOST_ENTRIES = 100_000  # of a file


class Change(NamedTuple):
    """One change of all environments."""

    number: int
    """How many changes came before it, in the whole run."""
    kind: str
    name: str
    value: Any
    """The attribute's value, or the list of the method's arguments."""

    def apply(self, env: Any) -> None:
        value = copy.deepcopy(self.value)  # environments may keep or change what they are given
        if self.kind == SET:
            env.set_wrapper_attr(self.name, value)
        else:
            env.get_wrapper_attr(self.name)(*value)

    def __str__(self) -> str:
        values = self.value if self.kind == CALL else [self.value]
        shown = ", ".join(f"{value!r:.60}" for value in (self.name, *values))
        return f"agent.envs.{self.kind}({shown})"


@final
class EnvChanges:
    """The changes of a run that an environment may still need, in their order."""

    def __init__(self, total: int = 0, entries: Iterable[Sequence[Any]] = ()):
        self.total = total
        """The number of all changes so far."""
        self.entries = [Change(*entry) for entry in entries]

    def add(self, kind: str, name: str, value: Any, applied: np.ndarray) -> None:
        """Record a change. `applied` [rows] says with how many changes each row's open episode
        began; entries that no row needs any more are dropped."""
        change = Change(self.total, kind, name, value)
        _check_json(change)
        if kind == CALL and sum(one.kind == CALL for one in self.entries) >= MOST_CALLS:
            raise ConfigError(
                f"agent.envs.call was used {MOST_CALLS:,} times: a resumed run would repeat all of "
                "them; use agent.envs.set_attr, which keeps the last value only"
            )
        self.total += 1
        self.entries.append(change)
        self.entries = [one for one in self.entries if not self._is_superseded(one, applied)]

    def _is_superseded(self, change: Change, applied: np.ndarray) -> bool:
        """Whether a later value replaces this one in every row, and no method is called between."""
        if change.kind == CALL:
            return False
        for later in self.entries:
            if later.number > change.number:
                if later.kind == CALL:
                    return False
                if later.name == change.name:
                    between = (change.number < applied) & (applied <= later.number)
                    return not between.any()
        return False

    def between(self, start: int, stop: int) -> list[Change]:
        """Return the changes from number `start` to `stop` - 1."""
        return [one for one in self.entries if start <= one.number < stop]

    def state_dict(self) -> dict[str, Any]:
        """Return JSON values for the manifest of a checkpoint."""
        return {"total": self.total, "entries": [list(one) for one in self.entries]}


def is_state(value: Any) -> bool:
    """Whether a manifest's entry is one that `EnvChanges.state_dict` could have returned."""
    if not isinstance(value, dict) or value.keys() != {"total", "entries"}:
        return False
    total, entries, least = value["total"], value["entries"], 0
    if not isinstance(entries, list) or len(entries) > MOST_ENTRIES or type(total) is not int:
        return False
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 4:
            return False
        number, kind, name, content = entry
        if type(number) is not int or not least <= number < total or not isinstance(name, str):
            return False
        if kind not in (SET, CALL) or (kind == CALL and not isinstance(content, list)):
            return False
        least = number + 1
    return total >= least


def inspect(environments: Sequence[Any], first_row: int, kind: str, name: str) -> list[Any]:
    """Check that every environment has an attribute, or a method if it is to be called. Return its
    values if they are asked for."""
    if not environments:
        raise EnvironmentError("these environments are closed")
    values = []
    for row, env in enumerate(environments, first_row):
        try:
            values.append(env.get_wrapper_attr(name))
        except AttributeError as error:
            raise EnvironmentError(
                f"environment {row} ({env}) has no attribute {name!r}: agent.envs.{kind} needs one "
                "that the environment or one of its wrappers has"
            ) from error
        except Exception as error:
            raise EnvironmentError(
                f"environment {row}: reading {name!r} raised {type(error).__name__}: {error}"
            ) from error
        if kind == CALL and not callable(values[-1]):
            raise EnvironmentError(f"environment {row} ({env}): {name!r} is no method")
    return values if kind == GET else []


def _check_json(change: Change) -> None:
    """Refuse values that a checkpoint could not hold as they are."""
    problem = ""
    try:
        text = json.dumps(change.value, allow_nan=False)
        if len(text) > LARGEST_VALUE:
            problem = f"it has more than {LARGEST_VALUE:,} characters"
        elif not _is_same(json.loads(text), change.value):
            problem = "it would be read back as another type"
    except (TypeError, ValueError, RecursionError) as error:
        problem = str(error)
    if problem or not isinstance(change.name, str):
        raise ConfigError(
            f"{change} cannot be stored in a checkpoint: give numbers, text, True, False, None, "
            f"lists and dicts of these ({problem or 'the name is no text'})"
        )


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal and have the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return all(map(_is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return one == other
