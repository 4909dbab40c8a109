"""What commands do with a repertoire, where they are given one instead of an agent."""

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from understudy.agent import Agent
from understudy.agent.illumination import METHODS, Illumination
from understudy.cli.parsing import device_of, hint, quoted
from understudy.distributed.config import Cluster
from understudy.errors import CheckpointError
from understudy.ops.statistics import summary as summarize
from understudy.reading import read_bytes
from understudy.runs import checkpoint
from understudy.runs.progress import compact
from understudy.runs.run_directory import ABOUT

NOT_ONE = "--at chooses from a repertoire (understudy illuminate), and {} holds an agent"


def method_of(path: Path) -> type[Illumination] | None:
    """Which method's run or checkpoint this is; None where it is no repertoire's."""
    places = [path, *checkpoint.candidates(path)]
    for place in (path / ABOUT, *(place / checkpoint.MANIFEST for place in places)):
        with contextlib.suppress(
            CheckpointError, ValueError, LookupError, TypeError, RecursionError
        ):
            name = json.loads(read_bytes(place, checkpoint.LARGEST_MANIFEST))["algorithm"]
            return METHODS.get(name)
    return None


def place(text: str) -> list[float]:
    """A behavior as it is written: 0.2,0.9."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        problem = f"must be numbers with commas between, such as 0.2,0.9, got '{text}'"
        raise argparse.ArgumentTypeError(problem) from None


def best_behavior(found: Illumination) -> list[str]:
    """That of the fittest, as `--at` takes it; nothing where there is none."""
    repertoire = found.repertoire
    if not len(repertoire):
        return []
    return [_spelt(repertoire.descriptors[repertoire.fitness.argmax()].tolist())]


def _spelt(descriptor: list[float]) -> str:
    return ",".join(f"{number:.3g}" for number in descriptor)


def spoken(metrics: dict[str, float], offset: float | None = None) -> str:
    """The metrics of a repertoire in one line."""
    above = "" if offset is None else f" above {compact(offset)}"
    return (
        f"QD-score {compact(metrics['qd_score'])}{above}, coverage {metrics['coverage']:.1%}, "
        f"best fitness {compact(metrics['max_fitness'])}"
    )


@contextlib.contextmanager
def opened(
    method: type[Illumination], path: Path, options: argparse.Namespace
) -> Iterator[Illumination]:
    """To play it in this process alone, whatever it was found on."""
    found = method.load(
        path,
        env=options.env,
        trust_environment=options.trust_environment,
        cluster=Cluster(),
        device=device_of(getattr(options, "device", None)),
    )
    with contextlib.closing(found):
        yield found


def chosen(found: Illumination, wanted: list[float] | None) -> tuple[int, Agent]:
    """The cell of the behavior that is nearest to the wanted one, or of the best; its agent."""
    repertoire = found.repertoire
    if wanted is not None:
        cell = repertoire.nearest(wanted)
        return cell, repertoire.agent(cell)
    agent = repertoire.best  # refuses an empty one
    return int(repertoire.filled[repertoire.fitness.argmax()]), agent


def evaluate(found: Illumination, options: argparse.Namespace) -> None:
    """Judge the repertoire anew, or the one policy that is asked for."""
    if options.at is None:
        result, lines = _all_anew(found, options.episodes)
    else:
        result, lines = _one_anew(found, options.at, options.episodes)
    if options.json:
        print(json.dumps(result))
        return
    print(f"{found.name} on {found.env_name} after {found.evaluations:,} evaluations")
    print("\n".join(lines))
    place = quoted(options.run)
    at = best_behavior(found)[0] if options.at is None else _spelt(options.at)
    commands = [f"export {place} policy.onnx --at {at}"]
    if options.at is None:
        commands.insert(0, f"eval {place} --at {at}")
    if (options.run / ABOUT).exists():  # a whole run, not a checkpoint
        commands.insert(0, f"report {place}")
    hint(*commands)


def _all_anew(found: Illumination, episodes: int) -> tuple[dict[str, Any], list[str]]:
    repertoire = found.repertoire
    better, _ = found.reevaluate(episodes)
    result = {
        "episodes": episodes,
        "score_offset": repertoire.offset,
        "found": repertoire.metrics,
        "corrected": better.metrics,
    }
    over = f"over {episodes} fresh episode{'s' * (episodes > 1)} of every policy"
    lines = [
        f"as found        {spoken(repertoire.metrics, repertoire.offset)}",
        f"corrected       {spoken(better.metrics)} ({over})",
    ]
    return result, lines


def _one_anew(
    found: Illumination, wanted: list[float], episodes: int
) -> tuple[dict[str, Any], list[str]]:
    cell = found.repertoire.nearest(wanted)
    cells, names = found.repertoire.cells, found.descriptor.axis_names
    fitness, descriptor = float(cells.fitness[cell]), np.asarray(cells.descriptor[cell])
    again = found.play([cell], episodes)
    returns, described = summarize(again.fitness[0]), again.descriptor[0]
    mean = described.mean(axis=0)
    result = {
        "cell": cell,
        "found": {"fitness": fitness, "descriptor": descriptor.tolist()},
        **returns,
        "descriptor": mean.tolist(),
        "descriptors": described.tolist(),
    }
    over = f"over {episodes} fresh episode{'s' * (episodes > 1)}"
    lines = [
        f"nearest         cell {cell}, found with fitness {compact(fitness)} at "
        + _named(names, descriptor),
        f"{over}: fitness {compact(returns['mean'])} ± {compact(returns['std'])} at "
        + _named(names, mean),
    ]
    return result, lines


def _named(names: tuple[str, ...], numbers: np.ndarray) -> str:
    return ", ".join(f"{name} {number:.3g}" for name, number in zip(names, numbers, strict=True))
