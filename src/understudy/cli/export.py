"""`understudy export`."""

import argparse
import contextlib
from pathlib import Path

from understudy.agent import load
from understudy.cli.parsing import Parser


def parser(arguments: list[str]) -> Parser:
    result = Parser(
        prog="understudy export",
        usage="understudy export RUN FILE",
        description="Write the policy alone (of several seeds, the best one's) as one file.",
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
    return result


def _export(options: argparse.Namespace) -> None:
    with contextlib.closing(load(options.run)) as agent:
        path = agent.export(options.file)
    print(f"policy          {path} ({agent.name} on {agent.env_name}, {agent.steps:,} steps)")
    call = "onnxruntime.InferenceSession" if path.suffix == ".onnx" else "understudy.runner.load"
    print(f'play it with    {call}("{path}")')
    if agent.config.memory is not None:
        print("it remembers    give back the memory it answers with, with the next observation")
