"""The data of the evidence queue (`proof.py`): rows, their CSV files, the table and the figures.

A table maps (seed, steps, kind) to a line of the CSV, so an evaluation that is repeated replaces
the earlier one. Files are written to a temporary name and then renamed.
"""

import csv
import dataclasses
import io
import json
import subprocess
from collections.abc import Iterable
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from proof_rows import Reference, Row
from reporting import hardware, markdown_table

import understudy
from understudy.agent import agent_class
from understudy.ops.statistics import iqm, stratified_bootstrap_interval
from understudy.reports import figures
from understudy.reports.run_log import Curve
from understudy.runs.files import write_whole

FACTS = ("understudy", "commit", "jax", "jaxlib", "gymnasium", "mujoco", "device", "host",
         "precision")  # fmt: skip
COLUMNS: tuple[str, ...] = (
    "algorithm", "env", "seed", "steps", "kind", "episodes", "mean_return", "wall_seconds",
    "seeds_in_program", *FACTS,
)  # fmt: skip
TRAINING, FINAL = "training", "final"  # kinds of evaluations
VERSIONS_OF_TASKS = """The published numbers are of the v1 to v4 tasks. According to the Gymnasium
documentation HalfCheetah is the same in v5; Hopper, Walker2d and Ant changed in v5 (rewards of
unhealthy states, friction of Walker2d's feet, contact cost and observation of Ant), so their
numbers are a rough measure only."""

Key = tuple[int, int, str]  # seed, steps, kind
Table = dict[Key, dict[str, str]]


class Standing(NamedTuple):
    """What is known of a row: the scores of the seeds that got furthest."""

    complete: bool
    kind: str
    steps: int
    scores: dict[int, float]  # by seed
    best: float  # highest mean over these seeds of the evaluations during training

    def progress(self, row: Row) -> str:
        if self.kind == FINAL:
            return f"{row.steps:,}"
        return f"{min(self.steps, row.steps):,} of {row.steps:,}"


def read(path: Path) -> Table:
    """Empty where there is no file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    return {(int(line["seed"]), int(line["steps"]), line["kind"]): line for line in lines}


def write(path: Path, table: Table) -> None:
    """The old file or the new one, at every instant."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    order = sorted(table, key=lambda key: (key[1], key[2] == FINAL, key[0]))
    writer.writerows(table[key] for key in order)
    write_whole(path, buffer.getvalue())


def finished(row: Row, table: Table) -> set[int]:
    """The seeds whose final evaluation took place at the planned steps."""
    return {
        seed
        for seed, steps, kind in table
        if kind == FINAL and steps >= row.steps and seed in row.seeds
    }


def standing(row: Row, table: Table) -> Standing | None:
    """None where there is no evaluation yet."""
    own = {key: line for key, line in table.items() if key[0] in row.seeds}
    done = finished(row, own)
    kind = FINAL if done else TRAINING
    reached = [steps for seed, steps, what in own if what == kind and (not done or seed in done)]
    if not reached:
        return None
    steps = max(reached)
    scores = {
        seed: float(own[seed, steps, kind]["mean_return"])
        for seed in row.seeds
        if (seed, steps, kind) in own
    }
    curves = _curves(own, scores)
    common = set.intersection(*(set(curve) for curve in curves.values()))
    means = [np.mean([curve[at][0] for curve in curves.values()]) for at in common]
    best = float(max(means, default=np.nan))
    return Standing(done == set(row.seeds), kind, steps, scores, best)


def _curves(table: Table, seeds: Iterable[int]) -> dict[int, dict[int, tuple[float, float]]]:
    """Of each seed, by steps: mean return and wall seconds of the evaluations during training."""
    curves: dict[int, dict[int, tuple[float, float]]] = {seed: {} for seed in seeds}
    for (seed, steps, kind), line in sorted(table.items()):
        if kind == TRAINING and seed in curves:
            curves[seed][steps] = float(line["mean_return"]), float(line["wall_seconds"])
    return curves


def settings(row: Row) -> dict[str, Any]:
    """All that decides a row's results, except for the seeds; as JSON reads it back."""
    algorithm = agent_class(row.algorithm).algorithm_class
    config_class = algorithm.config_class
    config = config_class.preset(row.env, recipe=row.recipe)
    preset = config_class.preset_name(row.env)
    fixed = ("algorithm", "env", "steps", "evaluate_every", "episodes", "final_episodes")
    found = {name: getattr(row, name) for name in fixed}
    found |= {"recipe": row.recipe} if row.recipe else {}
    found |= {"preset": preset, "num_envs": row.num_envs or algorithm.num_envs}
    return json.loads(json.dumps(found | {"config": dataclasses.asdict(config)}))


def changes(row: Row, stored: Path) -> list[str]:
    """The settings in which a stored file differs from the present ones; none without a file."""
    if not stored.exists():
        return []
    old, new = json.loads(stored.read_text(encoding="utf-8")), settings(row)
    old, new = ({**each.pop("config"), **each} for each in (old, new))
    names = [name for name in {**old, **new} if old.get(name, "unset") != new.get(name, "unset")]
    return [f"{name} was {old.get(name, 'unset')}, is {new.get(name, 'unset')}" for name in names]


def origin(commit: str | None) -> dict[str, str]:
    """What an evaluation was made with."""
    host = hardware()
    return {
        "understudy": understudy.__version__,
        "commit": commit or find_commit(Path(understudy.__file__).resolve().parents[2]),
        **{name: version_of(name) for name in ("jax", "jaxlib", "gymnasium", "mujoco")},
        "device": jax.devices()[0].device_kind,
        "host": f"{host['CPU']}, {host['cores used']} cores",
        "precision": str(jax.config.jax_default_matmul_precision or "default"),  # type: ignore
    }


def version_of(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def find_commit(repository: Path) -> str:
    """With a + where files other than results are changed; "unknown" without git."""
    if not (repository / ".git").exists():
        return "unknown"
    git = ["git", "-C", str(repository)]
    changes = ["status", "--porcelain", "--", ".", ":(exclude)benchmarks/results"]
    try:
        commit, changed = (
            subprocess.run([*git, *command], capture_output=True, text=True, check=True).stdout
            for command in (["rev-parse", "--short=12", "HEAD"], changes)
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip() + ("+" if changed.strip() else "")


# -- the page -----------------------------------------------------------------------------------


def report(matrix: tuple[Row, ...], results: Path, header: str) -> Path:
    """Writes README.md and a figure per task into `results`."""
    tables = {row: read(row.csv(results)) for row in matrix}
    known = {row: found for row in matrix if (found := standing(row, tables[row])) is not None}
    scores = [_score_line(row, known.get(row)) for row in matrix]
    score_header = ["algorithm", "task", "seeds", "steps", "mean ± std", "IQM",
                    "95 % interval of IQM", "best evaluation", "published"]  # fmt: skip
    origin_header = ["row", "device", "host", "versions", "precision", "commit", "wall-clock time",
                     "data"]  # fmt: skip
    origins = [_origin_line(row, tables[row], known[row]) for row in known]
    sources = dict.fromkeys(each.source for row in matrix for each in row.references)
    cited = [f"- {each.name} ({each.metric}): {each.text}" for each in sources]
    pictures = _figures(known, tables, results)
    parts = [
        header,
        markdown_table(score_header, scores),
        "## Published numbers\n\n" + "\n".join(cited) + f"\n\n{VERSIONS_OF_TASKS}" if cited else "",
        "## Origin of the data\n\nWall-clock time is that of training with its evaluations and "
        "compilation, summed over the row's programs. A program trains several seeds at once. A + "
        "after the commit means uncommitted changes.\n",
        markdown_table(origin_header, origins) if origins else "No data yet.",
        "## Learning curves\n\nMean and 95 % bootstrap interval of the seeds' evaluations. Dotted "
        "lines are the first published number of each row.\n",
        "\n".join(f"![{picture.stem}]({picture.name})" for picture in pictures),
    ]
    page = "\n\n".join(part.strip() for part in parts if part) + "\n"
    return write_whole(results / "README.md", page)


def number(value: float, spread: float | None = None) -> str:
    """Of large numbers, only the whole part."""
    digits = 0 if abs(value) >= 1_000 else 1
    return f"{value:,.{digits}f}" + ("" if spread is None else f" ± {spread:,.{digits}f}")


def published(reference: Reference) -> str:
    source = reference.source
    return f"{number(reference.value, reference.spread)} ({source.name}, {source.metric})"


def _score_line(row: Row, found: Standing | None) -> list[str]:
    start = [row.shown_method, row.env]
    references = "<br>".join(map(published, row.references)) or "–"
    if found is None:
        planned = [f"0 of {len(row.seeds)}", f"missing (0 of {row.steps:,})"]
        return [*start, *planned, "–", "–", "–", "–", references]
    scores, planned = list(found.scores.values()), len(row.seeds)
    seeds = str(planned) if len(scores) == planned else f"{len(scores)} of {planned}"
    steps = found.progress(row) if found.kind == FINAL else f"partial: {found.progress(row)}"
    low, high = stratified_bootstrap_interval(scores, iqm)
    return [
        *start,
        seeds,
        steps,
        number(float(np.mean(scores)), float(np.std(scores))),
        number(iqm(scores)),
        f"{number(low)} to {number(high)}",
        number(found.best),
        references,
    ]


def _origin_line(row: Row, table: Table, found: Standing) -> list[str]:
    lines = [line for key, line in table.items() if key[0] in found.scores]
    last = [table[seed, found.steps, found.kind] for seed in found.scores]
    seconds = sum(float(line["wall_seconds"]) / int(line["seeds_in_program"]) for line in last)
    programs = sum(1 / int(line["seeds_in_program"]) for line in last)

    def all_of(name: str) -> str:
        return ", ".join(dict.fromkeys(line[name] for line in lines))

    libraries = ("understudy", "jax", "jaxlib", "gymnasium", "mujoco")
    versions = "; ".join(f"{name} {all_of(name)}" for name in libraries)
    plural = "" if round(programs) == 1 else "s"
    return [
        row.title,
        all_of("device"),
        all_of("host"),
        versions,
        all_of("precision"),
        all_of("commit"),
        f"{seconds / 3600:.2f} h in {round(programs)} program{plural}",
        f"[CSV]({row.name}.csv), [settings]({row.name}.json)",
    ]


# -- the figures --------------------------------------------------------------------------------


def _figures(known: dict[Row, Standing], tables: dict[Row, Table], results: Path) -> list[Path]:
    """One per task, with all its algorithms and recipes."""
    methods = list(dict.fromkeys(row.method for row in tables))
    tasks = list(dict.fromkeys(row.task for row in tables))
    rows = sorted(known, key=lambda row: tasks.index(row.task))
    return [
        _figure(list(same), known, tables, methods, results / f"{task}.png")
        for task, same in groupby(rows, key=lambda row: row.task)
    ]


def _figure(
    rows: list[Row],
    known: dict[Row, Standing],
    tables: dict[Row, Table],
    methods: list[str],
    path: Path,
) -> Path:
    """Returns over steps on the left, over wall-clock time on the right."""
    data = {row: _curves(tables[row], row.seeds) for row in rows}
    seconds = [at[1] for each in data.values() for curve in each.values() for at in curve.values()]
    unit, scale = ("hours", 3600.0) if max(seconds, default=0.0) >= 7200 else ("minutes", 60.0)
    labels = [_label(row, known[row]) for row in rows]
    size = (11, 4.1 + figures.legend_height(labels, 2))
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    handles: dict[str, Any] = {}
    groups: list[figures.Group] = []
    for row, label in zip(rows, labels, strict=True):
        by_seed = [curve for curve in data[row].values() if curve]
        over_steps = figures.Group(label, [_curve(curve, None) for curve in by_seed])
        over_time = figures.Group(label, [_curve(curve, scale) for curve in by_seed])
        place = methods.index(row.method)
        handles[label] = figures.draw_group(left, over_steps, place)
        figures.draw_group(right, over_time, place)
        groups.append(over_steps)
        for axes in (left, right) if row.references else ():
            color = figures.COLORS[place % len(figures.COLORS)]
            axes.axhline(row.references[0].value, color=color, lw=1, ls=":", zorder=1)
    if any(row.references for row in rows):
        handles["published"] = Line2D([], [], color=figures.INK, lw=1, ls=":")
    env, several = rows[0].env, ", seeds of a program at once"
    figures.decorate(left, f"{env}, over steps", "environment steps per seed", "return")
    figures.decorate(right, f"{env}, over wall-clock time", f"{unit} of training{several}", "")
    for axes in (left, right):
        axes.set_xlim(left=0)
    figures.add_legend(figure, handles, 2, figures.seeds_in(groups))
    return figures.save_figure(figure, path)


def _label(row: Row, found: Standing) -> str:
    if found.complete:
        return row.shown_method
    if found.kind == FINAL:
        return f"{row.shown_method}, {len(found.scores)} of {len(row.seeds)} seeds"
    return f"{row.shown_method}, partial: {found.progress(row)} steps"


def _curve(curve: dict[int, tuple[float, float]], scale: float | None) -> Curve:
    """Over steps, or over seconds divided by `scale`."""
    returns, seconds = np.array(list(curve.values())).T
    return Curve(np.array(list(curve), float) if scale is None else seconds / scale, returns)
