"""End-to-end training speed against the peers, on two CPU cores.

    python benchmarks/speed.py            # or: make bench

HalfCheetah-v5, one environment, batch 256, 256×256 networks, one update a step. Every contestant
is a process of its own (contestants.py) that has warmed up and waits; the driver lets them run
slices in turn, one at a time, so that a slow minute of the machine hits all of them. Ratios are
taken within a round. Nothing is logged, drawn or evaluated in the timed slices.

The peers live in an environment of their own, `benchmarks/.peers`, made on first use;
UNDERSTUDY_PEERS_PYTHON names the interpreter of another one. Stable-Baselines3 is run with
PyTorch's default threads and with one, and the faster is compared with.
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

HERE = Path(__file__).resolve().parent
PEERS = HERE / ".peers"
PEER_PACKAGES = ("torch==2.13.0", "sbx-rl", "stable-baselines3", "gymnasium[mujoco]")
SAC_UPDATE_GFLOP = 0.59  # counted: 17 observations, 6 actions, 256×256, batch 256, two critics
REPLAY_BUDGET_BYTES = 170e6  # for a million HalfCheetah transitions
PAUSE = 0.3  # seconds between slices, for spinning threads to fall asleep
UPDATE_REPEATS = 7
BUSY = 0.5  # a load average above which the user is warned


@dataclass(frozen=True)
class Contestant:
    library: str
    algorithm: str
    torch_threads: int | None = None

    @property
    def name(self) -> str:
        threads = f"-{self.torch_threads}thread" if self.torch_threads else ""
        return f"{self.library}-{self.algorithm}{threads}"


CONTESTANTS = tuple(
    Contestant(library, algorithm, threads)
    for algorithm in ("sac", "td3")
    for library, threads in (("understudy", None), ("sbx", None), ("sb3", None), ("sb3", 1))
)


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
    arguments = [contestant.library, contestant.algorithm, "--warm-up", str(warm_up)]
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


def compete(workers: dict[Contestant, Worker], rounds: int, steps: int) -> list[Slice]:
    """Everybody's slices in turn, `rounds` times; only one contestant computes at a time."""
    slices = []
    for number in range(1, rounds + 1):
        for contestant, worker in workers.items():
            time.sleep(PAUSE)
            reply = worker.ask("steps", steps)
            if reply["updates"] != steps:
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
    by_algorithm = {c.algorithm: c for c in contestants if c.library == "understudy"}
    table = []
    for contestant in contestants:
        own = rates(slices, contestant)
        row = [contestant.algorithm.upper(), contestant.name, f"{statistics.median(own):.1f}"]
        row.append(f"{min(own):.1f}–{max(own):.1f}")
        ours = by_algorithm.get(contestant.algorithm)
        if ours is None or ours is contestant:
            row += ["", ""]
        else:
            ratios = [a / b for a, b in zip(rates(slices, ours), own, strict=True)]
            row.append(
                f"{statistics.median(ratios):.2f}×{_slower(slices, contestant, contestants)}"
            )
            row.append(f"{min(ratios):.2f}–{max(ratios):.2f}")
        table.append(row)
    return table


def _slower(slices: list[Slice], contestant: Contestant, contestants: list[Contestant]) -> str:
    """A mark on the slower setting of a peer: the other one is compared with."""
    siblings = [
        c
        for c in contestants
        if (c.library, c.algorithm) == (contestant.library, contestant.algorithm)
    ]
    fastest = max(siblings, key=lambda c: statistics.median(rates(slices, c)))
    return "" if fastest is contestant else " (its slower setting)"


def update_times(workers: dict[Contestant, Worker], count: int) -> dict[str, list[float]]:
    """Milliseconds per update of Understudy's `learn` program alone, per repeat."""
    times = {}
    for contestant, worker in workers.items():
        if contestant.library == "understudy":
            replies = [worker.ask("updates", count) for _ in range(UPDATE_REPEATS)]
            times[contestant.algorithm] = [1e3 * r["seconds"] / r["updates"] for r in replies]
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


def hardware() -> dict[str, str]:
    described = dict(
        line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line
    )
    facts = {name.strip(): value.strip() for name, value in described.items()}
    vectors = [name for name in ("avx512f", "avx2") if name in facts.get("flags", "").split()]
    return {
        "CPU": facts.get("model name", "unknown") + (f" ({vectors[0]})" if vectors else ""),
        "cores used": str(len(os.sched_getaffinity(0))),
        "load before the start": f"{os.getloadavg()[0]:.2f}",
    }


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def compute_section(matrix: dict[str, float], updates: dict[str, list[float]]) -> str:
    rows = [[f"matrix product, {name}", f"{rate:.0f} GFLOP/s"] for name, rate in matrix.items()]
    for algorithm, times in updates.items():
        median, best = statistics.median(times), min(times)
        rows.append([f"{algorithm.upper()} update alone", f"{median:.2f} ms (best {best:.2f})"])
    if "sac" in updates:
        reached = SAC_UPDATE_GFLOP / (1e-3 * statistics.median(updates["sac"]))
        numpy_rate = max(rate for name, rate in matrix.items() if name.startswith("numpy"))
        best_rate = max(matrix.values())
        text = f"SAC update reaches ({SAC_UPDATE_GFLOP} GFLOP each)"
        share = f"{reached:.0f} GFLOP/s: {reached / numpy_rate:.0%} of NumPy's matrix rate"
        rows.append([text, f"{share}, {reached / best_rate:.0%} of the best found"])
    return markdown_table(["what", "measured"], rows)


def report(
    about: dict[str, str],
    workers: dict[Contestant, Worker],
    speed_rows: list[list[str]],
    compute: str,
) -> str:
    described = dict(about)
    replay = []
    for contestant, worker in workers.items():
        found = worker.about["versions"]
        described.setdefault(
            f"versions, {contestant.library}", ", ".join(f"{k} {v}" for k, v in found.items())
        )
        size = worker.about["replay_bytes"]
        share = f"{size / REPLAY_BUDGET_BYTES - 1:+.1%} against {REPLAY_BUDGET_BYTES / 1e6:.0f} MB"
        row = [contestant.library, f"{size:,} ({share})"]
        if row not in replay:
            replay.append(row)
    header = ["algorithm", "contestant", "steps/s, median", "min–max", "Understudy is", "min–max"]
    method = (
        "HalfCheetah-v5, one environment, batch 256, 256×256, one update a step. Contestants run "
        "slices in turn, one at a time; ratios are per round, and their median is shown."
    )
    parts = ["# Speed on the CPU", method]
    parts.append("\n".join(f"- {name}: {value}" for name, value in described.items()))
    parts += ["## Training, end to end", markdown_table(header, speed_rows)]
    parts += ["## The update", compute]
    parts += ["## Replay of 1,000,000 transitions", markdown_table(["library", "bytes"], replay)]
    return "\n\n".join(parts) + "\n"


def write(results: Path, slices: list[Slice], text: str) -> None:
    results.mkdir(parents=True, exist_ok=True)
    with open(results / "speed_cpu.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["contestant", "round", "steps", "seconds"])
        for piece in slices:
            writer.writerow([piece.contestant, piece.round, piece.steps, f"{piece.seconds:.6f}"])
    (results / "speed_cpu.md").write_text(text)
    print(f"\n{text}\nwritten to {results / 'speed_cpu.csv'} and {results / 'speed_cpu.md'}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--slice-steps", type=int, default=500)
    parser.add_argument("--warm-up", type=int, default=500, help="steps after the random ones")
    parser.add_argument("--cores", type=int, default=2, help="cores everybody is confined to")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the contestants")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    about = hardware()
    if os.getloadavg()[0] > BUSY:
        print(f"warning: the machine is busy (load {os.getloadavg()[0]:.2f}); ratios will be noisy")
    peers = peers_python()
    names = options.only or [contestant.name for contestant in CONTESTANTS]
    unknown = set(names) - {contestant.name for contestant in CONTESTANTS}
    if unknown:
        raise SystemExit(f"unknown contestants {sorted(unknown)}")
    workers: dict[Contestant, Worker] = {}
    try:
        products = {"numpy": sys.executable, "torch": peers}
        matrix = matrix_rates(products)
        print("warming up, one after the other", flush=True)
        for contestant in CONTESTANTS:
            if contestant.name in names:
                ours = contestant.library == "understudy"
                interpreter = sys.executable if ours else peers
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
    write(options.results, slices, text)


if __name__ == "__main__":
    main()
