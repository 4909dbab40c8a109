"""Compare learning with the default chunk length and with chunks of one step: SAC, HalfCheetah-v5.

    python benchmarks/chunk_learning.py --chunks 1 8 --seeds 5 --steps 100000 --results FILE.csv

The returns are those of 10 evaluation episodes of each seed after training with the preset.
"""

import argparse
import csv
import dataclasses
import time
from pathlib import Path

import jax
import numpy as np

import understudy as us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    config = us.SACConfig.preset("HalfCheetah-v5")
    device, rows = jax.devices()[0].device_kind, []
    run = us.RunConfig(evaluate_every=0, evaluation_episodes=1)
    print(f"SAC, HalfCheetah-v5, {options.steps:,} steps, {device}")
    print("| chunk_steps | returns of the seeds | median | minutes |")
    print("|---|---|---|---|")
    for chunk in options.chunks:
        agent = us.SAC(
            "HalfCheetah-v5",
            dataclasses.replace(config, chunk_steps=chunk),
            seed=options.seed,
            num_seeds=options.seeds,
            env_workers=options.workers,
        )
        began = time.perf_counter()
        agent.train(options.steps, run=run, progress=False)
        minutes = (time.perf_counter() - began) / 60
        returns = np.sort(
            np.array(agent.evaluate(10)["returns"]).reshape(options.seeds, -1).mean(1)
        )
        agent.close()
        shown = ", ".join(f"{value:,.0f}" for value in returns)
        print(f"| {chunk} | {shown} | {np.median(returns):,.0f} | {minutes:.1f} |", flush=True)
        rows += [
            (chunk, seed, f"{value:.1f}", f"{minutes:.2f}") for seed, value in enumerate(returns)
        ]
        if options.results:
            with open(options.results, "w", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(["chunk_steps", "rank", "mean_return", "minutes"])
                writer.writerows(rows)


if __name__ == "__main__":
    main()
