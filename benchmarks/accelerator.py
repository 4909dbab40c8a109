"""Measure speed on an accelerator: updates inside the scan, and the host loop with one environment.

    PYTHONPATH=src python benchmarks/accelerator.py

(a) updates per second of one and of many seeds: the library's guarded updates from a replay buffer
    of random transitions, with donated state (17 observations, 6 actions, 256×256, batch 256);
(b) the host loop on HalfCheetah-v5, one update per step, and the parts of a step.

The matrix precision is JAX's default unless --precision says otherwise, and is printed. Every
figure is a median of repeats after a warm-up. Measurements that do not fit in --budget are skipped
with a message. Raw repeats go to results/accelerator_{device}.csv.
"""

import argparse
import csv
import importlib.util
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from host_parts import HostParts, begin, settle

from understudy.agent import agent_class
from understudy.algorithms import find
from understudy.buffers import ReplayBuffer, ReplayState
from understudy.training.initialization import init_learner
from understudy.training.learner import updates
from understudy.training.seed_axis import INITIALIZATION, over_seeds, seed_keys
from understudy.training.update import LearnerState
from understudy.types import ArraySpec, Continuous, Spec

SPEC = Spec(ArraySpec((17,)), Continuous(low=(-1.0,) * 6, high=(1.0,) * 6, shape=(6,)))
ALGORITHMS = ("sac", "td3", "ddpg", "mpo")  # with replay and continuous actions
ENVIRONMENT = "HalfCheetah-v5"
START_STEPS = 1_000


class Record:
    """Prints medians and keeps every repeat for the CSV."""

    def __init__(self, budget: float):
        self._began, self._budget = time.perf_counter(), budget
        self.rows: list[list[Any]] = []

    def keep(self, measure: str, unit: str, values: list[float]) -> None:
        self.rows += [[measure, unit, place, value] for place, value in enumerate(values)]
        median, low, high = statistics.median(values), min(values), max(values)
        print(f"{measure:40} {median:12,.1f} {unit:10} ({low:,.1f}–{high:,.1f})", flush=True)

    def spent(self, left_out: str) -> bool:
        """Whether the budget is used up; then `left_out` is said to be missing."""
        over = time.perf_counter() - self._began > self._budget
        if over:
            print(f"{left_out}: left out, the budget of {self._budget:.0f} s is spent", flush=True)
        return over

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["measure", "unit", "repeat", "value"])
            writer.writerows(self.rows)
        print(f"written to {path}")


# -- (a) updates inside the scan ----------------------------------------------------------------


def random_replay(members: int, buffer: ReplayBuffer) -> ReplayState:
    """Full buffers [members, ...] of random transitions, where every hundredth terminates."""

    def fill(key: Any) -> ReplayState:
        empty = buffer.init()
        keys = iter(jax.random.split(key, 6))

        def random(store: Any) -> Any:
            if store.dtype == jnp.bool_:
                return jax.random.bernoulli(next(keys), 0.01, store.shape)
            return jnp.tanh(jax.random.normal(next(keys), store.shape, store.dtype))

        storage = jax.tree.map(random, empty.storage)
        return empty._replace(storage=storage, stored=jnp.full_like(empty.stored, buffer.capacity))

    return jax.jit(jax.vmap(fill))(jax.random.split(jax.random.PRNGKey(1), members))


def initial_learners(algorithm: Any, spec: Spec, members: int) -> LearnerState:
    initial = partial(init_learner, algorithm, spec, 1)
    return jax.jit(jax.vmap(initial))(seed_keys(0, members, INITIALIZATION))


def measure_scan(name: str, members: int, options: argparse.Namespace, record: Record) -> None:
    kind = find(name)
    algorithm = kind(kind.config_class(batch_size=options.batch, buffer_size=options.ring))
    buffer = ReplayBuffer(SPEC, options.ring, 1, options.batch)
    full, learner = random_replay(members, buffer), initial_learners(algorithm, SPEC, members)
    count = options.updates

    def many(learner: LearnerState, full: ReplayState, index: Any) -> LearnerState:
        return updates(algorithm, buffer, learner, full, index, count)[0]

    program = jax.jit(over_seeds(many, members, shared=(2,)), donate_argnums=0)
    began = time.perf_counter()
    learner = jax.block_until_ready(program(learner, full, np.int32(0)))
    first_call = time.perf_counter() - began
    seconds = []
    for repeat in range(1, options.repeats + 1):
        began = time.perf_counter()
        learner = jax.block_until_ready(program(learner, full, np.int32(repeat * count)))
        seconds.append(time.perf_counter() - began)
    discarded = int(learner.meter.discarded.sum())
    if discarded:
        raise SystemExit(f"{name}: {discarded} updates were not finite: no measurement")
    rates = [members * count / passed for passed in seconds]
    record.keep(f"{name} scan, {members} members", "updates/s", rates)
    record.keep(f"{name} scan, {members} members, first call", "s", [first_call])


# -- (b) the host loop --------------------------------------------------------------------------


def measure_host(name: str, options: argparse.Namespace, record: Record) -> None:
    kind = agent_class(name)
    config = kind.algorithm_class.config_class(
        start_steps=START_STEPS, min_buffer_size=START_STEPS, batch_size=options.batch
    )
    agent = kind(ENVIRONMENT, config)
    trainer = begin(agent)
    began = time.perf_counter()
    trainer.advance(START_STEPS + options.host_steps // 2)
    settle(trainer)
    record.keep(f"{name} host loop, warm-up", "s", [time.perf_counter() - began])
    rates = []
    for _ in range(options.host_slices):
        updates_before, began = trainer.position.updates, time.perf_counter()
        trainer.advance(options.host_steps)
        settle(trainer)
        rates.append(options.host_steps / (time.perf_counter() - began))
        assert trainer.position.updates - updates_before == options.host_steps
    record.keep(f"{name} host loop, one seed", "steps/s", rates)
    measure_parts(name, trainer, options.calls, record)
    agent.close()


def measure_parts(name: str, trainer: Any, calls: int, record: Record) -> None:
    """What a step of the host loop is made of, each part alone with an idle device."""
    parts = HostParts(trainer)
    rows = parts.rows.view(np.uint8)

    def keep(part: str, values: list[float]) -> None:
        record.keep(f"{name} {part}", "µs", values)

    keep("act, until the call returns", microseconds(parts.act, calls))
    keep(
        "act, until the action is on the host", microseconds(lambda: np.asarray(parts.act()), calls)
    )
    keep("learn, until the call returns", microseconds(parts.learn, calls, parts.finish))
    began = time.perf_counter()
    for _ in range(calls):
        parts.learn()
    jax.block_until_ready(parts.finish())
    keep("learn, back to back", [1e6 * (time.perf_counter() - began) / calls])
    sent = microseconds(lambda: jax.block_until_ready(jax.device_put(rows)), calls)
    keep(f"transfer of {rows.nbytes} bytes", sent)


def microseconds(
    call: Callable[[], Any], calls: int, finish: Callable[[], Any] = lambda: None
) -> list[float]:
    """Of each call; the device is idle when it begins."""
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        result = call()
        times.append(1e6 * (time.perf_counter() - began))
        jax.block_until_ready((result, finish()))
    return times[len(times) // 10 :]  # the first ones pay for what is set up once


def measure_dispatch(calls: int, record: Record) -> None:
    program, value = jax.jit(lambda x: x + 1), jnp.zeros(())
    program(value).block_until_ready()
    call = microseconds(lambda: program(value), calls)
    record.keep("empty program, until the call returns", "µs", call)
    whole = microseconds(lambda: np.asarray(program(value)), calls)
    record.keep("empty program, until on the host", "µs", whole)


def measure_environment(steps: int, record: Record) -> None:
    import gymnasium

    env = gymnasium.make(ENVIRONMENT)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(steps)]
    rates = []
    for repeat in range(3):
        env.reset(seed=repeat)
        began = time.perf_counter()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        rates.append(steps / (time.perf_counter() - began))
    env.close()
    record.keep("env.step alone", "steps/s", rates)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--algorithms", nargs="+", default=["sac", "td3"], choices=ALGORITHMS)
    add("--members", nargs="+", type=int, default=[1, 64, 4, 16], help="in order of importance")
    add("--updates", type=int, default=1_000, help="in one scan")
    add("--repeats", type=int, default=5)
    add("--ring", type=int, default=100_000, help="transitions per member")
    add("--batch", type=int, default=256)
    add("--host-slices", type=int, default=5)
    add("--host-steps", type=int, default=1_000, help="per slice")
    add("--calls", type=int, default=300, help="of each part of a step")
    add("--precision", choices=("default", "tensorfloat32", "highest"), default="default")
    add("--budget", type=float, default=200.0, help="seconds after which nothing new is begun")
    add("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    return parser.parse_args()


def measure(options: argparse.Namespace, record: Record) -> None:
    """The most important figures first, in case the budget is spent."""
    measure_dispatch(options.calls, record)
    head, tail = options.members[:2], options.members[2:]
    for members in head:
        measure_scan(options.algorithms[0], members, options, record)
    missing = [name for name in ("gymnasium", "mujoco") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"host loop: skipped, {' and '.join(missing)} is not installed here")
    else:
        measure_environment(options.host_steps, record)
        for name in options.algorithms:
            if not record.spent(f"{name} host loop"):
                measure_host(name, options, record)
    rest = [(name, members) for name in options.algorithms[1:] for members in head]
    rest += [(name, members) for name in options.algorithms for members in tail]
    for name, members in rest:
        if not record.spent(f"{name} scan, {members} members"):
            measure_scan(name, members, options, record)


def main() -> None:
    options = parse()
    if options.precision != "default":
        jax.config.update("jax_default_matmul_precision", options.precision)
    device = jax.devices()[0]
    print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}")
    print(f"matmul precision: {options.precision}; batch {options.batch}, ring {options.ring:,}")
    record = Record(options.budget)
    about = f"{device.device_kind}; jax {jax.__version__}; matmul precision {options.precision}"
    record.rows.append([about, "", "", ""])
    suffix = device.device_kind.lower().replace(" ", "_")
    try:
        measure(options, record)
    finally:
        record.write(options.results / f"accelerator_{suffix}.csv")


if __name__ == "__main__":
    main()
