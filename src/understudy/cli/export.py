"""Write the policy alone as one file: the last or the best one of a run (with several seeds that of
the best seed), of a repertoire the best policy or the one that --at chooses."""

import argparse
from pathlib import Path
from typing import Any

from understudy.cli.parsing import Parser, entry
from understudy.cli.playing import add_policy, choose_agent, open_run
from understudy.errors import ConfigError
from understudy.export.onnx import export_policy
from understudy.runs.progress import compact

USAGE = "export RUN FILE"


def add_flags(parser: Parser, arguments: list[str]) -> None:
    add_policy(parser)
    what = "policy.onnx, or policy.safetensors, which understudy.runner plays without JAX"
    parser.add_argument("file", type=Path, metavar="FILE", help=what)
    which = "the policy of the newest checkpoint, or the best one by evaluation (default: last)"
    parser.add_argument("--which", choices=("last", "best"), help=which)


def run(options: argparse.Namespace) -> None:
    with open_run(options) as opened:
        agent, name = choose_agent(opened, options.at)
        if options.which and agent is not opened:
            raise ConfigError("--which is for agents: --at chooses the policy of a repertoire")
        description = agent.describe_policy(options.which or "last")
        path = export_policy(options.file, lambda: description)
    if agent is opened:
        name = f"{agent.name} on {agent.env_title}, {_explain(description.about['policy'])}"
    print(entry("policy", f"{path} ({name})"))
    call = "onnxruntime.InferenceSession" if path.suffix == ".onnx" else "understudy.runner.load"
    print(entry("play it with", f'{call}("{path}")'))
    if agent.config.memory is not None:
        print(entry("memory", "pass the memory that it returns with the next observation"))


def _explain(origin: dict[str, Any]) -> str:
    """Which policy of a run it is, in words."""
    score = origin["score"]
    scored = "not evaluated there" if score is None else f"mean return {compact(score)}"
    return f"the {origin['which']} policy: step {origin['step']:,}, seed {origin['seed']}, {scored}"
