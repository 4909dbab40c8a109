"""`understudy export`."""

import argparse
import contextlib
from pathlib import Path

from understudy.cli import repertoire
from understudy.cli.evaluate import load_here
from understudy.cli.parsing import Parser, add_trust
from understudy.errors import ConfigError


def parser(arguments: list[str]) -> Parser:
    result = Parser(
        prog="understudy export",
        usage="understudy export RUN FILE",
        description="Write the policy alone (of several seeds, the best one's; of a repertoire, "
        "the best or the\none that is asked for) as one file.",
    )
    result.set_defaults(command=_export)
    result.add_argument(
        "run", type=Path, metavar="RUN",
        help="a run directory (its newest checkpoint), RUN/best, or a checkpoint",
    )  # fmt: skip
    result.add_argument(
        "file", type=Path, metavar="FILE",
        help="policy.onnx, or policy.safetensors, which understudy.runner plays without JAX",
    )  # fmt: skip
    result.add_argument(
        "--at", type=repertoire.place, metavar="X,Y",
        help="of a repertoire: the policy that is nearest to this behavior",
    )  # fmt: skip
    add_trust(result)
    return result


def _export(options: argparse.Namespace) -> None:
    method = repertoire.method_of(options.run)
    if method is not None:
        with repertoire.opened(method, options.run, options) as found:
            cell, agent = repertoire.chosen(found, options.at)
            path = agent.export(options.file)
            about = f"{found.name} on {agent.env_name}, cell {cell}"
    elif options.at is not None:
        raise ConfigError(repertoire.NOT_ONE.format(options.run))
    else:
        with contextlib.closing(load_here(options.run, options)) as agent:
            path = agent.export(options.file)
            about = f"{agent.name} on {agent.env_name}, {agent.steps:,} steps"
    print(f"policy          {path} ({about})")
    call = "onnxruntime.InferenceSession" if path.suffix == ".onnx" else "understudy.runner.load"
    print(f'play it with    {call}("{path}")')
    if agent.config.memory is not None:
        print("it remembers    give back the memory it answers with, with the next observation")
