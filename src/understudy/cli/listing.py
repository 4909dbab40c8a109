"""List algorithms, environments, presets or recipes."""

import argparse
from collections.abc import Mapping
from typing import Any

import gymnasium

from understudy.agent.illumination import METHODS
from understudy.algorithms import available
from understudy.cli.parsing import Parser, show
from understudy.envs.native import NATIVE

# Environments that Gymnasium does not list -> the extra that they need, and an example.
EXTRAS = {
    "brax:NAME": ("brax", "brax:halfcheetah"),
    "gymnax:ID": ("gymnax", "gymnax:CartPole-v1"),
    "envpool:ID": ("envpool", "envpool:HalfCheetah-v5"),
    "atari:GAME": ("atari", "atari:Breakout"),
    "MinAtar/GAME-v1": ("minatar", "MinAtar/Breakout-v1"),
}


USAGE = "list [algorithms|envs|presets|recipes]"


def add_flags(parser: Parser, arguments: list[str]) -> None:
    parser.add_argument("what", nargs="?", choices=tuple(LISTS), default="algorithms")


def run(options: argparse.Namespace) -> None:
    LISTS[options.what]()


def _algorithms() -> None:
    for name, trained in (available() | METHODS).items():
        what = (trained.__doc__ or "").strip().splitlines()[0]
        print(f"{name:10} {what}{' (understudy illuminate)' * (name in METHODS)}")


def _environments() -> None:
    for env in NATIVE:
        print(f"jax:{env}")
    for env in sorted(gymnasium.registry):
        if "/" not in env:
            print(env)
    for env, (extra, example) in EXTRAS.items():
        print(f"{env:24} such as {example}; needs understudy[{extra}]")


def _presets() -> None:
    for name, trained in (available() | METHODS).items():
        for env, preset in trained.config_class.presets.items():
            print(f"{name:10} {env:24} {_changes(preset)}")


def _recipes() -> None:
    for name, trained in available().items():
        for title, recipe in trained.config_class.recipes.items():
            print(f"{name:10} {title:24} {recipe.summary}")
            facts = {
                "paper": recipe.paper,
                "settings": _changes(recipe.settings),
                "cost": recipe.cost,
                "measured": recipe.result or "not here",
            }
            for word, fact in facts.items():
                print(f"{'':10} {word:10} {fact}")


def _changes(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={show(value)}" for key, value in settings.items())


LISTS = {"algorithms": _algorithms, "envs": _environments, "presets": _presets, "recipes": _recipes}
