"""A run of quality-diversity as one HTML page: a map to click on, how it grew, who is in it."""

import shlex
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from understudy.errors import CheckpointError
from understudy.qd.config import MAPElitesConfig, PGAMEConfig
from understudy.qd.repertoire import Repertoire
from understudy.qd.repertoire_file import CENTROIDS, unpack
from understudy.qd.tessellation import Cells, Cvt, make_grid
from understudy.reports import page
from understudy.reports.curves import Run, read_run
from understudy.reports.growth import EVALUATIONS, METRICS, OFFSET
from understudy.reports.maps import cells_svg
from understudy.runs import checkpoint
from understudy.runs.progress import compact
from understudy.state_dict import select_prefix

CONFIGS = {"pga-me": PGAMEConfig, "map-elites": MAPElitesConfig}
BEST = 10  # elites with a row of their own


class Map(NamedTuple):
    """The repertoire of a checkpoint without its policies: nothing of the environment is needed."""

    repertoire: Repertoire
    names: tuple[str, ...]


def read_map(run_dir: Path | str) -> Map:
    """From the newest checkpoint of a run directory."""
    stored = checkpoint.read_newest(run_dir)
    about, arrays = stored.manifest, select_prefix(stored.groups.get("world", {}), "repertoire")
    try:
        told, grid = about["described_by"], about["config"]["grid"]
        cells = _cells(arrays, tuple(told["low"]), tuple(told["high"]), grid)
        names = tuple(map(str, told["names"]))
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{stored.place} is no checkpoint of a repertoire") from error
    numbers = {name: array for name, array in arrays.items() if not name.startswith("policies")}
    return Map(unpack(numbers, cells, ()), names)


def _cells(arrays: Any, low: tuple[float, ...], high: tuple[float, ...], grid: Any) -> Cells:
    if grid is not None:
        return make_grid(grid, low, high)
    return Cvt(jnp.asarray(arrays[CENTROIDS]), low, high)


def report(
    run_dir: Path | str, out_html: Path | str | None = None, video: Path | str | None = None
) -> Path:
    """Writes the page (by default `report.html` in the run directory) and says where."""
    run = read_run(run_dir)
    film = "" if video is None else page.film(Path(video))
    out = run.directory / "report.html" if out_html is None else Path(out_html)
    try:
        found, problem = read_map(run_dir), ""
    except CheckpointError as error:
        found, problem = None, f"<p>There is no map: {escape(str(error))}.</p>\n"
    config_class = CONFIGS.get(str(run.about.get("algorithm")))
    growth = [f"qd/{metric}" for metric in METRICS]
    learning = [name for name in run.log if name.startswith("train/")]
    rest = ["time/evaluations_per_second", "qd/inserted", *sorted(learning)]
    sections = [
        page.cards(_headline(run, found)),
        page.section("The map", problem if found is None else cells_svg(*found)),
        page.section("Growth, over evaluations", page.small_multiples(run, growth, EVALUATIONS)),
        page.section("An episode", film),
        page.section("Who is there", "" if found is None else _elites(*found)),
        page.section("In detail, over evaluations", page.small_multiples(run, rest, EVALUATIONS)),
        page.section("Faults", page.faults(run)),
        page.section("Settings", page.settings(run, config_class)),
        page.section("Go on", page.commands(_commands(run, found))),
    ]
    return page.write(out, page.framed(run.title, _subtitle(run), sections))


def _subtitle(run: Run) -> list[str]:
    about = run.about
    named = {"descriptor": "told apart by {}", "preset": "preset {}", "understudy": "understudy {}"}
    parts = [f"{_last(run, EVALUATIONS) or 0:,.0f} evaluations", f"seed {run.first_seed}"]
    return parts + [words.format(about[name]) for name, words in named.items() if about.get(name)]


def _headline(run: Run, found: Map | None) -> list[page.Card]:
    cards: list[page.Card] = []
    score, covered, best = (_last(run, f"qd/{metric}") for metric in METRICS)
    if score is not None and covered is not None and best is not None:
        offset = _last(run, OFFSET)
        above = "" if offset is None else f"above {compact(offset)}"
        cells = "" if found is None else f"of {found.repertoire.cells.count:,} cells"
        cards += [
            ("QD-score", compact(score), above),
            ("Coverage", f"{covered:.1%}", cells),
            ("Best fitness", compact(best), "as found"),
        ]
    again = [_last(run, f"qd/corrected_{metric}") for metric in METRICS]
    if again[0] is not None and again[1] is not None and again[2] is not None:
        episodes = dict(run.about.get("run_config", {})).get("reevaluation_episodes", "some")
        note = f"{episodes} fresh episodes each"
        shown = (compact(again[0]), f"{again[1]:.1%}", compact(again[2]))
        names = ("Corrected QD-score", "Corrected coverage", "Corrected best")
        cards += [(name, value, note) for name, value in zip(names, shown, strict=True)]
    done, seconds = _last(run, EVALUATIONS), _last(run, "time/time_elapsed")
    if done is not None and seconds:
        cards.append(("Time", str(timedelta(seconds=round(seconds))), "h:mm:ss"))
        cards.append(("Evaluations a second", f"{done / seconds:,.0f}", f"{done:,.0f} in all"))
    return cards


def _last(run: Run, name: str) -> float | None:
    _, values = page.known(run, name)
    return float(values[-1]) if values.size else None


def _elites(repertoire: Repertoire, names: tuple[str, ...]) -> str:
    """The fittest, and those at the ends of each number of the descriptor."""
    filled = np.flatnonzero(repertoire.filled)
    if not len(filled):
        return "<p>Nobody yet.</p>\n"
    fitness, descriptor = np.asarray(repertoire.fitness), np.asarray(repertoire.descriptor)
    fittest = filled[np.argsort(-fitness[filled], kind="stable")[:BEST]]
    told = [(f"{rank}", cell) for rank, cell in enumerate(fittest.tolist(), start=1)]
    for axis, name in enumerate(names):
        along = descriptor[filled, axis]
        told.append((f"least {name}", int(filled[along.argmin()])))
        told.append((f"most {name}", int(filled[along.argmax()])))
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", "fitness", *names, "cell", "choose"))
    rows = []
    for what, cell in told:
        numbers = "".join(f"<td>{number:.4g}</td>" for number in descriptor[cell])
        mark = ' class="marked"' if cell == fittest[0] else ""
        rows.append(
            f"<tr{mark}><td>{escape(what)}</td><td>{compact(float(fitness[cell]))}</td>{numbers}"
            f'<td><a href="#cell-{cell}">{cell}</a></td>'
            f"<td><code>--at {_spelt(descriptor[cell])}</code></td></tr>"
        )
    return page.table(head, rows, "numbers")


def _spelt(descriptor: np.ndarray) -> str:
    return ",".join(f"{number:.4g}" for number in descriptor)


def _commands(run: Run, found: Map | None) -> list[tuple[str, str]]:
    place = shlex.quote(str(run.directory))
    evaluations = 2 * int(_last(run, EVALUATIONS) or 0) or 10_000
    lines = [
        (f"go on until evaluation {evaluations:,}", f"resume {place} --evaluations {evaluations}"),
        ("judge every policy anew", f"eval {place} --episodes 20"),
    ]
    if found is not None and found.repertoire.filled.any():
        best = np.asarray(found.repertoire.descriptor)[int(found.repertoire.fitness.argmax())]
        at = _spelt(best)
        lines += [
            ("play the policy that is nearest to a behavior", f"eval {place} --at {at}"),
            ("take it elsewhere", f"export {place} policy.onnx --at {at}"),
        ]
    return lines
