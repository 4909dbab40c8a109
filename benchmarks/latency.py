"""Measure the time of one action: `agent.act` and `act` of the NumPy player, one observation each.

    python benchmarks/latency.py [--rounds 9] [--calls 1000]

The policies have the sizes of HalfCheetah (17 numbers observed, 6 actions). The cases alternate
round by round, so that other work on the machine affects all of them. The table has the median over
rounds of each round's median and 99th percentile.
"""

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from reporting import confine, hardware, markdown_list, markdown_table

import understudy as us
import understudy.runner

RESULTS = Path(__file__).parent / "results" / "latency_cpu.csv"
CONFIGS = {
    "MLP 256 × 256": us.SACConfig(hidden_sizes=(256, 256)),
    "GRU 256, MLP 256 × 256": us.SACConfig(hidden_sizes=(256, 256), memory="gru", memory_size=256),
}


class Sizes(gymnasium.Env):
    """The spaces of HalfCheetah. It is never stepped."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)


def acting(holder: Any, remembers: bool, deterministic: bool) -> Callable[[np.ndarray], None]:
    """A function that acts once and keeps the memory for the next call."""
    memory = None

    def act(observation: np.ndarray) -> None:
        nonlocal memory
        answer = holder.act(observation, memory, deterministic=deterministic)
        memory = answer[1] if remembers else None

    return act


def make_cases(folder: Path) -> dict[tuple[str, str], Callable[[np.ndarray], None]]:
    cases = {}
    for policy, config in CONFIGS.items():
        agent, remembers = us.SAC(Sizes, config), config.memory is not None
        player = understudy.runner.load(agent.export(folder / "policy.safetensors"))
        cases[policy, "agent.act"] = acting(agent, remembers, True)
        cases[policy, "agent.act, deterministic=False"] = acting(agent, remembers, False)
        cases[policy, "player.act"] = acting(player, remembers, True)
    return cases


def measure(act: Callable[[np.ndarray], None], calls: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of a round, in µs."""
    observations = np.random.default_rng(0).normal(size=(calls, 17)).astype(np.float32)
    times = []
    for observation in observations:
        start = time.perf_counter()
        act(observation)
        times.append(1e6 * (time.perf_counter() - start))
    return float(np.median(times)), float(np.percentile(times, 99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=1_000, help="of one round")
    options = parser.parse_args()
    confine(2)
    facts = hardware()
    with tempfile.TemporaryDirectory() as folder:
        cases = make_cases(Path(folder))
    for act in cases.values():
        measure(act, 20)  # compiles
    rounds = range(1, options.rounds + 1)
    found = {(case, n): measure(cases[case], options.calls) for n in rounds for case in cases}
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["policy", "call", "round", "median_us", "p99_us"])
        for (case, n), values in found.items():
            writer.writerow([*case, n, *(f"{value:.1f}" for value in values)])
    rows = []
    for case in cases:
        values = zip(*(found[case, n] for n in rounds), strict=True)
        rows.append([*case, *(f"{statistics.median(each):.0f}" for each in values)])
    print(markdown_list(facts))
    print(markdown_table(["policy", "call", "median, µs", "99th percentile, µs"], rows))


if __name__ == "__main__":
    main()
