"""Write the policy alone as one file: with several seeds the policy of the best one, of a
repertoire the best policy or the one that --at chooses."""

import argparse
from pathlib import Path

from understudy.cli.parsing import Parser, entry
from understudy.cli.playing import add_policy, choose_agent, open_run

USAGE = "export RUN FILE"


def add_flags(parser: Parser, arguments: list[str]) -> None:
    add_policy(parser)
    what = "policy.onnx, or policy.safetensors, which understudy.runner plays without JAX"
    parser.add_argument("file", type=Path, metavar="FILE", help=what)


def run(options: argparse.Namespace) -> None:
    with open_run(options) as opened:
        agent, name = choose_agent(opened, options.at)
        path = agent.export(options.file)
    print(entry("policy", f"{path} ({name})"))
    call = "onnxruntime.InferenceSession" if path.suffix == ".onnx" else "understudy.runner.load"
    print(entry("play it with", f'{call}("{path}")'))
    if agent.config.memory is not None:
        print(entry("memory", "pass the memory that it returns with the next observation"))
