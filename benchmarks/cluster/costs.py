"""What travels on a cluster, and what it costs: policies out, transitions back. One machine.

    python benchmarks/cluster/costs.py --csv FILE.csv

A policy is put where collectors can read it, and read by an actor in another process. A delivery is
made there and fetched here. Medians of 50 each.
"""

import argparse
import csv
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import understudy as us
from understudy.algorithms.sac import SAC
from understudy.distributed.connect import connect
from understudy.training.step_packing import step_dtype
from understudy.types import ArraySpec, Continuous, Spec

REPEATS = 50
HALFCHEETAH = Spec(ArraySpec((17,)), Continuous((-1.0,) * 6, (1.0,) * 6, shape=(6,)))
PIXELS = Spec(ArraySpec((4, 84, 84), "uint8"), Continuous((-1.0,) * 6, (1.0,) * 6, shape=(6,)))


class Far:
    """An actor: what it is given is there, in memory that it shares, when it is called."""

    def read(self, policy: list[np.ndarray]) -> float:
        return float(sum(leaf.sum() for leaf in policy))

    def deliver(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.ones(shape, np.uint8)


def median(function: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def policy_of(width: int) -> list[np.ndarray]:
    algorithm = SAC(us.SACConfig(hidden_sizes=(width, width)))
    state = algorithm.init(HALFCHEETAH, jax.random.PRNGKey(0))
    return [np.asarray(leaf)[None] for leaf in jax.tree.leaves(algorithm.policy(state))]


def bytes_of_a_step(spec: Spec) -> int:
    return step_dtype(SAC(us.SACConfig()), spec).itemsize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="where the medians are written")
    options, rows = parser.parse_args(), [("message", "bytes", "put_us", "call_us")]
    ray = connect(None, 2)
    actor = ray.remote(num_cpus=1)(Far).remote()
    ray.get(actor.read.remote([np.zeros(1)]))
    print("| SAC's policy for 17 observations | kB | put, µs | a call that reads it, µs |")
    print("|---|---|---|---|")
    for width in (64, 256, 1024):
        policy = policy_of(width)
        size = sum(leaf.nbytes for leaf in policy)
        put = median(lambda policy=policy: ray.put(policy))
        ref = ray.put(policy)
        read = median(lambda ref=ref: ray.get(actor.read.remote(ref)))
        print(f"| {width}×{width} | {size / 1e3:,.0f} | {1e6 * put:,.0f} | {1e6 * read:,.0f} |")
        rows.append((f"{width}×{width}", str(size), f"{1e6 * put:.1f}", f"{1e6 * read:.1f}"))
    print("\n| delivery | bytes a step | kB | a call that brings it, µs | µs a step |")
    print("|---|---|---|---|---|")
    for name, spec, steps in (
        ("HalfCheetah, 20 steps", HALFCHEETAH, 20),
        ("HalfCheetah, 200 steps", HALFCHEETAH, 200),
        ("four images of 84×84, 20 steps", PIXELS, 20),
    ):
        each = bytes_of_a_step(spec)
        shape = (steps, 1, 1, each)
        taken = median(lambda shape=shape: ray.get(actor.deliver.remote(shape)))
        print(f"| {name} | {each:,} | {math.prod(shape) / 1e3:,.0f} | {1e6 * taken:,.0f} "
              f"| {1e6 * taken / steps:,.1f} |")  # fmt: skip
        rows.append((name, str(math.prod(shape)), "", f"{1e6 * taken:.1f}"))
    if options.csv:
        with options.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
