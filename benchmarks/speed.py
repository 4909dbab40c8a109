"""Measure end-to-end training speed against other libraries, on two CPU cores.

    python benchmarks/speed.py                          # or: make bench
    python benchmarks/speed.py --only ddqn,a2c,ddpg     # some contests, in separate files

The contests are in contests.py. Every contestant is a separate process (contestants.py) that has
warmed up and waits. The driver runs their slices in turn, one at a time, so that a slow minute of
the machine affects all of them. Ratios are taken within a round. Nothing is logged, drawn or
evaluated in the timed slices.

The other libraries are in a separate environment, `benchmarks/.peers`, made on first use;
UNDERSTUDY_PEERS_PYTHON names the interpreter of another one. The libraries on PyTorch are run with
its default threads and with one, and the faster is compared with. CleanRL is no package: without
UNDERSTUDY_CLEANRL, the path of cleanrl/ppo.py in a clone, it is left out.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contests import CHEETAH, CONTESTANTS, CONTESTS, Contestant
from reporting import confine, hardware, markdown_list, markdown_table

HERE = Path(__file__).resolve().parent
PEERS = HERE / ".peers"
PEER_PACKAGES = ("torch==2.13.0", "sbx-rl", "stable-baselines3", "gymnasium[mujoco]",
                 "tensorboard", "tyro")  # fmt: skip
SAC_UPDATE_GFLOP = 0.59  # counted: 17 observations, 6 actions, 256×256, batch 256, two critics
REPLAY_BUDGET_BYTES = 170e6  # for a million HalfCheetah transitions
PAUSE = 0.3  # seconds between slices, for spinning threads to fall asleep
UPDATE_REPEATS = 7


class Worker:
    """A contestant's process, and the conversation with it."""

    def __init__(self, interpreter: str, *arguments: str):
        # MuJoCo complains there; it is shown on failure, and closed with the worker.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [interpreter, str(HERE / "contestants.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        )
        self._arguments = arguments
        self.about = self._reply()

    def ask(self, what: str, count: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, "count": count}) + "\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            print(self._errors.read(), file=sys.stderr)
            raise SystemExit(f"{' '.join(self._arguments)} ended with exit code {code}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def peers_python() -> str:
    """The interpreter of the peers' environment, which is made if there is none."""
    given = os.environ.get("UNDERSTUDY_PEERS_PYTHON")
    if given:
        return given
    interpreter, finished = PEERS / "bin" / "python", PEERS / ".installed"
    if not finished.exists():
        print(f"making the peers' environment in {PEERS} (once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        install = [str(interpreter), "-m", "pip", "install", "--quiet", *PEER_PACKAGES]
        subprocess.run(install, check=True)
        finished.touch()
    return str(interpreter)


def start(contestant: Contestant, interpreter: str, warm_up: int) -> Worker:
    arguments = [contestant.library, contestant.contest.algorithm, "--warm-up", str(warm_up)]
    if contestant.torch_threads:
        arguments += ["--torch-threads", str(contestant.torch_threads)]
    began = time.perf_counter()
    worker = Worker(interpreter, *arguments)
    print(f"  {contestant.name:20} ready after {time.perf_counter() - began:5.1f} s", flush=True)
    return worker


@dataclass(frozen=True)
class Slice:
    contestant: str
    round: int
    steps: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.steps / self.seconds


def compete(workers: dict[Contestant, Worker], rounds: int, slice_steps: int) -> list[Slice]:
    """Everybody's slices in turn, `rounds` times; only one contestant computes at a time."""
    slices = []
    for number in range(1, rounds + 1):
        for contestant, worker in workers.items():
            steps = contestant.contest.steps(slice_steps)
            time.sleep(PAUSE)
            reply = worker.ask("steps", steps)
            if reply["updates"] * contestant.contest.steps_per_update != steps:
                problem = f"{reply['updates']} updates in {steps} steps"
                raise SystemExit(f"{contestant.name} did {problem}: not the same work")
            slices.append(Slice(contestant.name, number, steps, reply["seconds"]))
        latest = slices[-len(workers) :]
        shown = "  ".join(f"{piece.contestant} {piece.rate:.0f}" for piece in latest)
        print(f"round {number}/{rounds}, steps/s: {shown}", flush=True)
    return slices


def rates(slices: list[Slice], contestant: Contestant) -> list[float]:
    """Steps per second, one figure a round."""
    return [piece.rate for piece in slices if piece.contestant == contestant.name]


def comparison(slices: list[Slice], contestants: list[Contestant]) -> list[list[str]]:
    """A table row per contestant: its rate, and how many times as fast Understudy is."""
    by_contest = {c.contest: c for c in contestants if c.library == "understudy"}
    table = []
    for contestant in contestants:
        own = rates(slices, contestant)
        row = [contestant.contest.algorithm.upper(), contestant.name]
        row += [f"{statistics.median(own):,.1f}", f"{min(own):,.1f}–{max(own):,.1f}"]
        ours = by_contest.get(contestant.contest)
        if ours is None or ours is contestant:
            row += ["", ""]
        else:
            ratios = [a / b for a, b in zip(rates(slices, ours), own, strict=True)]
            slower = _slower(slices, contestant, contestants)
            row += [f"{statistics.median(ratios):.2f}×{slower}"]
            row += [f"{min(ratios):.2f}–{max(ratios):.2f}"]
        table.append(row)
    return table


def _slower(slices: list[Slice], contestant: Contestant, contestants: list[Contestant]) -> str:
    """A mark on the slower setting of a peer: the other one is compared with."""
    siblings = [
        c for c in contestants if (c.library, c.contest) == (contestant.library, contestant.contest)
    ]
    fastest = max(siblings, key=lambda c: statistics.median(rates(slices, c)))
    return "" if fastest is contestant else " (its slower setting)"


def update_times(workers: dict[Contestant, Worker], count: int) -> dict[str, list[float]]:
    """Milliseconds per update of Understudy's `learn` program alone, per repeat."""
    times = {}
    for contestant, worker in workers.items():
        if contestant.library == "understudy":
            steps = contestant.contest.steps(count)
            replies = [worker.ask("updates", steps) for _ in range(UPDATE_REPEATS)]
            times[contestant.contest.algorithm] = [
                1e3 * r["seconds"] / r["updates"] for r in replies
            ]
    return times


def matrix_rates(interpreters: dict[str, str]) -> dict[str, float]:
    """Float32 GFLOP/s by library and size; the machine's rate is the best of them."""
    found = {}
    for library, interpreter in interpreters.items():
        worker = Worker(interpreter, library, "matrix")
        for size, rate in worker.about["gflops"].items():
            found[f"{library} {size}×{size}×{size}"] = rate
        worker.close()
    return found


def compute_section(matrix: dict[str, float], updates: dict[str, list[float]]) -> str:
    rows = [[f"matrix product, {name}", f"{rate:.0f} GFLOP/s"] for name, rate in matrix.items()]
    for algorithm, times in updates.items():
        median, best = statistics.median(times), min(times)
        rows.append([f"{algorithm.upper()} update alone", f"{median:.3g} ms (best {best:.3g})"])
    if "sac" in updates:
        reached = SAC_UPDATE_GFLOP / (1e-3 * statistics.median(updates["sac"]))
        numpy_rate = max(rate for name, rate in matrix.items() if name.startswith("numpy"))
        best_rate = max(matrix.values())
        text = f"SAC update reaches ({SAC_UPDATE_GFLOP} GFLOP each)"
        share = f"{reached:.0f} GFLOP/s: {reached / numpy_rate:.0%} of NumPy's matrix rate"
        rows.append([text, f"{share}, {reached / best_rate:.0%} of the best found"])
    return markdown_table(["what", "measured"], rows)


def replay_section(workers: dict[Contestant, Worker]) -> str:
    rows: list[list[str]] = []
    for contestant, worker in workers.items():
        size, environment = worker.about["replay_bytes"], contestant.contest.environment
        if size is None:
            continue
        share = ""
        if environment == CHEETAH:
            budget = f"{REPLAY_BUDGET_BYTES / 1e6:.0f} MB"
            share = f" ({size / REPLAY_BUDGET_BYTES - 1:+.1%} against {budget})"
        row = [environment, contestant.library, f"{size:,}{share}"]
        if row not in rows:
            rows.append(row)
    return markdown_table(["environment", "library", "bytes"], rows)


def report(
    about: dict[str, str],
    workers: dict[Contestant, Worker],
    speed_rows: list[list[str]],
    compute: str,
) -> str:
    described = dict(about)
    for contestant, worker in workers.items():
        found = worker.about["versions"]
        described.setdefault(
            f"versions, {contestant.library}", ", ".join(f"{k} {v}" for k, v in found.items())
        )
    header = ["algorithm", "contestant", "steps/s, median", "min–max", "Understudy is", "min–max"]
    method = (
        "Contestants run slices in turn, one at a time; ratios are per round, and their median is "
        "shown. A step is one transition. Training is measured in its steady state: after the "
        "compilation and the random steps, without logging and evaluation (whole trainings: "
        "whole_runs.py). The peers' DQN is not double: it asks one network less."
    )
    contests = {contestant.contest: None for contestant in workers}
    parts = ["# Speed on the CPU", method]
    parts.append(markdown_list({c.algorithm.upper(): c.describe() for c in contests}))
    parts.append(markdown_list(described))
    parts += [
        "## Training, steady state: no compilation, logging or evaluation",
        markdown_table(header, speed_rows),
    ]
    parts += ["## The update", compute]
    parts += ["## Replay of 1,000,000 transitions", replay_section(workers)]
    return "\n\n".join(parts) + "\n"


def write(stem: Path, slices: list[Slice], text: str) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    table, page = stem.with_suffix(".csv"), stem.with_suffix(".md")
    with open(table, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["contestant", "round", "steps", "seconds"])
        for piece in slices:
            writer.writerow([piece.contestant, piece.round, piece.steps, f"{piece.seconds:.6f}"])
    page.write_text(text)
    print(f"\n{text}\nwritten to {table} and {page}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--slice-steps", type=int, default=500, help="of a contest with a pace of 1"
    )
    parser.add_argument("--warm-up", type=int, default=500, help="steps after the random ones")
    parser.add_argument("--cores", type=int, default=2, help="cores everybody is confined to")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=[],
        metavar="NAME,…",
        help=f"of contests ({', '.join(CONTESTS)}) or contestants",
    )
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args()
    unknown = set(options.only) - set(CONTESTS) - {one.name for one in CONTESTANTS}
    if unknown:
        parser.error(f"unknown contests or contestants {', '.join(sorted(unknown))}")
    return options


def chosen(only: list[str]) -> list[Contestant]:
    names = only or list(CONTESTS)
    found = [c for c in CONTESTANTS if c.name in names or c.contest.algorithm in names]
    if "UNDERSTUDY_CLEANRL" in os.environ:
        return found
    return [c for c in found if c.library != "cleanrl"]


def main() -> None:
    options = parse()
    confine(options.cores)
    about = hardware()
    peers = peers_python()
    taking_part = chosen(options.only)
    # What the machine can do is what SAC's update is judged by; without it nobody asks.
    judged = any(one.name == "understudy-sac" for one in taking_part)
    products = {"numpy": sys.executable, "torch": peers} if judged else {}
    workers: dict[Contestant, Worker] = {}
    try:
        matrix = matrix_rates(products)
        print("warming up, one after the other", flush=True)
        for contestant in taking_part:
            interpreter = sys.executable if contestant.library == "understudy" else peers
            workers[contestant] = start(contestant, interpreter, options.warm_up)
        slices = compete(workers, options.rounds, options.slice_steps)
        updates = update_times(workers, options.slice_steps)
        # Once more beside the update itself: the best counts.
        matrix = {name: max(rate, matrix[name]) for name, rate in matrix_rates(products).items()}
        speed_rows = comparison(slices, list(workers))
        text = report(about, workers, speed_rows, compute_section(matrix, updates))
    finally:
        for worker in workers.values():
            worker.close()
    # A part of the comparison leaves the whole one's files alone.
    write(options.results / "_".join(["speed_cpu", *options.only]), slices, text)


if __name__ == "__main__":
    main()
