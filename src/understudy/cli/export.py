"""`understudy export`."""

import argparse
from pathlib import Path

from understudy.cli.parsing import Parser, entry
from understudy.cli.playing import add_policy, choose_agent, open_run

DESCRIPTION = """\
Write the policy alone as one file: with several seeds the policy of the best one, of a repertoire
the best policy or the one that --at chooses."""


def parser(arguments: list[str]) -> Parser:
    result = Parser("export RUN FILE", DESCRIPTION, _export)
    add_policy(result)
    result.add_argument(
        "file", type=Path, metavar="FILE",
        help="policy.onnx, or policy.safetensors, which understudy.runner plays without JAX",
    )  # fmt: skip
    return result


def _export(options: argparse.Namespace) -> None:
    with open_run(options) as opened:
        agent, name = choose_agent(opened, options.at)
        path = agent.export(options.file)
    print(entry("policy", f"{path} ({name})"))
    call = "onnxruntime.InferenceSession" if path.suffix == ".onnx" else "understudy.runner.load"
    print(entry("play it with", f'{call}("{path}")'))
    if agent.config.memory is not None:
        print(entry("memory", "pass the memory that it returns with the next observation"))
