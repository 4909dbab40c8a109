"""Compare the speed of the host loop and the device loop of two commits on one machine.

    python benchmarks/two_commits.py --reference COMMIT --only sac ddqn

A process for each commit trains the same agent. They alternate in short slices, so that a drift of
the machine's speed affects both. The table shows the ratio of the medians (above 1: the working
tree is faster) and the range of the ratios of neighboring slices. --csv keeps all slices; those of
other references and cases stay in the file.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
COLUMNS = ("reference", "case", "slice", "steps", "reference_seconds", "seconds")
Slices = list[tuple[float, float]]  # seconds of the reference, and of the working tree
REPLAY = dict(start_steps=0, min_buffer_size=300, buffer_size=100_000)
SMALL = REPLAY | dict(hidden_sizes=[64, 64], batch_size=128)
MEMORY = REPLAY | dict(memory="gru", memory_size=64, hidden_sizes=[64], batch_size=32)
MEMORY |= dict(updates_per_step=0.25, update_every=4)  # as in the presets with memory
RENAMED = {"prioritised": "prioritized"}  # settings that later commits have another name for
CASES = {  # algorithm, environment, config, environments, steps of a slice
    "sac": ("SAC", "HalfCheetah-v5", REPLAY, 1, 200),
    "sac-small": ("SAC", "Pendulum-v1", SMALL, 1, 600),
    "td3": ("TD3", "HalfCheetah-v5", REPLAY, 1, 200),
    "ddpg": ("DDPG", "HalfCheetah-v5", REPLAY, 1, 200),
    "mpo": ("MPO", "Pendulum-v1", SMALL, 1, 200),
    "ddqn": ("DDQN", "CartPole-v1", SMALL, 1, 1_000),
    "ddqn-prioritised": ("DDQN", "CartPole-v1", SMALL | dict(prioritised=True), 1, 600),
    "a2c": ("A2C", "CartPole-v1", {}, 8, 8_000),
    "sac-device": ("SAC", "jax:Pendulum-v1", SMALL, 1, 2_000),
    "sac-gru": ("SAC", "jax:Pendulum-P-v1", MEMORY, 1, 1_000),
    "ddqn-gru": ("DDQN", "jax:CartPole-P-v1", MEMORY, 1, 1_000),
    "mpo-humanoid": ("MPO", "Humanoid-v5", REPLAY, 1, 60),  # 348 observations, 20 samples
}


def serve(name: str) -> None:
    """One commit's process: train as many steps as a line of the input says, answer the seconds."""
    import dataclasses
    import time

    import jax

    import understudy as us

    kind, env, settings, num_envs, _ = CASES[name]
    of_kind = getattr(us, f"{kind}Config")
    known = {field.name for field in dataclasses.fields(of_kind)}
    settings = {name if name in known else RENAMED[name]: x for name, x in settings.items()}
    config = of_kind(**settings)
    agent = getattr(us, kind)(env, config, num_envs=num_envs)
    # Before it had `trainer`, an agent made one by a private method.
    trainer = agent.trainer if hasattr(agent, "trainer") else agent._ensure_trainer()
    for line in sys.stdin:
        began = time.perf_counter()
        trainer.advance(int(line) // num_envs)
        jax.block_until_ready(trainer.learner)
        print(json.dumps(time.perf_counter() - began), flush=True)


class Side:
    def __init__(self, source: Path, name: str):
        command = [sys.executable, __file__, "--serve", name]
        environment = os.environ | {"PYTHONPATH": str(source / "src"), "MUJOCO_GL": "disable"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=environment,
        )  # fmt: skip

    def seconds(self, steps: int) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(steps, file=self._process.stdin, flush=True)
        answer = ""
        while not answer.startswith(tuple("0123456789")):
            answer = self._process.stdout.readline()
            if not answer:
                raise SystemExit("a process has ended: run it with --serve to see why")
        return json.loads(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(name: str, reference: Path, slices: int) -> Slices:
    """Run both commits in turn, after a slice that warms up."""
    steps = CASES[name][-1]
    sides = [Side(reference, name), Side(REPOSITORY, name)]
    try:
        for side in sides:
            side.seconds(steps * 3 + 600)
        return [(sides[0].seconds(steps), sides[1].seconds(steps)) for _ in range(slices)]
    finally:
        for side in sides:
            side.close()


def line(name: str, slices: Slices) -> str:
    """Write a row of the table."""
    found = np.array(slices)
    ratios, medians = found[:, 0] / found[:, 1], np.median(found, axis=0)
    rates = CASES[name][-1] / medians
    return (
        f"| {name} | {rates[0]:,.0f} | {rates[1]:,.0f} | {medians[0] / medians[1]:.2f} "
        f"| {ratios.min():.2f} … {ratios.max():.2f} |"
    )


def keep(path: Path, reference: str, name: str, slices: Slices) -> None:
    """Replace the slices of a case in a CSV file."""
    rows = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            rows = [tuple(row) for row in csv.reader(file)][1:]
    rows = [row for row in rows if row[:2] != (reference, name)]
    for number, pair in enumerate(slices):
        rows.append((reference, name, number, CASES[name][-1], *(f"{x:.4f}" for x in pair)))
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", help="a commit")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--slices", type=int, default=9)
    parser.add_argument("--csv", type=Path, help="where slices are kept")
    parser.add_argument("--serve", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", options.reference, "src"], cwd=REPOSITORY, capture_output=True,
            check=True,
        ).stdout  # fmt: skip
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        print(f"| case | {options.reference}, steps/s | working tree, steps/s | ratio | range |")
        print("|---|---|---|---|---|")
        for name in options.only:
            slices = measure(name, Path(folder), options.slices)
            print(line(name, slices), flush=True)
            if options.csv:
                keep(options.csv, options.reference, name, slices)


if __name__ == "__main__":
    main()
