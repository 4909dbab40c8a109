"""Measure the returns of actions that are drawn uniformly: the zero of normalized scores.

    python benchmarks/random_policy.py

Writes results/random_policy.csv: one row per episode, whose seed is that of its environment and of
its actions.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym

RESULTS = Path(__file__).resolve().parent / "results"
EPISODES = {"CartPole-v1": 100, "Pendulum-v1": 100, "HalfCheetah-v5": 20}


def play(env: gym.Env, seed: int) -> float:
    """Return the sum of the rewards of an episode."""
    env.reset(seed=seed)
    env.action_space.seed(seed)
    total, over = 0.0, False
    while not over:
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        total += float(reward)
        over = terminated or truncated
    return total


def rows() -> Iterator[list[str | int]]:
    for name, episodes in EPISODES.items():
        with gym.make(name) as env:
            for seed in range(episodes):
                yield [name, seed, f"{play(env, seed):.3f}"]


def main() -> None:
    with (RESULTS / "random_policy.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["env", "seed", "return"])
        writer.writerows(rows())


if __name__ == "__main__":
    main()
