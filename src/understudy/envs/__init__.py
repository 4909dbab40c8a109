"""Environments: the only package that imports Gymnasium. Names are imported when first used,
because worker processes import this package too. No module has the name of a public function:
importing a module binds it in its package, which would hide the function."""

import importlib
from typing import Any

_NAMES = {
    "atari_games": ("AtariSettings", "atari"),
    "base": ("HostEnvs", "HostStep", "NativeEnv", "NativeStep"),
    "brax_envs": ("Brax", "brax"),
    "conformance": ("CheckReport", "check"),
    "fault_guard": ("Guard",),
    "gymnasium_envs": ("Stacked",),
    "make": ("EnvSource", "resolve", "stack_frames"),
    "gymnax_envs": ("Gymnax", "gymnax"),
    "host_envs": ("ProcessEnvs", "SerialEnvs"),
    "seeds": ("EpisodeSeeds",),
    "spaces": ("spec_of", "to_normalized", "to_real"),
    "vector": ("UserVectorEnvs",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
