"""Names of environments, in files and in messages. Free of JAX: environment workers import it."""

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from understudy.errors import CheckpointError, EnvironmentError

ADAPTERS = ("playground",)  # not implemented yet
FIXED = (
    "jax",
    "brax",
    "gymnax",
    "atari",
    "envpool",
    *ADAPTERS,
)  # before a colon these are no modules


def name_of_class(env: Any) -> str:
    """Return the name that messages use for an environment of the user's own."""
    if not isinstance(env, type):
        env = getattr(env, "unwrapped", env)
    name = getattr(env, "__name__", type(env).__name__)
    return "your environment" if name in ("", "<lambda>", "EnvSource", "partial") else name


def refuse_foreign_module(name: str, args: Mapping[str, Any]) -> None:
    """Refuse an environment's name, read from a file, that would import a module: that runs the
    module's code, and a file may name any. A module that the user has imported is allowed. An
    argument from a file must not name a module or a path either: some environments open it."""
    for argument, value in args.items():
        words = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(word, str) and set(word) & set(":/\\") for word in words):
            raise CheckpointError(
                f"the environment's argument {argument}={value!r:.60} may name a module or a file, "
                "which a file alone must not decide: give env_args=… (--env-arg), or allow it "
                "with trust_environment=True (--trust-environment)"
            )
    module = name.rpartition(":")[0]
    if not module or name.partition(":")[0] in FIXED or module in sys.modules:
        return
    raise CheckpointError(
        f'the environment "{name}" would import the module "{module}", which a file alone must not '
        "decide: import it first, give env=… (--env), or allow it with trust_environment=True "
        "(--trust-environment)"
    )


def did_you_mean(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return the end of a message that suggests similar names; "" if there is none. Upper and
    lower case count as equal, because many misspellings differ only in case."""
    spelling = {known.lower(): known for known in names}
    found = difflib.get_close_matches(name.lower(), spelling, n=3, cutoff=0.6)
    if not found:
        return ""
    return "; did you mean " + " or ".join(f'"{prefix}{spelling[match]}"' for match in found) + "?"


def unknown_name(problem: str, name: str, names: Sequence[str], prefix: str) -> EnvironmentError:
    """Make the error for a name that is none of `names`."""
    near = did_you_mean(name, names, prefix)
    return EnvironmentError(f'{problem} "{name}"{near}; there are: {", ".join(names)}')


def missing_package(name: str | None, extra: str, hint: str = "") -> EnvironmentError:
    """Make the error for an environment whose package is not installed."""
    what = f'"{name}"' if name else "this environment"
    return EnvironmentError(f'{what} needs a package that is missing: pip install "{extra}"{hint}')
