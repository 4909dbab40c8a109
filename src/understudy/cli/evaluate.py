"""`understudy eval`."""

import argparse
import contextlib
import json
import os
import tempfile
from pathlib import Path

from understudy.agent import Agent, load
from understudy.cli import repertoire
from understudy.cli.parsing import Parser, add_device, add_trust, count, device_of, hint, quoted
from understudy.cli.training import spoken
from understudy.distributed.config import Cluster
from understudy.errors import ConfigError
from understudy.ops.statistics import summary as summarize
from understudy.reports.video import record_episode
from understudy.runs.progress import compact
from understudy.runs.run_directory import ABOUT


def parser(arguments: list[str]) -> Parser:
    result = Parser(
        prog="understudy eval",
        usage="understudy eval RUN [flags]",
        description="Play a trained agent on environments of its own, in episodes with fixed "
        "seeds that training\nnever used, and report its returns. A repertoire is judged anew, by "
        "the means of all its\npolicies over fresh episodes; or one of them is, the nearest to a "
        "behavior.",
    )
    result.set_defaults(command=_eval)
    add = result.add_argument
    add("run", type=Path, metavar="RUN",
        help="a run directory (its newest checkpoint), RUN/best, or a checkpoint")  # fmt: skip
    add("--episodes", type=count, default=10, metavar="N", help="per seed (default: 10)")
    add("--seed", type=int, metavar="N", help="of the episodes (default: the run's own)")
    add("--stochastic", action="store_true", help="draw actions, or add noise, as in training")
    add("--epsilon", type=float, metavar="X", help="share of random actions, if discrete")
    add("--at", type=repertoire.place, metavar="X,Y", help="of a repertoire: this behavior")
    add("--json", action="store_true", help="print one JSON object, and nothing else")
    add("--video", type=Path, metavar="FILE", help="film an episode too, as .mp4 or .gif")
    add_trust(result)
    add_device(result)
    return result


def _eval(options: argparse.Namespace) -> None:
    method = repertoire.method_of(options.run)
    if method is not None:
        if options.stochastic or (options.seed, options.epsilon) != (None, None):
            raise ConfigError(f"{options.run} is a repertoire: --seed, --stochastic and --epsilon "
                              "are for agents")  # fmt: skip
        with repertoire.opened(method, options.run, options) as found:
            if options.video is not None:
                filmed = film(repertoire.chosen(found, options.at)[1], options.video)
                if not options.json:
                    print(filmed)
            repertoire.evaluate(found, options)
        return
    if options.at is not None:
        raise ConfigError(repertoire.NOT_ONE.format(options.run))
    with contextlib.closing(load_here(options.run, options)) as agent:
        filmed = "" if options.video is None else film(agent, options.video)
        result = agent.evaluate(
            options.episodes,
            seed=options.seed,
            deterministic=not options.stochastic,
            epsilon=options.epsilon,
        )
    if options.json:
        print(json.dumps(result))
        return
    seeds = f", seeds {agent.seed}–{agent.seed + agent.num_seeds - 1}" * (agent.num_seeds > 1)
    print(f"{agent.name} on {agent.env_title} after {agent.steps:,} steps{seeds}")
    print(spoken(result, agent))
    if agent.num_seeds > 1:
        for seed, returns in enumerate(result["returns"], agent.seed):
            own = summarize(returns)
            print(f"  seed {seed}: {compact(own['mean'])} ± {compact(own['std'])}")
    if filmed:
        print(filmed)
    place = quoted(options.run)
    next_commands = [f"export {place} policy.onnx"]
    if (options.run / ABOUT).exists():  # a whole run, not a checkpoint
        video = f" --video {quoted(options.video)}" if options.video else ""
        next_commands.insert(0, f"report {place}{video}")
    hint(*next_commands)


def load_here(run: Path, options: argparse.Namespace) -> Agent:
    """To play it in this process alone, whatever it was trained on."""
    trust = options.trust_environment
    device = device_of(getattr(options, "device", None))
    return load(run, env=options.env, trust_environment=trust, cluster=Cluster(), device=device)


def film(agent: Agent, out: Path) -> str:
    """Films an episode of the agent (of several seeds, of the best), and says so."""
    if agent.env_name is None:
        raise ConfigError(
            "the environment of this run has no name to make it by: give --env module:Class, or "
            "film it from Python, with understudy.reports.video.record_episode"
        )
    try:  # ffmpeg needs many words to say so
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from error
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures need no screen
    frames = agent.spec.observation.frames
    score = record_episode(agent.act, agent.env_name, out, frames=frames)
    return f"video           {out} (an episode with return {compact(score)})"
