"""Gymnasium spaces → `Spec`, and the map from normalized to real actions.

Inside the library a continuous action is in [-1, 1]^size and a discrete one counts from 0. Only
here are they mapped to the environment's own: real bounds, per dimension and possibly asymmetric,
the Box's own shape, the space's own first number.
"""

import math
from functools import lru_cache
from typing import final

import numpy as np
from gymnasium import spaces

from understudy.observation_packing import flat
from understudy.types import (
    Action,
    ArraySpec,
    Continuous,
    Discrete,
    EnvironmentError,
    Joint,
    MultiDiscrete,
    Part,
    Spec,
)

_OBSERVATIONS = (
    "Box (vectors of any numbers, images of uint8 or bool), Discrete, MultiDiscrete, MultiBinary "
    "and Dict of these, nested or not"
)
_ACTIONS = "Box (floating point), Discrete, MultiDiscrete and MultiBinary"
_SMALLEST_PICTURE = 8  # pixels along a side; a smaller matrix of numbers is no picture


def spec_of(observation_space: spaces.Space, action_space: spaces.Space) -> Spec:
    """Return the spec of an environment with these spaces. A Box with an attribute `frames` is a
    stack of that many images along its first axis."""
    return Spec(observation=_observation(observation_space), action=_action(action_space))


def _observation(space: spaces.Space) -> ArraySpec:
    if isinstance(space, spaces.Dict):
        return _packed(space)
    part = _part("", space)
    if part.choices:
        return ArraySpec(part.shape, part.dtype, (part,))
    dtype = part.dtype
    if isinstance(space, spaces.Box) and len(part.shape) > 1 and space.dtype.kind in "iu":
        dtype = space.dtype.name
    return ArraySpec(part.shape, dtype, frames=getattr(space, "frames", 1))


def _packed(space: spaces.Space) -> ArraySpec:
    """Pack all entries into one array: of floats, or of bytes if there are images among them."""
    parts = tuple(_part(name, inner) for name, inner in flat(space).items())
    if not parts or len(parts) < _count(space):
        found = ", ".join(f'"{part.name}"' for part in parts) or "none"
        raise EnvironmentError(
            "a Dict observation needs entries, and no two entries may have the same name once "
            f'those of nested Dicts are joined by "/"; entries found: {found}'
        )
    if any(part.dtype != "float32" for part in parts):
        size = sum(part.size * np.dtype(part.dtype).itemsize for part in parts)
        return ArraySpec((size,), "uint8", parts)
    return ArraySpec((sum(part.size for part in parts),), "float32", parts)


def _count(space: spaces.Space) -> int:
    """Return how many entries a Dict has, with those of nested ones."""
    return sum(map(_count, space.values())) if isinstance(space, spaces.Dict) else 1


def _part(name: str, space: spaces.Space) -> Part:
    """Describe one entry. Images keep their dtype; all else becomes floats: a choice one-hot,
    several choices (MultiDiscrete, MultiBinary) as their numbers."""
    shape = tuple(space.shape or ())
    if isinstance(space, spaces.Discrete):
        return Part(name, (int(space.n),), "float32", int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return Part(name, shape, "float32")
    if not isinstance(space, spaces.Box) or space.dtype.kind not in "fiub":
        raise EnvironmentError(
            f"observation space {space}{_at(name)} is not supported; supported: {_OBSERVATIONS}"
        )
    if len(shape) - (getattr(space, "frames", 1) > 1) > 3:
        raise EnvironmentError(
            f"an observation{_at(name)} of shape {shape} has more than 3 axes (height, width and "
            f"channels); supported: {_OBSERVATIONS}"
        )
    if len(shape) > 1 and space.dtype.name in ("uint8", "bool"):
        return Part(name, shape, space.dtype.name)
    if _is_picture(space):
        raise EnvironmentError(
            f"an observation{_at(name)} of shape {shape} is an image of dtype {space.dtype}; an "
            "image must be uint8 in 0…255 (or bool): convert it in the environment or a wrapper"
        )
    return Part(name, shape, "float32")


def _is_picture(space: spaces.Box) -> bool:
    """A Box with three axes, or a matrix with the size and the bounds of a picture."""
    if len(space.shape) != 2 or min(space.shape) < _SMALLEST_PICTURE:
        return len(space.shape) > 2
    bounds = {float(space.low.min()), float(space.low.max()), *np.unique(space.high).tolist()}
    return bounds in ({0, 1}, {0, 255})


def _at(name: str) -> str:
    return f' (entry "{name}")' if name else ""


def _action(space: spaces.Space) -> Action:
    if isinstance(space, spaces.Discrete):
        return Discrete(n=int(space.n), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        choices, starts = (tuple(array.ravel().tolist()) for array in (space.nvec, space.start))
        return MultiDiscrete(choices, starts, tuple(space.shape))
    if isinstance(space, spaces.MultiBinary):
        size = math.prod(space.shape)
        return MultiDiscrete((2,) * size, (0,) * size, tuple(space.shape))
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        low, high = (tuple(bounds.ravel().tolist()) for bounds in (space.low, space.high))
        return Continuous(low, high, tuple(space.shape))
    raise EnvironmentError(f"action space {space} is not supported; supported: {_ACTIONS}")


def place_values(action: MultiDiscrete) -> np.ndarray:
    """Return the place value of each choice in the number of a combination; the last one is 1."""
    return np.cumprod((1, *action.choices[:0:-1]))[::-1]


def to_real(action: np.ndarray, spec: Spec) -> np.ndarray:
    """Map the library's actions ([M, size] in [-1, 1], or [M] or [M, choices] counted from 0) to
    the environment's ([M, *shape] float32 inside the bounds, or ints). Returns a fresh array."""
    return _action_map(spec.action).to_real(action)


def to_normalized(action: np.ndarray, spec: Spec) -> np.ndarray:
    """Invert `to_real`. A dimension whose bounds coincide maps to 0."""
    return _action_map(spec.action).to_normalized(action)


@final
class ActionMap:
    """The map of one action space, with its constants computed once (the hot path)."""

    def __init__(self, action: Action):
        self._counted = not isinstance(action, Continuous)
        self._choices = self._place_values = None
        if isinstance(action, Joint):
            action = action.of
            self._choices = np.array(action.choices, np.int64)
            self._place_values = place_values(action)
        self._row_shape = () if isinstance(action, Discrete) else action.shape
        if not isinstance(action, Continuous):
            starts = action.start if isinstance(action, Discrete) else action.starts
            self._start = np.array(starts, np.int64)
            return
        low, high = np.array(action.low, np.float64), np.array(action.high, np.float64)
        self._flat = action.shape == (action.size,)
        # Bounds may be float64: rounding them to float32 must never leave the interval.
        # ([1, size]: for one environment NumPy then has nothing to broadcast, at half the cost.)
        self._low, self._high = round_up(low)[None], round_down(high)[None]
        # An unbounded Box passes through; its finite bounds, if any, still hold below.
        self._identity = not action.bounded or bool((low == -1).all() and (high == 1).all())
        if action.bounded:
            # Halved before they are added: the widest bounds must not overflow.
            self._center, self._half = low / 2 + high / 2, high / 2 - low / 2
        if not self._identity:  # clipped while still in float64, where nothing overflows
            self._low, self._high = self._low.astype(np.float64), self._high.astype(np.float64)

    def to_real(self, action: np.ndarray) -> np.ndarray:
        if self._place_values is not None:
            action = action.reshape(-1, 1) // self._place_values % self._choices
        if self._counted:
            return (action.astype(np.int64) + self._start).reshape(len(action), *self._row_shape)
        # A NaN would pass through every comparison below, into the simulator and the replay.
        # (A search through bytes is several times faster than `.all()` on a few numbers.)
        if 0 in np.isfinite(action).tobytes():
            raise _not_finite(action)
        if self._identity:
            real = np.maximum(action, self._low)
        else:
            # In float64, so that -1 and 1 arrive at the bounds and not next to them.
            real = action * self._half + self._center
            np.maximum(real, self._low, out=real)
        np.minimum(real, self._high, out=real)
        real = real.astype(np.float32, copy=False)
        return real if self._flat else real.reshape(len(real), *self._row_shape)

    def to_normalized(self, action: np.ndarray) -> np.ndarray:
        if self._counted and not self._row_shape:
            return action.reshape(-1).astype(np.int32) - np.int32(self._start)
        flat = action.reshape(len(action), -1)
        if self._place_values is not None:
            return ((flat - self._start) @ self._place_values).astype(np.int32)
        if self._counted:
            return (flat - self._start).astype(np.int32)
        if self._identity:
            return flat.astype(np.float32)
        half = np.where(self._half > 0, self._half, 1)
        return np.clip((flat - self._center) / half, -1, 1).astype(np.float32)


_action_map = lru_cache(maxsize=64)(ActionMap)


def _not_finite(action: np.ndarray) -> EnvironmentError:
    row = int(np.flatnonzero(~np.isfinite(action).reshape(len(action), -1).all(axis=1))[0])
    return EnvironmentError(
        f"the policy gave environment {row} the action {action[row].tolist()}: not a finite "
        "number; the environment was not stepped"
    )


def round_up(bound: np.ndarray) -> np.ndarray:
    """Return the smallest float32 that is not below `bound`."""
    near = bound.astype(np.float32)
    return np.where(near < bound, np.nextafter(near, np.float32(np.inf)), near)


def round_down(bound: np.ndarray) -> np.ndarray:
    """Return the largest float32 that is not above `bound`."""
    return -round_up(-bound)
