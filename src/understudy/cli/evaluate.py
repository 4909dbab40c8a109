"""Play a trained agent and print its returns. The episodes have fixed seeds that training never
used. Of a repertoire all policies play fresh episodes, or only the policy nearest to a behavior."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from understudy.agent import Agent
from understudy.agent.illumination import Illumination
from understudy.cli import printing
from understudy.cli.parsing import Parser, add_device, count, entry, hint, quoted
from understudy.cli.playing import add_policy, choose_agent, film, open_run
from understudy.errors import ConfigError
from understudy.ops.statistics import summary as summarize
from understudy.runs.progress import compact
from understudy.runs.run_directory import RUN_JSON

USAGE = "eval RUN [flags]"


def add_flags(parser: Parser, arguments: list[str]) -> None:
    add_policy(parser)
    add = parser.add_argument
    add("--episodes", type=count, default=10, metavar="N", help="episodes per seed (default: 10)")
    add("--seed", type=int, metavar="N", help="seed of the episodes (default: the run's own)")
    add("--stochastic", action="store_true", help="explore as in training: sample, or add noise")
    add("--epsilon", type=float, metavar="X", help="share of random actions (discrete actions)")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--video", type=Path, metavar="FILE", help="film an episode, too, as .mp4 or .gif")
    add_device(parser, "auto, JAX's choice")


# The result for --json, the lines to print below the title, and the commands that make sense next.
Evaluation = tuple[dict[str, Any], list[str], list[str]]


def run(options: argparse.Namespace) -> None:
    with open_run(options) as opened:
        agents_only = (options.stochastic, options.seed, options.epsilon) != (False, None, None)
        if isinstance(opened, Illumination) and agents_only:
            only = "--seed, --stochastic and --epsilon are for agents"
            raise ConfigError(f"{options.run} is a repertoire: {only}")
        filmed = options.video and film(choose_agent(opened, options.at)[0], options.video)
        if isinstance(opened, Agent):
            evaluation = _evaluate_agent(opened, options)
        elif options.at is None:
            evaluation = _evaluate_repertoire(opened, options)
        else:
            evaluation = _evaluate_policy(opened, options)
        done, unit = printing.progress_of(opened)
        title = f"{printing.name_run(opened)} after {done:,} {unit}{printing.name_seeds(opened)}"
    result, lines, commands = evaluation
    if options.json:
        print(json.dumps(result))
        return
    print("\n".join([title, *lines, *([filmed] if filmed else [])]))
    if (options.run / RUN_JSON).exists():  # a whole run, not a checkpoint
        video = f" --video {quoted(options.video)}" if options.video else ""
        commands.insert(0, f"report {quoted(options.run)}{video}")
    hint(*commands)


def _evaluate_agent(agent: Agent, options: argparse.Namespace) -> Evaluation:
    result = agent.evaluate(
        options.episodes,
        seed=options.seed,
        deterministic=not options.stochastic,
        epsilon=options.epsilon,
    )
    lines = [printing.describe_returns(result, agent), *printing.describe_infos(result)]
    for seed, returns in enumerate(result["returns"] if agent.num_seeds > 1 else (), agent.seed):
        own = summarize(returns)
        lines.append(f"  seed {seed}: {compact(own['mean'])} ± {compact(own['std'])}")
    return result, lines, [f"export {quoted(options.run)} policy.onnx"]


def _evaluate_repertoire(found: Illumination, options: argparse.Namespace) -> Evaluation:
    """Correct the metrics of a repertoire by fresh episodes of all its policies."""
    repertoire, place = found.repertoire, quoted(options.run)
    corrected, _ = found.reevaluate(options.episodes)
    result = {
        "episodes": options.episodes,
        "score_offset": repertoire.offset,
        "found": repertoire.metrics,
        "corrected": corrected.metrics,
    }
    over = f"({_fresh(options.episodes)} of every policy)"
    lines = [
        entry("as found", printing.describe_metrics(repertoire.metrics, repertoire.offset)),
        entry("corrected", f"{printing.describe_metrics(corrected.metrics)} {over}"),
    ]
    at = printing.at_best(found)
    return result, lines, [f"eval {place}{at}", f"export {place} policy.onnx{at}"]


def _evaluate_policy(found: Illumination, options: argparse.Namespace) -> Evaluation:
    """Play fresh episodes of the policy that is nearest to a behavior."""
    cell = found.repertoire.nearest(options.at)
    cells, names = found.repertoire.cells, found.descriptor.axis_names
    fitness, descriptor = float(cells.fitness[cell]), np.asarray(cells.descriptor[cell])
    played = found.play([cell], options.episodes)
    returns, descriptors = summarize(played.fitness[0]), played.descriptor[0]
    mean = descriptors.mean(axis=0)
    result = {
        "cell": cell,
        "found": {"fitness": fitness, "descriptor": descriptor.tolist()},
        **returns,
        "descriptor": mean.tolist(),
        "descriptors": descriptors.tolist(),
    }
    as_found = f"cell {cell}, found with fitness {compact(fitness)} at {_named(names, descriptor)}"
    now = f"fitness {compact(returns['mean'])} ± {compact(returns['std'])} at {_named(names, mean)}"
    lines = [entry("nearest", as_found), f"{_fresh(options.episodes)}: {now}"]
    at = printing.spell_behavior(options.at)
    return result, lines, [f"export {quoted(options.run)} policy.onnx --at {at}"]


def _fresh(episodes: int) -> str:
    return f"over {episodes} fresh episode{'s' * (episodes > 1)}"


def _named(names: tuple[str, ...], numbers: np.ndarray) -> str:
    return ", ".join(f"{name} {number:.3g}" for name, number in zip(names, numbers, strict=True))
