"""Measure the wall-clock time of whole trainings, end to end, with each library's defaults.

    python benchmarks/whole_runs.py --rounds 3

Each run is a fresh process: imports, compilation, training, logging, evaluation and saving are
included, as for a user. Contestants take turns. Compiled programs of this library are not cached
between runs. A default training differs between the libraries: the table says how. The peers'
environment is that of speed.py.
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from reporting import confine, hardware, markdown_list, markdown_table
from speed import peers_python

HERE = Path(__file__).resolve().parent
TASKS = (("Pendulum-v1", 10_000), ("HalfCheetah-v5", 10_000))
PEER = """
import sys
from {package} import SAC
env, steps = sys.argv[1], int(sys.argv[2])
model = SAC("MlpPolicy", env, verbose=1, tensorboard_log=None)
model.learn(steps, log_interval=4)
model.save("model")
"""
NOTES = {
    "understudy": "preset of the environment; log, learning curve, checkpoint; evaluation of 10 "
    "episodes at intervals and at the end; random actions for at most a tenth of the run",
    "sbx": "defaults; log to the terminal, model saved; no evaluation; 100 random steps",
    "sb3": "defaults; log to the terminal, model saved; no evaluation; 100 random steps",
}


def command(library: str, env: str, steps: int, peers: str) -> list[str]:
    if library == "understudy":
        program = str(Path(sys.executable).parent / "understudy")
        return [program, "train", "sac", env, "--steps", str(steps), "--run", "run"]
    package = {"sbx": "sbx", "sb3": "stable_baselines3"}[library]
    return [peers, "-c", PEER.format(package=package), env, str(steps)]


def seconds(library: str, env: str, steps: int, peers: str) -> float:
    """Of one run in an empty directory, with an empty compilation cache."""
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": f"{directory}/cache"}
        environment |= {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
        began = time.perf_counter()
        subprocess.run(
            command(library, env, steps, peers),
            cwd=directory,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2, help="cores everybody is confined to")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args()
    confine(options.cores)
    about, peers = hardware(), peers_python()
    rows, table = [], []
    for env, steps in TASKS:
        found: dict[str, list[float]] = {library: [] for library in NOTES}
        for turn in range(options.rounds):
            for library, times in found.items():
                times.append(seconds(library, env, steps, peers))
                rows.append([env, steps, library, turn, f"{times[-1]:.2f}"])
                print(f"{env} {library} {times[-1]:.1f} s", flush=True)
        ours = found["understudy"]
        for library, times in found.items():
            ratios = [theirs / mine for theirs, mine in zip(times, ours, strict=True)]
            shown = "" if library == "understudy" else (
                f"{statistics.median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f})"
            )  # fmt: skip
            spread = f"{min(times):.1f}–{max(times):.1f}"
            table.append([env, library, f"{statistics.median(times):.1f}", spread, shown])
    stem = options.results / "whole_runs_cpu"
    with open(stem.with_suffix(".csv"), "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["env", "steps", "library", "round", "seconds"])
        writer.writerows(rows)
    header = ["environment", "library", "seconds, median", "min–max", "its time over ours"]
    text = "\n\n".join([
        "# Whole trainings of SAC on the CPU, end to end",
        "Fresh processes in turn, 10,000 steps, compilation included.",
        markdown_list(about), markdown_list(NOTES), markdown_table(header, table),
    ])  # fmt: skip
    stem.with_suffix(".md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
