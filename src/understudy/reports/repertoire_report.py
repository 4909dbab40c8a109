"""The page of a run of quality-diversity: a map to click on, its growth, its best policies."""

import shlex
from html import escape
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from understudy.errors import CheckpointError
from understudy.qd.config import MAPElitesConfig, PGAMEConfig
from understudy.qd.repertoire import Repertoire, empty
from understudy.qd.snapshot import CENTROIDS, unpack
from understudy.qd.tessellation import Cvt, make_grid
from understudy.reports import page
from understudy.reports.growth import EVALUATIONS, METRICS, OFFSET
from understudy.reports.maps import cells_svg
from understudy.reports.run_log import Run
from understudy.runs import checkpoint
from understudy.runs.progress import compact
from understudy.state_dict import select_prefix

CONFIGS = {"pga-me": PGAMEConfig, "map-elites": MAPElitesConfig}
BEST = 10  # policies with a row of their own


class Map(NamedTuple):
    """The repertoire of a checkpoint without its policies. The environment is not needed."""

    repertoire: Repertoire
    names: tuple[str, ...]


def read_map(run_dir: Path | str) -> Map:
    """Read the repertoire from the newest checkpoint of a run directory."""
    stored = checkpoint.read_newest(run_dir)
    about, arrays = stored.manifest, select_prefix(stored.groups.get("world", {}), "repertoire")
    try:
        bounds, grid = about["described_by"], about["config"]["grid"]
        low, high = tuple(bounds["low"]), tuple(bounds["high"])
        if grid is not None:
            cells = make_grid(grid, low, high)
        else:
            cells = Cvt(jnp.asarray(arrays[CENTROIDS]), low, high)
        names = tuple(map(str, bounds["names"]))
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{stored.place} is no checkpoint of a repertoire") from error
    numbers = {name: array for name, array in arrays.items() if not name.startswith("policies")}
    return Map(unpack(numbers, empty(cells, ())), names)


def describe_repertoire(run: Run, film: str) -> page.Content:
    """The content of the run's page."""
    try:
        found, problem = read_map(run.directory), ""
    except CheckpointError as error:
        found, problem = None, f"<p>There is no map: {escape(str(error))}.</p>\n"
    growth = [f"qd/{metric}" for metric in METRICS]
    learning = sorted(name for name in run.log if name.startswith("train/"))
    rest = ["time/evaluations_per_second", "qd/inserted", *learning]
    return page.Content(
        _subtitle(run),
        _headline(run, found),
        {
            "The map": problem if found is None else cells_svg(*found),
            "Growth, over evaluations": page.small_multiples(run, growth, EVALUATIONS),
            "An episode": film,
            "Best and extreme policies": "" if found is None else _elites(*found),
            "In detail, over evaluations": page.small_multiples(run, rest, EVALUATIONS),
        },
        CONFIGS.get(str(run.about.get("algorithm"))),
        _commands(run, found),
    )


def _subtitle(run: Run) -> list[str]:
    parts = [f"{run.last(EVALUATIONS) or 0:,.0f} evaluations", f"seed {run.first_seed}"]
    return parts + run.facts("env_args", "descriptor", "preset", "understudy")


def _headline(run: Run, found: Map | None) -> list[page.Card]:
    offset, done = run.last(OFFSET), run.last(EVALUATIONS)
    above = "" if offset is None else f"above {compact(offset)}"
    cells = "" if found is None else f"of {found.repertoire.cells.count:,} cells"
    as_found = {"QD-score": above, "Coverage": cells, "Best fitness": "as found"}
    episodes = dict(run.about.get("run_config", {})).get("reevaluation_episodes", "some")
    fresh, names = f"{episodes} fresh episodes each", ("QD-score", "coverage", "best")
    corrected = {f"Corrected {name}": fresh for name in names}
    return [
        *_metric_cards(run, "qd/", as_found),
        *_metric_cards(run, "qd/corrected_", corrected),
        *page.speed_cards(run, done, "Evaluations", f"{done or 0:,.0f} in total"),
    ]


def _metric_cards(run: Run, prefix: str, notes: dict[str, str]) -> list[page.Card]:
    """Cards of QD-score, coverage and best fitness, with these names and notes."""
    score, covered, best = (run.last(prefix + metric) for metric in METRICS)
    if score is None or covered is None or best is None:
        return []
    values = (compact(score), f"{covered:.1%}", compact(best))
    return list(zip(notes, values, notes.values(), strict=True))


def _elites(repertoire: Repertoire, names: tuple[str, ...]) -> str:
    """The fittest policies, and the extremes of each number of the descriptor."""
    filled = np.flatnonzero(repertoire.filled)
    if not len(filled):
        return "<p>No policy yet.</p>\n"
    fitness, descriptor = np.asarray(repertoire.fitness), np.asarray(repertoire.descriptor)
    fittest = filled[np.argsort(-fitness[filled], kind="stable")[:BEST]]
    listed = [(f"{rank}", cell) for rank, cell in enumerate(fittest.tolist(), start=1)]
    for axis, name in enumerate(names):
        along = descriptor[filled, axis]
        listed.append((f"least {name}", int(filled[along.argmin()])))
        listed.append((f"most {name}", int(filled[along.argmax()])))
    rows = []
    for what, cell in listed:
        numbers = [f"{number:.4g}" for number in descriptor[cell]]
        link = f'<a href="#cell-{cell}">{cell}</a>'
        flag = page.code(f"--at {','.join(numbers)}")
        cells = [escape(what), compact(float(fitness[cell])), *numbers, link, flag]
        rows.append(page.row(cells, 'class="marked"' if cell == fittest[0] else ""))
    return page.table(["", "fitness", *names, "cell", "choose"], rows, "numbers")


def _commands(run: Run, found: Map | None) -> list[tuple[str, str]]:
    place = shlex.quote(str(run.directory))
    total = 2 * int(run.last(EVALUATIONS) or 0) or 10_000
    lines = [
        (f"continue until evaluation {total:,}", f"resume {place} --evaluations {total}"),
        ("evaluate every policy again", f"eval {place} --episodes 20"),
    ]
    if found is not None and found.repertoire.filled.any():
        best = np.asarray(found.repertoire.descriptor)[int(found.repertoire.fitness.argmax())]
        at = ",".join(f"{number:.4g}" for number in best)
        lines += [
            ("play the policy nearest to a behavior", f"eval {place} --at {at}"),
            ("export it", f"export {place} policy.onnx --at {at}"),
        ]
    return lines
