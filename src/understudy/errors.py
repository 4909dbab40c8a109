"""The errors that a user can correct. Free of JAX: the player and the file formats import it."""

import importlib
from typing import Any


class UnderstudyError(Exception):
    """A mistake that the user can correct; the CLI shows it as one line, without a traceback."""


class ConfigError(UnderstudyError):
    """One or more settings are wrong; the message lists all of them."""


class EnvironmentError(UnderstudyError):
    """An environment cannot be made, is not supported, or broke its contract."""


class CheckpointError(UnderstudyError):
    """A checkpoint is missing, damaged, or belongs to something else."""


class DivergedError(UnderstudyError):
    """The updates of every seed stopped being finite numbers."""


class ClusterError(UnderstudyError):
    """The processes that a run depends on are lost and cannot be replaced."""


def import_extra(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional dependency. If it is missing, the error begins with `what` and
    names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f'{what}: pip install "understudy[{extra}]" ({error})') from error
