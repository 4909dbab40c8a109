"""How a repertoire grows: every seed's curve as raw CSV, and its map as a picture.

    python benchmarks/qd/map_elites.py pga-me brax:walker2d --evaluations 100000 --seeds 3 \\
        --set generation_size=1024 --set episode_length=250

Settings are the environment's preset, except for those that --set changes. Seeds run one after the
other. A run that is called again goes on from its checkpoint. Works from a checkout too:
PYTHONPATH=src.
"""

import argparse
import ast
import csv
import shutil
import time
from pathlib import Path
from typing import Any

import jax

import understudy as us
from understudy.agent.illumination import HEAT_MAP, METHODS

COLUMNS = (
    "method", "env", "seed", "evaluations", "seconds", "qd_score", "coverage", "max_fitness",
    "corrected_qd_score", "corrected_coverage", "corrected_max_fitness",
)  # fmt: skip


def change(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("method", choices=sorted(METHODS))
    add("env")
    add("--descriptor")
    add("--evaluations", type=int, default=100_000)
    add("--seeds", type=int, default=3)
    add("--seed", type=int, default=0)
    add("--set", dest="changes", type=change, action="append", default=[])
    add("--log-every", type=int, default=10)
    add("--episodes", type=int, default=5, help="of the re-evaluation at the end")
    add("--minutes", type=float, default=1e9, help="stop (with a checkpoint) after so many")
    add("--work", type=Path, default=Path("runs/qd"), help="where runs are kept")
    add("--out", type=Path, default=Path("benchmarks/results"))
    add("--tag", default="")
    return parser.parse_args()


def name_of(options: argparse.Namespace) -> str:
    env = options.env.replace(":", "-").replace("/", "-")
    return f"qd-{options.method}-{env}{'-' * bool(options.tag)}{options.tag}"


def illuminate(options: argparse.Namespace, seed: int, stop_at: float) -> list[dict[str, Any]]:
    """The rows of one seed's log."""
    kind = METHODS[options.method]
    run_dir = options.work / f"{name_of(options)}-{seed}"
    if (run_dir / "checkpoints").exists():
        found = kind.load(run_dir)
    else:
        config = kind.config_class.preset(options.env)
        config = type(config)(**(vars(config) | dict(options.changes)))
        found = kind(options.env, config, descriptor=options.descriptor, seed=seed)
    rest = options.evaluations - found.evaluations
    run = us.QDRunConfig(log_every=options.log_every, reevaluation_episodes=options.episodes)

    def watch(facts: dict[str, Any]) -> bool:
        shown = {name.removeprefix("qd/"): facts[name] for name in facts if name.startswith("qd/")}
        print(options.method, options.env, seed, facts["time/evaluations"], shown, flush=True)
        return time.monotonic() > stop_at

    if rest > 0:
        found.illuminate(rest, run=run, run_dir=run_dir, callbacks=(watch,), progress=False)
    shutil.copy(run_dir / HEAT_MAP, options.out / f"{name_of(options)}-{seed}.png")
    with (run_dir / "progress.csv").open() as file:
        return list(csv.DictReader(file))


def main() -> None:
    options = read_options()
    options.out.mkdir(parents=True, exist_ok=True)
    stop_at = time.monotonic() + 60 * options.minutes
    print(jax.devices()[0].device_kind, "jax", jax.__version__)
    with (options.out / f"{name_of(options)}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for seed in range(options.seed, options.seed + options.seeds):
            for row in illuminate(options, seed, stop_at):
                times = [row["time/evaluations"], row["time/time_elapsed"]]
                values = [row.get(f"qd/{name}", "") for name in COLUMNS[5:]]
                writer.writerow([options.method, options.env, seed, *times, *values])
            file.flush()


if __name__ == "__main__":
    main()
