"""Measure the cost of prioritized replay on the CPU: the same training with and without it.

    python benchmarks/replay.py

SAC on HalfCheetah-v5 (256×256) and DDQN on CartPole-v1 (64×64), batch 256, from a full replay
buffer of a million random transitions, so that samples come from the whole buffer. Two figures for
each:

- learn: the host loop's learn program back to back (add, sample, update, new priorities);
- loop: whole training steps, with acting and the environment.

Uniform and prioritized slices alternate, and every other round begins with the other one.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from host_parts import HostParts, begin, settle
from reporting import confine, hardware, markdown_list, markdown_table

from understudy.agent import agent_class
from understudy.buffers import Priorities, ReplayBuffer, ReplayState, sum_tree
from understudy.types import Discrete

VARIANTS = ("uniform", "prioritized")
PIECES = 64  # in which priorities are filled in: all at once would take much memory
PAUSE = 0.1  # seconds between slices


@dataclass(frozen=True)
class Task:
    algorithm: str
    environment: str
    settings: dict[str, Any]
    pace: int  # how many times as long its slices are, in steps

    def describe(self) -> str:
        return f"{self.algorithm.upper()} on {self.environment}"


BATCH_SIZE = 256
TASKS = (
    Task("sac", "HalfCheetah-v5", dict(hidden_sizes=(256, 256)), pace=1),
    Task(
        "ddqn",
        "CartPole-v1",
        dict(hidden_sizes=(64, 64), initial_epsilon=0.05, final_epsilon=0.05),
        pace=4,
    ),
)


@dataclass(frozen=True)
class Slice:
    task: Task
    measure: str
    variant: str
    round: int
    count: int
    seconds: float

    @property
    def microseconds(self) -> float:
        return 1e6 * self.seconds / self.count


# -- A full ring --------------------------------------------------------------------------------


def full_replay(buffer: ReplayBuffer) -> ReplayState:
    """Random transitions, where every hundredth terminates. The cursor is at the first slot."""

    spec, capacity = buffer.spec, buffer.capacity

    def fill(key: Any) -> ReplayState:
        empty = buffer.init()
        keys = iter(jax.random.split(key, 6))

        def random(store: Any) -> Any:
            if store.dtype == jnp.bool_:
                return jax.random.bernoulli(next(keys), 0.01, store.shape)
            if isinstance(spec.action, Discrete) and store.dtype == jnp.int32:
                return jax.random.randint(next(keys), store.shape, 0, spec.action.n)
            return jnp.tanh(jax.random.normal(next(keys), store.shape, store.dtype))

        storage = jax.tree.map(random, empty.storage)
        return empty._replace(storage=storage, stored=jnp.full_like(empty.stored, capacity))

    filled = jax.jit(fill)(jax.random.PRNGKey(1))
    if filled.priorities is None:
        return filled
    return filled._replace(priorities=random_priorities(filled.priorities, capacity))


def random_priorities(empty: Priorities, capacity: int) -> Priorities:
    """For every slot but the first, which is under the cursor."""
    errors = np.abs(np.random.default_rng(0).standard_normal(capacity))
    values = (errors**0.6).astype(np.float32)
    write = jax.jit(sum_tree.write, donate_argnums=0)
    tree = empty.tree
    for part in np.array_split(np.arange(capacity, dtype=np.int32), PIECES):
        tree = write(tree, part + 1, values[part])
    return Priorities(tree, jnp.float32(values.max()))


# -- One side of a comparison -------------------------------------------------------------------


class Side:
    """A trainer with a full ring, past its warm-up."""

    def __init__(self, task: Task, prioritized: bool, capacity: int, warm_up: int):
        kind = agent_class(task.algorithm)
        config = kind.algorithm_class.config_class(
            **task.settings,
            batch_size=BATCH_SIZE,
            buffer_size=capacity,
            start_steps=0,
            min_buffer_size=1,
            prioritized=prioritized,
        )
        self._agent = kind(task.environment, config)
        self._trainer = begin(self._agent)
        filled = full_replay(self._trainer.buffer)
        self._trainer.experience = jax.tree.map(lambda x: x[None], filled)
        self._parts = HostParts(self._trainer)
        for measure in self.measures():
            self.seconds(measure, warm_up)

    def measures(self) -> dict[str, Callable[[int], None]]:
        return {"loop": self._trainer.advance, "learn": self._learn}

    def _learn(self, count: int) -> None:
        for _ in range(count):
            self._parts.learn()

    def seconds(self, measure: str, count: int) -> float:
        """Of `count` steps, or of `count` times learning from the last one."""
        settle(self._trainer)
        updates, began = self._trainer.position.updates, time.perf_counter()
        self.measures()[measure](count)
        settle(self._trainer)
        passed = time.perf_counter() - began
        if self._trainer.position.updates - updates < count - 1:  # before a first step is none
            raise SystemExit(f"{self._agent}: fewer updates than steps: no measurement")
        return passed

    def close(self) -> None:
        discarded = int(self._trainer.learner.meter.discarded.sum())
        self._agent.close()
        if discarded:
            raise SystemExit(f"{self._agent}: {discarded} updates were not finite: no measurement")


def measure_task(task: Task, options: argparse.Namespace) -> list[Slice]:
    began = time.perf_counter()
    sides = {
        variant: Side(task, variant == "prioritized", options.ring, options.warm_up)
        for variant in VARIANTS
    }
    print(f"{task.describe()}: ready after {time.perf_counter() - began:.1f} s", flush=True)
    count, slices = options.slice_steps * task.pace, []
    for number in range(1, options.rounds + 1):
        order = VARIANTS if number % 2 else VARIANTS[::-1]
        for measure in ("learn", "loop"):
            for variant in order:
                time.sleep(PAUSE)
                seconds = sides[variant].seconds(measure, count)
                slices.append(Slice(task, measure, variant, number, count, seconds))
        latest = [f"{s.measure} {s.variant} {s.microseconds:.0f}" for s in slices[-4:]]
        print(f"round {number}/{options.rounds}, µs: {'  '.join(latest)}", flush=True)
    for side in sides.values():
        side.close()
    return slices


# -- The report ---------------------------------------------------------------------------------


def comparison(slices: list[Slice]) -> list[list[str]]:
    """A table row per task and measure: medians, their ratio, and the range over the rounds."""
    rows = []
    for task, measure in dict.fromkeys((piece.task.describe(), piece.measure) for piece in slices):
        mine = [s for s in slices if (s.task.describe(), s.measure) == (task, measure)]
        by_variant = {
            variant: {s.round: s.microseconds for s in mine if s.variant == variant}
            for variant in VARIANTS
        }
        medians = [statistics.median(times.values()) for times in by_variant.values()]
        plain, dear = by_variant.values()
        ratios = [dear[number] / plain[number] for number in plain]
        row = [task, measure, *(f"{median:,.1f}" for median in medians)]
        row += [f"{medians[1] - medians[0]:+,.1f}", f"{medians[1] / medians[0]:.3f}×"]
        rows.append([*row, f"{min(ratios):.2f}–{max(ratios):.2f}"])
    return rows


def report(about: dict[str, str], slices: list[Slice], capacity: int) -> str:
    header = ["task", "measure", "uniform, µs", "prioritized, µs", "difference, µs"]
    header += ["prioritized takes", "min–max of rounds"]
    method = (
        f"Per step, medians of slices in turn, and their ratio. Batch {BATCH_SIZE}, a full ring of "
        f"{capacity:,} transitions. learn is the learn program alone (add, sample, update, new "
        "priorities); loop is a whole training step with acting and the environment."
    )
    parts = ["# What prioritized replay costs", method, markdown_list(about)]
    return "\n\n".join([*parts, markdown_table(header, comparison(slices))]) + "\n"


def write(results: Path, slices: list[Slice], text: str) -> None:
    results.mkdir(parents=True, exist_ok=True)
    table, page = results / "replay_cpu.csv", results / "replay_cpu.md"
    with open(table, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["algorithm", "env", "measure", "replay", "round", "count", "seconds"])
        for s in slices:
            row = [s.task.algorithm, s.task.environment, s.measure, s.variant, s.round, s.count]
            writer.writerow([*row, f"{s.seconds:.6f}"])
    page.write_text(text)
    print(f"\n{text}\nwritten to {table} and {page}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rounds", type=int, default=11)
    add("--slice-steps", type=int, default=400, help="of SAC; DDQN takes four times as many")
    add("--warm-up", type=int, default=200, help="steps of each kind before the first slice")
    add("--ring", type=int, default=1_000_000, help="transitions")
    add("--cores", type=int, default=2)
    add("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    return parser.parse_args()


def main() -> None:
    options = parse()
    confine(options.cores)
    jax.config.update("jax_platforms", "cpu")
    about = hardware() | {"jax": jax.__version__}
    slices = [piece for task in TASKS for piece in measure_task(task, options)]
    write(options.results, slices, report(about, slices, options.ring))


if __name__ == "__main__":
    main()
