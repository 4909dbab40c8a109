"""Load a run to play it: an agent, or a repertoire of policies."""

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from understudy.agent import Agent
from understudy.agent.illumination import METHODS, Illumination
from understudy.cli.parsing import Parser, add_loading, device_of, entry
from understudy.distributed.config import Cluster
from understudy.errors import CheckpointError, ConfigError
from understudy.reading import read_bytes
from understudy.reports.video import record_episode
from understudy.runs import checkpoint
from understudy.runs.progress import compact
from understudy.runs.run_directory import RUN_JSON

CHECKPOINT = "a run directory (its newest checkpoint is loaded), RUN/best, or a checkpoint"


def add_policy(parser: Parser) -> None:
    """Add the arguments that choose a policy: RUN, and of a repertoire a behavior."""
    add_loading(parser, CHECKPOINT)
    what = "of a repertoire: choose the policy nearest to this behavior"
    parser.add_argument("--at", type=_behavior, metavar="X,Y", help=what)


def _behavior(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        problem = f"must be numbers with commas between, such as 0.2,0.9, got '{text}'"
        raise argparse.ArgumentTypeError(problem) from None


@contextlib.contextmanager
def open_run(options: argparse.Namespace) -> Iterator[Agent | Illumination]:
    """Load the run or checkpoint `options.run`, to play it in this process alone."""
    device = getattr(options, "device", None)
    with contextlib.closing(load_run(options, Cluster(), device)) as opened:
        if isinstance(opened, Agent) and getattr(options, "at", None) is not None:
            where = f"from a repertoire (understudy illuminate), and {options.run} holds an agent"
            raise ConfigError(f"--at chooses {where}")
        yield opened


def load_run(
    options: argparse.Namespace, cluster: Cluster | None, device: str | None
) -> Agent | Illumination:
    """Load the run or checkpoint `options.run`: an agent, or the run of a quality-diversity
    method."""
    return (_method_of(options.run) or Agent).load(
        options.run,
        env=options.env,
        trust_environment=options.trust_environment,
        cluster=cluster,
        device=device_of(device),
        env_args=dict(options.env_arg) or None,
    )


def _method_of(path: Path) -> type[Illumination] | None:
    """The quality-diversity method of a run or checkpoint; None for an agent's."""
    places = [path, *checkpoint.candidates(path)]
    unreadable = (CheckpointError, ValueError, LookupError, TypeError, RecursionError)
    for place in (path / RUN_JSON, *(place / checkpoint.MANIFEST for place in places)):
        with contextlib.suppress(*unreadable):
            about = json.loads(read_bytes(place, checkpoint.LARGEST_MANIFEST))
            return METHODS.get(about["algorithm"])
    return None


def choose_agent(opened: Agent | Illumination, behavior: list[float] | None) -> tuple[Agent, str]:
    """The agent to play, and its name in words. Of a repertoire it is the policy nearest to the
    behavior, or the best one."""
    if isinstance(opened, Agent):
        return opened, f"{opened.name} on {opened.env_name}, {opened.steps:,} steps"
    repertoire = opened.repertoire
    repertoire.refuse_empty()
    cell = repertoire.nearest(behavior) if behavior else int(repertoire.cells.fitness.argmax())
    return repertoire.agent(cell), f"{opened.name} on {opened.env_name}, cell {cell}"


def film(agent: Agent, out: Path) -> str:
    """Film an episode of the agent (with several seeds, of the best one); returns the line to
    print."""
    if agent.env_name is None:
        raise ConfigError(
            "the environment of this run has no name to make it by: give --env module:Class, or "
            "film it from Python, with understudy.reports.video.record_episode"
        )
    try:  # the message of ffmpeg has many lines
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from error
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # drawing needs no screen
    frames = agent.spec.observation.frames
    score = record_episode(agent.act, agent.env_name, out, frames=frames, env_args=agent.env_args)
    return entry("video", f"{out} (an episode with return {compact(score)})")
