"""List algorithms, environments or presets."""

import argparse

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


USAGE = "list [algorithms|envs|presets]"


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
            changes = ", ".join(f"{key}={show(value)}" for key, value in preset.items())
            print(f"{name:10} {env:24} {changes}")


LISTS = {"algorithms": _algorithms, "envs": _environments, "presets": _presets}
