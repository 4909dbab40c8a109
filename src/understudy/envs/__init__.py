"""Environments: the only package that imports Gymnasium. Names are imported when first used,
because worker processes import this package too."""

import importlib
from typing import Any

_HOME = {
    "AtariSettings": "atari",
    "Brax": "brax",
    "CheckReport": "check",
    "atari": "atari",
    "brax": "brax",
    "check": "check",
    "EnvSource": "make",
    "resolve": "make",
    "EpisodeSeeds": "seeds",
    "Guard": "fault_guard",
    "HostEnvs": "base",
    "HostStep": "base",
    "NativeEnv": "base",
    "NativeStep": "base",
    "ProcessEnvs": "subprocesses",
    "SerialEnvs": "serial",
    "Stacked": "frame_stack_wrapper",
    "UserVectorEnvs": "vector",
    "spec_of": "spaces",
    "stack_frames": "frame_stack",
    "to_normalized": "spaces",
    "to_real": "spaces",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    module = importlib.import_module(f"{__name__}.{home}")
    # All names of that module at once: `check` is also the name of its module, and the import
    # above has just bound the module here.
    globals().update({known: getattr(module, known) for known in _HOME if _HOME[known] == home})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
