"""Measure the time of an update of each recipe, beside its algorithm without a recipe.

    PYTHONPATH=src python benchmarks/recipe_cost.py            # all recipes, interleaved
    PYTHONPATH=src python benchmarks/recipe_cost.py --only flashsac crossq --rounds 9

An update is the library's own, guarded, from a replay buffer of random transitions (17 observations
and 6 actions as HalfCheetah-v5, or 8 observations and 4 choices as LunarLander-v3). A slice holds
whole periods of the actor's delay, so its share is counted; the program knows their places in it,
as those of the host loop do. The programs take turns. Ratios are those of
the same round: median, smallest and largest. The cost of a step is that of an update times the
updates per step; `fasttd3` does its updates per step of all environments. With --xla-defaults the
compiler has its default options, and delayed parts are in conditionals.

Raw slices go to results/recipe_cost_{device}.csv, the table to the .md file beside it.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from accelerator import SPEC as CONTINUOUS
from accelerator import initial_learners
from reporting import hardware, markdown_list, markdown_table

from understudy.algorithms import find
from understudy.buffers import Buffer
from understudy.training.compilation import compiler_options
from understudy.training.learner import updates
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import make_buffer
from understudy.training.transport import places
from understudy.training.update import LearnerState
from understudy.types import ArraySpec, Chunk, Discrete, Spec, Step

DISCRETE = Spec(ArraySpec((8,)), Discrete(4))
SPECS = {"sac": CONTINUOUS, "td3": CONTINUOUS, "ddqn": DISCRETE}
STEPS = 4_000  # in replay, or a batch if that is larger
COLUMNS = ("method", "batch_size", "round", "updates", "seconds")


class Contestant(NamedTuple):
    """The updates of an algorithm with one recipe or none."""

    algorithm: str
    recipe: str | None
    config: Any
    count: int  # updates in a slice
    run: Callable[[], float]  # does a slice; returns its seconds

    @property
    def name(self) -> str:
        return f"{self.algorithm}-{self.recipe}" if self.recipe else self.algorithm


def random_chunk(spec: Spec, count: int) -> Chunk:
    """Return random steps of one environment; every hundredth terminates."""
    keys = iter(jax.random.split(jax.random.PRNGKey(1), 5))

    def normal(*shape: int) -> jax.Array:
        return jnp.tanh(jax.random.normal(next(keys), (count, 1, *shape)))

    if isinstance(spec.action, Discrete):
        action = jax.random.randint(next(keys), (count, 1), 0, spec.action.n)
    else:
        action = normal(*spec.action.shape)
    width = spec.observation.shape
    ends = jnp.arange(count)[:, None] % 100 == 99
    steps = Step(normal(*width), action, normal(), ends, ends, normal(*width))
    return Chunk(steps, jnp.ones((count, 1), bool))


def enter(name: str, recipe: str | None, least: int, seeds: int, plain: bool) -> Contestant:
    """Compile the updates and do one slice."""
    kind, spec = find(name), SPECS[name]
    own = kind.config_class.recipe_settings(recipe)
    steps = max(STEPS, own.get("batch_size", 0))
    config = kind.config_class.preset(
        None, recipe=recipe, buffer_size=steps + 1_000, min_buffer_size=steps
    )
    algorithm = kind(config)
    delay = algorithm.delays.period
    count = -(-least // delay) * delay
    known = not plain and bool(places(algorithm.delays))
    buffer: Buffer = make_buffer(algorithm, spec, 1)
    data = jax.jit(jax.vmap(lambda _: buffer.add(buffer.init(), random_chunk(spec, steps))))(
        jnp.arange(seeds)
    )

    def many(learner: LearnerState, data: Any, index: Any) -> tuple[LearnerState, Any]:
        return updates(algorithm, buffer, learner, data, 0 if known else index, count)

    program = jax.jit(
        over_seeds(many, seeds, shared=(2,)),
        donate_argnums=0,
        compiler_options=None if plain else compiler_options(jax.devices()[:1]),
    )
    learner = initial_learners(algorithm, spec, seeds)
    first = np.int32(0)

    def run() -> float:
        nonlocal learner
        began = time.perf_counter()
        learner, priorities = program(learner, data, first)
        jax.block_until_ready((learner, priorities))
        return time.perf_counter() - began

    run()
    if int(learner.meter.discarded.sum()):
        raise SystemExit(f"{name} {recipe}: updates were not finite: no measurement")
    return Contestant(name, recipe, config, count, run)


def table(rows: list[tuple[str, int, int, int, float]], contestants: list[Contestant]) -> str:
    """Return milliseconds of an update and ratios to the algorithm without a recipe."""
    each: dict[str, list[float]] = {}
    for name, _, _, count, seconds in rows:
        each.setdefault(name, []).append(1_000 * seconds / count)
    lines = []
    for contestant in contestants:
        config, own = contestant.config, each[contestant.name]
        ratios = [a / b for a, b in zip(own, each[contestant.algorithm], strict=True)]
        median = statistics.median(ratios)
        per_step = config.updates_per_vector_step or config.updates_per_step
        lines.append([
            contestant.name,
            str(config.batch_size),
            f"{statistics.median(own):.3g} ms",
            f"{median:.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
            f"{per_step:g}",
            f"{median * per_step:.1f}",
        ])  # fmt: skip
    header = ["method", "batch", "an update", "ratio to no recipe", "updates per step",
              "cost of a step, no recipe = 1"]  # fmt: skip
    return markdown_table(header, lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="*", default=[], metavar="RECIPE")
    add("--rounds", type=int, default=7)
    add("--updates", type=int, default=20, help="at least so many in a slice")
    add("--seeds", type=int, default=1, help="that learn at once")
    add("--xla-defaults", action="store_true", help="without the library's compiler options")
    add("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    return parser.parse_args()


def main() -> None:
    options = parse()
    contestants = []
    for name in SPECS:
        known = find(name).config_class.recipes
        recipes = [recipe for recipe in known if recipe in options.only or not options.only]
        for recipe in [None, *recipes] if recipes else []:
            print(f"compiling {name} {recipe or ''}", flush=True)
            settings = options.updates, options.seeds, options.xla_defaults
            contestants.append(enter(name, recipe, *settings))
    rows = []
    for place in range(options.rounds):
        for each in contestants:
            rows.append((each.name, each.config.batch_size, place, each.count, each.run()))
        print(f"round {place + 1} of {options.rounds}", flush=True)
    device = jax.devices()[0].device_kind.lower().replace(" ", "_")
    suffix = "_xla_defaults" if options.xla_defaults else ""
    path = options.results / f"recipe_cost_{device}{suffix}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *((*row[:4], f"{row[4]:.6f}") for row in rows)])
    precision = str(jax.config.jax_default_matmul_precision or "default")
    facts = {"device": device, "jax": jax.__version__, "matrix precision": precision, **hardware()}
    page = f"# Cost of recipes\n\n{markdown_list(facts)}\n\n{table(rows, contestants)}\n"
    path.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
