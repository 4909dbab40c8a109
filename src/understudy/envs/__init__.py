"""Environments: the only package that imports Gymnasium. Names are imported when first used,
because worker processes import this package too."""

import importlib
import sys
from types import ModuleType
from typing import Any, final

_NAMES = {
    "atari": ("AtariSettings", "atari"),
    "base": ("HostEnvs", "HostStep", "NativeEnv", "NativeStep"),
    "brax": ("Brax", "brax"),
    "check": ("CheckReport", "check"),
    "fault_guard": ("Guard",),
    "gymnasium_envs": ("Stacked",),
    "make": ("EnvSource", "resolve", "stack_frames"),
    "host_envs": ("ProcessEnvs", "SerialEnvs"),
    "seeds": ("EpisodeSeeds",),
    "spaces": ("spec_of", "to_normalized", "to_real"),
    "vector": ("UserVectorEnvs",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


@final
class _Package(ModuleType):
    """Keeps `atari`, `brax` and `check` functions: importing the modules of these names, which
    binds a module in its package, must not hide them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOME or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
