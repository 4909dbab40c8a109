"""Pack an environment's observation (an array, a number, a dict of them) into the one array that
the library uses.

Free of JAX: environment workers and the player of policy files import it. `ArraySpec` and `Part`
in `understudy.types` describe the order of entries in the array.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from understudy.errors import EnvironmentError

_FLOAT = np.dtype("<f4")


class Slot(NamedTuple):
    """One entry and its place in the array."""

    name: str
    shape: tuple[int, ...]  # as the environment returns it
    dtype: np.dtype
    choices: int
    start: int
    place: slice  # along the last axis

    @property
    def label(self) -> str:
        """Its name in messages, after "the"."""
        return f'observation\'s "{self.name}"' if self.name else "observation"


@final
class Packer:
    """Check the entries of observations and write them side by side."""

    def __init__(self, observation: Any) -> None:
        """`observation` is that of a `Spec`, or its JSON form."""
        spec = observation if isinstance(observation, Mapping) else dataclasses.asdict(observation)
        self.shape, self.dtype = tuple(spec["shape"]), np.dtype(spec["dtype"])
        parts = spec.get("parts", ())
        self.has_parts = bool(parts)
        self._in_bytes = self.has_parts and self.dtype == np.uint8
        self.slots = [] if parts else [Slot("", self.shape, self.dtype, 0, 0, slice(None))]
        end = 0
        for part in parts:
            shape, own = tuple(part["shape"]), np.dtype(part["dtype"])
            begin, end = end, end + math.prod(shape) * (own.itemsize if self._in_bytes else 1)
            choices, start = int(part.get("choices", 0)), int(part.get("start", 0))
            given = () if choices else shape
            slot = Slot(part["name"], given, own, choices, start, slice(begin, end))
            self.slots.append(slot)
        if parts and self.shape != (end,):
            raise EnvironmentError(
                f"the entries of an observation take {end} places, its array has {self.shape}"
            )

    def pack(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Pack one observation or a batch of them (every entry has one more axis in front) into a
        fresh array [B, *shape]; the flag is True if it was one."""
        given, first = flat(observation), self.slots[0]
        value = self._value(first, given)
        rows = len(value) if value.ndim == len(first.shape) + 1 else None
        entries = self.entries(given, rows)
        out = np.empty((1 if rows is None else rows, *self.shape), self.dtype)
        self.write(entries, out)
        return out, rows is None

    def entries(self, observation: Any, rows: int | None = None) -> list[np.ndarray]:
        """Return the entries in the order of the array, checked but not packed: pictures
        unchanged, a choice counted from 0, all else in floating point. They may be the
        environment's own arrays. With `rows`, each has so many rows in front."""
        given = flat(observation)
        lead = () if rows is None else (rows,)
        return [self._checked(slot, self._value(slot, given), lead) for slot in self.slots]

    def write(self, entries: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Write entries into `out`, [*shape] or [B, *shape]."""
        if not self.has_parts:
            out[...] = entries[0]
            return
        for slot, entry in zip(self.slots, entries, strict=True):
            place = out[..., slot.place]
            if self._in_bytes and slot.dtype.kind == "f":
                place = place.view(_FLOAT)
            if slot.choices:
                place[...] = entry[..., None] == np.arange(slot.choices)
            else:
                place[...] = entry.reshape(place.shape)

    def _value(self, slot: Slot, given: Mapping[str, Any]) -> np.ndarray:
        if slot.name not in given:
            raise EnvironmentError(self._missing(slot, given))
        try:
            return np.asarray(given[slot.name])
        except ValueError as error:  # lists of different lengths
            raise EnvironmentError(f"the {slot.label} is no array: {error}") from error

    def _checked(self, slot: Slot, value: np.ndarray, lead: tuple[int, ...]) -> np.ndarray:
        if value.shape != lead + slot.shape:
            raise EnvironmentError(
                f"expected the {slot.label} to have shape {lead + slot.shape}, got {value.shape}"
            )
        wanted = np.dtype(np.int64) if slot.choices else slot.dtype
        if value.dtype != wanted and not can_cast(value.dtype, wanted):
            raise EnvironmentError(
                f"expected the {slot.label} to have dtype {wanted}, got {value.dtype}"
            )
        if slot.choices:
            chosen = np.asarray(value.astype(np.int64) - slot.start)
            if ((chosen < 0) | (chosen >= slot.choices)).any():
                span = f"{slot.start} to {slot.start + slot.choices - 1}"
                raise EnvironmentError(f"expected the {slot.label} to be {span}, got {value}")
            return chosen
        return value if slot.dtype.kind != "f" or value.dtype.kind == "f" else value.astype(_FLOAT)

    def _missing(self, slot: Slot, given: Mapping[str, Any]) -> str:
        """Say which entry is missing."""
        if slot.name == "":
            return "expected the observation to be one array, got a dict"
        names = ", ".join(f'"{slot.name}"' for slot in self.slots)
        if set(given) == {""}:
            got = type(given[""]).__name__
            return f"expected a dict with the entries {names}, got {got}"
        return f'the observation has no entry "{slot.name}"; expected: {names}'


def can_cast(given: np.dtype, wanted: np.dtype) -> bool:
    """Whether values survive: float64 may become float32; 0.5 may not become a byte, nor 300."""
    fits = wanted.kind == "f" or given.itemsize <= wanted.itemsize
    return fits and np.can_cast(given, wanted, casting="same_kind")


def flat(observation: Any) -> dict[str, Any]:
    """Return the entries of nested dicts by name, nested names joined by "/"; {"": observation}
    for anything else. A flat dict stays the same."""
    if not isinstance(observation, Mapping):
        return {"": observation}
    entries = {}
    for name, value in observation.items():
        if isinstance(value, Mapping):
            entries |= {f"{name}/{inner}": entry for inner, entry in flat(value).items()}
        else:
            entries[str(name)] = value
    return entries
