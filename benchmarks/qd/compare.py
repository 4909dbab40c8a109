"""Understudy and QDax side by side: the same task, the same evaluations, seed by seed in turn.

    python benchmarks/qd/compare.py jax:PointNavigation-v0 --evaluations 10000 --seeds 5

Runs where both libraries are installed (README of this folder). Each seed is run by one library,
then by the other, in one process; a generation's seconds are those of blocks of generations,
without compilation. "Outside env.step" is that less what the environment's steps take by
themselves.
"""

import argparse
import csv
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from peer import run_qdax, time_env_steps
from settings import Settings

from understudy.algorithms.td3 import TD3
from understudy.envs.base import NativeEnv
from understudy.envs.descriptors import Descriptor, find_descriptor
from understudy.envs.make import resolve
from understudy.qd.config import MAPElitesConfig, PGAMEConfig
from understudy.qd.illuminators import NativeIlluminator
from understudy.qd.map_elites import Plan

MEASURED = ("qd_score", "coverage", "max_fitness")


def understudy_config(
    settings: Settings, cells: int, own: dict[str, str]
) -> MAPElitesConfig | PGAMEConfig:
    """What is not among the settings, which is how weights begin and what is between the layers of
    a policy, is each library's own."""
    shared: dict[str, Any] = dict(
        own,
        generation_size=settings.batch_size,
        cells=cells,
        episode_length=settings.episode_length,
        hidden_sizes=settings.policy_hidden,
        iso_sigma=settings.iso_sigma,
        line_sigma=settings.line_sigma,
        score_offset=settings.offset,
    )
    if settings.method == "map-elites":
        return MAPElitesConfig(**shared)
    return PGAMEConfig(
        **shared,
        gradient_share=settings.gradient_share,
        critic_steps=settings.critic_steps,
        policy_steps=settings.policy_steps,
        policy_learning_rate=settings.policy_learning_rate,
        learning_rate=settings.critic_learning_rate,
        critic_hidden_sizes=settings.critic_hidden,
        batch_size=settings.transitions,
        buffer_size=settings.replay_size,
        gamma=settings.discount,
        tau=settings.tau,
        policy_delay=settings.delay,
        policy_noise=settings.target_noise,
        noise_clip=settings.target_noise_clip,
    )


def run_understudy(
    env: NativeEnv,
    descriptor: Descriptor,
    cells: int,
    own: dict[str, str],
    settings: Settings,
    seed: int,
) -> dict[str, Any]:
    """The last repertoire's fitness, seconds a generation, and the centroids that both use."""
    config = understudy_config(settings, cells, own)
    plan = Plan(TD3(config.td3()), env.spec, descriptor, config, seed)
    illuminator = NativeIlluminator(plan, env)
    illuminator.advance(2)  # both programs
    illuminator.wait()
    seconds, left = [], settings.generations - 1
    while left:
        block = min(left, settings.log_every)
        began = time.perf_counter()
        illuminator.advance(block)
        illuminator.wait()
        seconds += [(time.perf_counter() - began) / block] * block
        left -= block
    repertoire = illuminator.state.repertoire
    return {
        "fitness": np.asarray(repertoire.fitness),
        "seconds": seconds,
        "centroids": np.asarray(repertoire.cells.centers),
    }


def judge(facts: dict[str, Any], settings: Settings) -> dict[str, float]:
    fitness = facts["fitness"][np.isfinite(facts["fitness"])]
    assert fitness.min() >= settings.offset, f"the offset is above {fitness.min()}"
    # The first block is not counted: clocks and caches settle in it.
    seconds = facts["seconds"][settings.log_every :] or facts["seconds"]
    return {
        "qd_score": float((fitness - settings.offset).sum()),
        "coverage": len(fitness) / len(facts["fitness"]),
        "max_fitness": float(fitness.max()),
        "seconds": float(np.median(seconds)),
    }


def main() -> None:
    options = read_options()
    fields = {field.name for field in dataclasses.fields(Settings)}
    given = {name: value for name, value in vars(options).items() if name in fields}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    env = resolve(options.env)
    assert isinstance(env, NativeEnv), "the comparison is of environments on the device"
    descriptor = find_descriptor(env.descriptors, options.descriptor, options.env)
    preset = PGAMEConfig.preset(options.env)
    own = {name: getattr(preset, name) for name in ("initialization", "activation")}
    stepping = time_env_steps(env, settings.batch_size, settings.episode_length)
    rows = []
    for seed in range(options.seed, options.seed + options.seeds):
        ours = run_understudy(env, descriptor, options.cells, own, settings, seed)
        theirs = run_qdax(env, descriptor, ours["centroids"], settings, seed)
        for library, facts in (("understudy", ours), ("qdax", theirs)):
            rows.append({"library": library, "seed": seed, **judge(facts, settings)})
            print(json.dumps(rows[-1]), flush=True)
    write(options, rows)
    summarize(rows, settings, stepping)


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def summarize(rows: list[dict[str, Any]], settings: Settings, stepping: float) -> None:
    def median(library: str, name: str) -> float:
        return float(np.median([row[name] for row in rows if row["library"] == library]))

    print(f"\n{settings}\n{jax.devices()[0].device_kind}, jax {jax.__version__}, "
          f"{len(rows) // 2} seeds; env.step {stepping:.4f} s a generation\n")  # fmt: skip
    print(f"{'':24}{'understudy':>12}{'qdax':>12}")
    for name in MEASURED:
        print(f"{name:24}{median('understudy', name):12.4g}{median('qdax', name):12.4g}")
    ours, theirs = (median(library, "seconds") for library in ("understudy", "qdax"))
    rates = [settings.batch_size / seconds for seconds in (ours, theirs)]
    print(f"{'evaluations/s':24}{rates[0]:12.4g}{rates[1]:12.4g}   {theirs / ours:.2f}×")
    outside = [seconds - stepping for seconds in (ours, theirs)]
    print(f"{'s outside env.step':24}{outside[0]:12.4g}{outside[1]:12.4g}   "
          f"{outside[1] / outside[0]:.2f}×")  # fmt: skip


def read_options() -> argparse.Namespace:
    def sizes(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(","))

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("env")
    add("--descriptor")
    add("--seeds", type=int, default=5)
    add("--seed", type=int, default=0)
    add("--cells", type=int, default=1_024)
    add("--out", type=Path)
    for field in dataclasses.fields(Settings):
        kind = sizes if isinstance(field.default, tuple) else type(field.default)
        add("--" + field.name.replace("_", "-"), type=kind)
    return parser.parse_args()


if __name__ == "__main__":
    main()
