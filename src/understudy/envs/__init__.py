"""Environments: the only package that imports Gymnasium. Names are imported when first used,
because worker processes import this package too."""

import importlib
from typing import Any

_NAMES = {
    "atari": ("AtariSettings", "atari"),
    "base": ("HostEnvs", "HostStep", "NativeEnv", "NativeStep"),
    "brax": ("Brax", "brax"),
    "check": ("CheckReport", "check"),
    "fault_guard": ("Guard",),
    "frame_stack": ("stack_frames",),
    "frame_stack_wrapper": ("Stacked",),
    "make": ("EnvSource", "resolve"),
    "seeds": ("EpisodeSeeds",),
    "serial": ("SerialEnvs",),
    "spaces": ("spec_of", "to_normalized", "to_real"),
    "subprocesses": ("ProcessEnvs",),
    "vector": ("UserVectorEnvs",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    module = importlib.import_module(f"{__name__}.{home}")
    # All names of that module at once: `check` is also the name of its module, and the import
    # above has just bound the module here.
    globals().update({known: getattr(module, known) for known in _NAMES[home]})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
