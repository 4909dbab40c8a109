"""Render templates: `{{module.function argument …}}` becomes the text that the function returns.

An argument with spaces is written in quotes.
"""

import re
import shlex
from functools import cache
from types import ModuleType
from typing import NamedTuple

from measured import aggregates, counts, quality, recipe_costs, returns, speeds, tables

PLACEHOLDER = re.compile(r"\{\{(.+?)\}\}")
MODULES: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (aggregates, counts, quality, recipe_costs, returns, speeds, tables)
}


class Piece(NamedTuple):
    """A part of a rendered template."""

    text: str
    computed: bool  # by a function; otherwise the template has the text


def compute(call: str) -> str:
    """Call a function by its name in a template."""
    name, *arguments = shlex.split(call)
    module, _, function = name.partition(".")
    if function.startswith("_") or function not in vars(MODULES[module]):
        raise KeyError(f"{name} is no public function of benchmarks/measured")
    return vars(MODULES[module])[function](*arguments)


@cache
def pieces(template: str) -> tuple[Piece, ...]:
    """Divide a template at its placeholders, and compute these."""
    parts = PLACEHOLDER.split(template)
    return tuple(
        Piece(compute(part), True) if place % 2 else Piece(part, False)
        for place, part in enumerate(parts)
    )


def render(template: str) -> str:
    return "".join(piece.text for piece in pieces(template))
