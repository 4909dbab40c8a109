"""Measure the speed of the host loop for several chunk lengths, on the accelerator (or CPU).

    python benchmarks/chunks.py --chunks 1 4 8 16 --seeds 1
    python benchmarks/chunks.py --chunks 8 --seeds 16 --workers 14

SAC on HalfCheetah-v5 with one update per step. Each length is warmed up, then measured in
alternating slices, so that a drift of the machine's speed affects all of them. The table shows
medians and ranges of environment steps per second of all seeds together.
"""

import argparse
import cProfile
import csv
import pstats
import time
from pathlib import Path

import jax
import numpy as np
from host_parts import begin, settle

import understudy as us

CONFIG = dict(start_steps=0, min_buffer_size=300, buffer_size=200_000)


def make_agent(chunk_steps: int, options: argparse.Namespace) -> us.Agent:
    config = us.SACConfig(**CONFIG, chunk_steps=chunk_steps)
    return us.SAC("HalfCheetah-v5", config, num_seeds=options.seeds, env_workers=options.workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="processes for environments")
    parser.add_argument("--steps", type=int, default=1_600, help="of each seed, in a slice")
    parser.add_argument("--slices", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="what the main thread does")
    parser.add_argument("--results", type=Path, help="a CSV file for all slices")
    options = parser.parse_args()
    trainers, agents, rows = {}, [], []
    for chunk in options.chunks:
        began = time.perf_counter()
        agents.append(make_agent(chunk, options))
        trainers[chunk] = begin(agents[-1])
        trainers[chunk].advance(480)  # past the first updates: everything is compiled
        settle(trainers[chunk])
        print(f"chunks of {chunk}: ready after {time.perf_counter() - began:.0f} s", flush=True)
    for number in range(options.slices):
        for chunk, trainer in trainers.items():
            updates, start = trainer.position.updates, time.perf_counter()
            trainer.advance(options.steps)
            settle(trainer)
            rate = options.seeds * options.steps / (time.perf_counter() - start)
            assert trainer.position.updates - updates == options.steps
            rows.append((chunk, number, rate))
    if options.profile:
        for chunk, trainer in trainers.items():
            print(f"\nchunks of {chunk}, {options.steps} steps of each seed")
            profile = cProfile.Profile()
            profile.runcall(trainer.advance, options.steps)
            pstats.Stats(profile).sort_stats("tottime").print_stats(14)
    device = jax.devices()[0].device_kind
    print(f"\nSAC, HalfCheetah-v5, {options.seeds} seeds, {options.workers} workers, {device}")
    print("| chunk_steps | steps/s | range |")
    print("|---|---|---|")
    for chunk in options.chunks:
        rates = [rate for one, _, rate in rows if one == chunk]
        low, high = min(rates), max(rates)
        print(f"| {chunk} | {np.median(rates):,.0f} | {low:,.0f} … {high:,.0f} |")
    if options.results:
        with open(options.results, "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(
                ["device", "seeds", "workers", "chunk_steps", "slice", "steps_per_second"]
            )
            for chunk, number, rate in rows:
                writer.writerow(
                    [device, options.seeds, options.workers, chunk, number, f"{rate:.1f}"]
                )
    for agent in agents:
        agent.close()


if __name__ == "__main__":
    main()
