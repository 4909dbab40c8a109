"""Recipes: the settings of a paper under one name.

A recipe is a table in `recipes.toml` beside an algorithm's config. Its settings apply over those of
the environment's preset, and under those that are given one by one."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

FILE = "recipes.toml"


@final
@dataclass(frozen=True)
class Recipe:
    """Settings over the environment's preset, and their source."""

    summary: str
    paper: str
    cost: str
    """Updates per step and the networks that they update, in words."""
    settings: Mapping[str, Any]
    result: str = ""
    """The result that was measured with this library; empty if there is none."""


def read_recipes(config_file: str) -> dict[str, Recipe]:
    """Read the recipes beside a config's file. "none" means None, which TOML lacks."""
    tables = tomllib.loads((Path(config_file).parent / FILE).read_text(encoding="utf-8"))
    recipes = {name: Recipe(**table) for name, table in tables.items()}
    return {
        name: replace(recipe, settings={key: _value(x) for key, x in recipe.settings.items()})
        for name, recipe in recipes.items()
    }


def algorithms_with(name: str) -> list[str]:
    """Return the algorithms of the library that have a recipe of that name."""
    files = sorted(Path(__file__).parent.glob(f"*/{FILE}"))
    return [file.parent.name for file in files if name in read_recipes(str(file))]


def _value(value: Any) -> Any:
    """Return a value of a TOML file as a setting has it."""
    if isinstance(value, list):
        return tuple(value)
    return None if value == "none" else value
