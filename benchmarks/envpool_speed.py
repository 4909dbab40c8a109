"""Compare EnvPool with our own ways to step many environments: HalfCheetah, eight environments.

    python benchmarks/envpool_speed.py                # needs understudy[envpool,mujoco]
    python benchmarks/envpool_speed.py --rounds 3 --seconds 2 --csv FILE.csv

(A script that is called envpool.py would hide the package.)

It measures stepping alone, and SAC with one update in 32 transitions. The contestants take turns
within a round, so that a slow minute of the machine affects all of them.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from reporting import confine, hardware, markdown_list, markdown_table

import understudy as us
from understudy.envs import EpisodeSeeds, resolve

ENV, ENVS = "HalfCheetah-v5", 8
UPDATES_PER_STEP = 1 / 32
# Name -> environment, worker processes, arguments of the environment.
CONTESTANTS = {
    "this process": (ENV, 0, {}),
    "1 worker process": (ENV, 1, {}),
    "2 worker processes": (ENV, 2, {}),
    "EnvPool, 1 thread": (f"envpool:{ENV}", 0, {"num_threads": 1}),
    "EnvPool, 2 threads": (f"envpool:{ENV}", 0, {"num_threads": 2}),
}
Measure = Callable[[float], float]  # seconds -> transitions per second
COLUMNS = ("what", "contestant", "round", "transitions_per_second")
Row = tuple[str, str, int, str]


def stepping(name: str) -> Measure:
    env, workers, args = CONTESTANTS[name]
    source = resolve(env, ENVS, env_args=args)
    envs = source.make_host(ENVS, EpisodeSeeds(0, ENVS), workers)
    envs.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (64, ENVS, 6)).astype(np.float32)

    def measure(seconds: float) -> float:
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            for action in actions:
                envs.step(action)
            steps += len(actions) * ENVS
        return steps / (time.perf_counter() - begun)

    return measure


def training(name: str) -> Measure:
    env, workers, args = CONTESTANTS[name]
    config = us.SACConfig(updates_per_step=UPDATES_PER_STEP, buffer_size=100_000, start_steps=1_000)
    agent = us.SAC(env, config, num_envs=ENVS, env_workers=workers, env_args=args)
    trainer = agent.trainer
    trainer.begin_training(10**9)
    trainer.advance(512)  # compiles

    def measure(seconds: float) -> float:
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            trainer.advance(128)
            steps += 128 * ENVS
        trainer.block_until_ready()
        return steps / (time.perf_counter() - begun)

    return measure


def compare(what: str, make: Callable[[str], Measure], rounds: int, seconds: float) -> list[Row]:
    """Let the contestants take turns, print a table, and return all measurements."""
    measures = {name: make(name) for name in CONTESTANTS}
    found: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for _ in range(rounds):
        for name, measure in measures.items():
            measure(seconds / 10)  # wakes its threads and processes
            found[name].append(measure(seconds))
    base = found["this process"]
    rows = []
    for name, speeds in found.items():
        ratios = [speed / other for speed, other in zip(speeds, base, strict=True)]
        spread = f"{min(speeds):,.0f} … {max(speeds):,.0f}"
        rows.append([name, f"{statistics.median(speeds):,.0f}", spread,
                     f"{statistics.median(ratios):.2f}"])  # fmt: skip
    print(f"\n### {what}\n")
    print(markdown_table(["", "transitions/s", "range", "ratio to this process"], rows), flush=True)
    each = [(name, *pair) for name, speeds in found.items() for pair in enumerate(speeds)]
    return [(make.__name__, name, place, f"{speed:.1f}") for name, place, speed in each]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--csv", type=Path, help="where the measurements are written")
    options = parser.parse_args()
    confine(options.cores)
    print(markdown_list(hardware()))
    title = f"SAC with one update in {round(1 / UPDATES_PER_STEP)} transitions"
    measured: list[Row] = []
    for what, make in ((f"Stepping {ENVS} × {ENV}", stepping), (title, training)):
        measured += compare(what, make, options.rounds, options.seconds)
    if options.csv:
        with options.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *measured])


if __name__ == "__main__":
    main()
