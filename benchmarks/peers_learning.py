"""Train an algorithm of another library on the tasks of learning.py: same steps and evaluation.

    benchmarks/.peers/bin/python benchmarks/peers_learning.py sbx sac Pendulum-v1 --steps 20000 \
        --seeds 5 --seed 20

The library's default settings are used. Seeds are trained one after the other, because the other
libraries have no seed axis. `python benchmarks/speed.py` makes the environment `.peers`. The CSV
file has the columns of learning.py. Works with what that environment has; it does not import
Understudy.
"""

import argparse
import csv
import importlib
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

COLUMNS = ("algorithm", "env", "seed", "steps", "kind", "episodes", "mean_return", "wall_seconds")
PACKAGES = {"sbx": "sbx", "sb3": "stable_baselines3"}
EVALUATION_SEED = 1_000_000  # added to a seed: evaluations have environments of their own


class Evaluations(BaseCallback):
    """Evaluate the policy every few steps and write each result."""

    def __init__(self, options: argparse.Namespace, seed: int, writer: Any):
        super().__init__()
        self._options, self._seed, self._writer = options, seed, writer
        self._env = Monitor(gymnasium.make(options.env))
        self._env.reset(seed=EVALUATION_SEED + seed)
        self._began = time.perf_counter()

    def _on_step(self) -> bool:
        if self.num_timesteps % self._options.evaluate_every == 0:
            self.keep("training", self._options.episodes)
        return True

    def keep(self, kind: str, episodes: int) -> float:
        options = self._options
        returns, _ = evaluate_policy(
            self.model, self._env, episodes, deterministic=True, return_episode_rewards=True
        )
        assert len(returns) == episodes
        mean, seconds = float(np.mean(returns)), time.perf_counter() - self._began
        name = f"{options.library}-{options.algorithm}"
        row = [name, options.env, self._seed, self.num_timesteps, kind, episodes]
        self._writer.writerow([*row, f"{mean:.3f}", f"{seconds:.2f}"])
        return mean


def train(options: argparse.Namespace, seed: int, writer: Any) -> float:
    """Return the mean return of the last policy."""
    package = importlib.import_module(PACKAGES[options.library])
    kind = getattr(package, options.algorithm.upper())
    model = kind("MlpPolicy", options.env, seed=seed, device="cpu")
    evaluations = Evaluations(options, seed, writer)
    model.learn(options.steps, callback=evaluations)
    return evaluations.keep("final", options.final_episodes)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("library", choices=PACKAGES)
    add("algorithm", type=str.lower, metavar="ALGO")
    add("env", metavar="ENV", help="a Gymnasium id")
    add("--steps", type=int, required=True)
    add("--seeds", type=int, default=1, help="how many, one after the other")
    add("--seed", type=int, default=0, help="the first seed")
    add("--evaluate-every", type=int, help="steps (default: a twentieth of all)")
    add("--episodes", type=int, default=10, help="episodes per evaluation on the way")
    add("--final-episodes", type=int, default=20, help="episodes of the last evaluation")
    add("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    options = parser.parse_args()
    options.evaluate_every = options.evaluate_every or max(1, options.steps // 20)
    return options


def main() -> None:
    options = parse()
    path = options.results / f"learning_{options.library}-{options.algorithm}_{options.env}.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for seed in range(options.seed, options.seed + options.seeds):
            mean = train(options, seed, writer)
            file.flush()  # a run that is cut off leaves what it had
            print(f"seed {seed}: {mean:.1f}", flush=True)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
