"""`understudy eval`."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from understudy.agent import Agent
from understudy.agent.illumination import Illumination
from understudy.cli.parsing import Parser, add_device, count, entry, hint, quoted
from understudy.cli.playing import add_policy, choose_agent, film, open_run
from understudy.cli.printing import at_best, describe_metrics, describe_returns, spell_behavior
from understudy.errors import ConfigError
from understudy.ops.statistics import summary as summarize
from understudy.runs.progress import compact
from understudy.runs.run_directory import RUN_JSON

DESCRIPTION = """\
Play a trained agent and print its returns. The episodes have fixed seeds that training never used.
Of a repertoire all policies play fresh episodes, or only the policy nearest to a behavior."""


def parser(arguments: list[str]) -> Parser:
    result = Parser("eval RUN [flags]", DESCRIPTION, _eval)
    add_policy(result)
    add = result.add_argument
    add("--episodes", type=count, default=10, metavar="N", help="episodes per seed (default: 10)")
    add("--seed", type=int, metavar="N", help="seed of the episodes (default: the run's own)")
    add("--stochastic", action="store_true", help="explore as in training: sample, or add noise")
    add("--epsilon", type=float, metavar="X", help="share of random actions (discrete actions)")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--video", type=Path, metavar="FILE", help="film an episode, too, as .mp4 or .gif")
    add_device(result, "auto, JAX's choice")
    return result


# The result for --json, the lines to print, and the commands that make sense next.
Evaluation = tuple[dict[str, Any], list[str], list[str]]


def _eval(options: argparse.Namespace) -> None:
    with open_run(options) as opened:
        agents_only = (options.stochastic, options.seed, options.epsilon) != (False, None, None)
        if isinstance(opened, Illumination) and agents_only:
            raise ConfigError(f"{options.run} is a repertoire: --seed, --stochastic and --epsilon "
                              "are for agents")  # fmt: skip
        filmed = options.video and film(choose_agent(opened, options.at)[0], options.video)
        if isinstance(opened, Agent):
            result, lines, commands = _evaluate_agent(opened, options)
        else:
            evaluate = _evaluate_repertoire if options.at is None else _evaluate_policy
            result, lines, commands = evaluate(opened, options)
    if options.json:
        print(json.dumps(result))
        return
    print("\n".join([*lines, filmed] if filmed else lines))
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
    several = agent.num_seeds > 1
    seeds = f", seeds {agent.seed}–{agent.seed + agent.num_seeds - 1}" * several
    lines = [
        f"{agent.name} on {agent.env_title} after {agent.steps:,} steps{seeds}",
        describe_returns(result, agent),
    ]
    for seed, returns in enumerate(result["returns"] if several else (), agent.seed):
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
        _title(found),
        entry("as found", describe_metrics(repertoire.metrics, repertoire.offset)),
        entry("corrected", f"{describe_metrics(corrected.metrics)} {over}"),
    ]
    at = at_best(found)
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
    lines = [_title(found), entry("nearest", as_found), f"{_fresh(options.episodes)}: {now}"]
    at = spell_behavior(options.at)
    return result, lines, [f"export {quoted(options.run)} policy.onnx --at {at}"]


def _title(found: Illumination) -> str:
    return f"{found.name} on {found.env_name} after {found.evaluations:,} evaluations"


def _fresh(episodes: int) -> str:
    return f"over {episodes} fresh episode{'s' * (episodes > 1)}"


def _named(names: tuple[str, ...], numbers: np.ndarray) -> str:
    return ", ".join(f"{name} {number:.3g}" for name, number in zip(names, numbers, strict=True))
