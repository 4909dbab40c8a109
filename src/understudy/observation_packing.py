"""What environments give (an array, a number, a dict of them) → the one array that the library
uses for an observation.

Free of JAX: environment workers and the player of policy files import it. How entries lie in
the array is said by `ArraySpec` and `Part` in `understudy.types`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from understudy.errors import EnvironmentError

_FLOAT = np.dtype("<f4")


class _Slot(NamedTuple):
    """One entry and where it lies in the array."""

    name: str
    given: tuple[int, ...]  # the shape in which it is given
    dtype: np.dtype
    choices: int
    start: int
    place: slice  # along the last axis

    @property
    def called(self) -> str:
        return f'observation\'s "{self.name}"' if self.name else "observation"


@final
class Packer:
    """Checks the entries of observations and lays them side by side."""

    def __init__(
        self, shape: Sequence[int], dtype: str, parts: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """`parts` are those of an `ArraySpec`, as `dataclasses.asdict` writes them."""
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.has_parts = bool(parts)
        self._in_bytes = self.has_parts and self.dtype == np.uint8
        if not self.has_parts:
            self._slots = [_Slot("", self.shape, self.dtype, 0, 0, slice(None))]
            return
        self._slots, end = [], 0
        for part in parts:
            given, own = tuple(part["shape"]), np.dtype(part["dtype"])
            begin, end = end, end + math.prod(given) * (own.itemsize if self._in_bytes else 1)
            choices = int(part.get("choices", 0))
            place = slice(begin, end)
            start = int(part.get("start", 0))
            self._slots.append(
                _Slot(part["name"], () if choices else given, own, choices, start, place)
            )
        if self.shape != (end,):
            raise EnvironmentError(
                f"the entries of an observation take {end} places, its array has {self.shape}"
            )

    @classmethod
    def of(cls, observation: Any) -> "Packer":
        """From the observation of a `Spec`, or from what JSON has made of it."""
        told = observation if isinstance(observation, Mapping) else dataclasses.asdict(observation)
        return cls(told["shape"], told["dtype"], told.get("parts", ()))

    @property
    def labels(self) -> list[str]:
        """How a message names each entry, after "the"."""
        return [slot.called for slot in self._slots]

    def pack(self, observation: Any) -> np.ndarray:
        """One observation as a fresh array of `shape`."""
        out = np.empty(self.shape, self.dtype)
        self.write(self.entries(observation), out)
        return out

    def pack_batch(self, observation: Any) -> np.ndarray:
        """Many at once (every entry has one more axis in front) as a fresh array [B, *shape]."""
        given = flat(observation)
        rows = len(self._array(self._slots[0], given, at_least=1))
        out = np.empty((rows, *self.shape), self.dtype)
        self.write(self.entries(given, rows), out)
        return out

    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """One observation or a batch of them as [B, *shape]; True where it was one."""
        given, first = flat(observation), self._slots[0]
        if self._array(first, given).ndim == len(first.given) + 1:
            return self.pack_batch(given), False
        return self.pack(given)[None], True

    def entries(self, observation: Any, rows: int | None = None) -> list[np.ndarray]:
        """The entries in the order of the array, checked but not packed: pictures as they are, a
        choice counted from 0, all else in floating point. May be the environment's own arrays."""
        given = flat(observation)
        lead = () if rows is None else (rows,)
        return [self._checked(slot, self._array(slot, given), lead) for slot in self._slots]

    def write(self, entries: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Pack entries into `out`, [*shape] or [B, *shape]."""
        if not self.has_parts:
            out[...] = entries[0]
            return
        for slot, entry in zip(self._slots, entries, strict=True):
            place = out[..., slot.place]
            if self._in_bytes and slot.dtype.kind == "f":
                place = place.view(_FLOAT)
            if slot.choices:
                place[...] = entry[..., None] == np.arange(slot.choices)
            else:
                place[...] = entry.reshape(place.shape)

    def _array(self, slot: _Slot, given: Mapping[str, Any], at_least: int = 0) -> np.ndarray:
        if slot.name not in given:
            raise self._missing(slot, given)
        try:
            value = np.asarray(given[slot.name])
        except ValueError as error:  # lists of different lengths
            raise EnvironmentError(f"the {slot.called} is no array: {error}") from error
        if value.ndim < at_least:
            raise EnvironmentError(f"expected a batch, but the {slot.called} is one number")
        return value

    def _checked(self, slot: _Slot, value: np.ndarray, lead: tuple[int, ...]) -> np.ndarray:
        if value.shape != lead + slot.given:
            raise EnvironmentError(
                f"expected the {slot.called} to have shape {lead + slot.given}, got {value.shape}"
            )
        wanted = np.dtype(np.int64) if slot.choices else slot.dtype
        if value.dtype != wanted and not castable(value.dtype, wanted):
            raise EnvironmentError(
                f"expected the {slot.called} to have dtype {wanted}, got {value.dtype}"
            )
        if slot.choices:
            chosen = np.asarray(value.astype(np.int64) - slot.start)
            if ((chosen < 0) | (chosen >= slot.choices)).any():
                span = f"{slot.start} to {slot.start + slot.choices - 1}"
                raise EnvironmentError(f"expected the {slot.called} to be {span}, got {value}")
            return chosen
        return value if slot.dtype.kind != "f" or value.dtype.kind == "f" else value.astype(_FLOAT)

    def _missing(self, slot: _Slot, given: Mapping[str, Any]) -> EnvironmentError:
        if slot.name == "":
            return EnvironmentError("expected the observation to be one array, got a dict")
        names = ", ".join(f'"{slot.name}"' for slot in self._slots)
        if set(given) == {""}:
            got = type(given[""]).__name__
            return EnvironmentError(f"expected a dict with the entries {names}, got {got}")
        return EnvironmentError(f'the observation has no entry "{slot.name}"; expected: {names}')


def castable(given: np.dtype, wanted: np.dtype) -> bool:
    """float64 may become float32; 0.5 may not become a byte, nor 300."""
    fits = wanted.kind == "f" or given.itemsize <= wanted.itemsize
    return fits and np.can_cast(given, wanted, casting="same_kind")


def flat(observation: Any) -> dict[str, Any]:
    """The entries of nested dicts by name, nested names joined by "/"; {"": observation} for
    anything else. What is flat stays as it is."""
    if not isinstance(observation, Mapping):
        return {"": observation}
    entries = {}
    for name, value in observation.items():
        if isinstance(value, Mapping):
            entries |= {f"{name}/{inner}": entry for inner, entry in flat(value).items()}
        else:
            entries[str(name)] = value
    return entries
