"""What environments are called: by files, and by people."""

import sys
from typing import Any

from understudy.errors import CheckpointError

ADAPTERS = ("playground", "gymnax", "envpool")  # that are still to come
FIXED = ("jax", "brax", "atari", *ADAPTERS)  # before a colon these are no modules


def name_of_class(env: Any) -> str:
    """What an environment of the user's own is called where people read it."""
    if not isinstance(env, type):
        env = getattr(env, "unwrapped", env)
    name = getattr(env, "__name__", type(env).__name__)
    return "your environment" if name in ("", "<lambda>", "EnvSource", "partial") else name


def refuse_foreign_module(name: str) -> None:
    """For a name that a file gives: importing a module runs its code, and a file may name any. One
    that is imported already is the user's own choice."""
    module = name.rpartition(":")[0]
    if not module or name.partition(":")[0] in FIXED or module in sys.modules:
        return
    raise CheckpointError(
        f'the environment "{name}" would import the module "{module}", which a file alone must not '
        "decide: import it first, give env=… (--env), or allow it with trust_environment=True "
        "(--trust-environment)"
    )
