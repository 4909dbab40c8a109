"""What one transition costs this library's collectors on `Sleepy`, beside the time that it sleeps.

    python benchmarks/cluster/ours.py --csv benchmarks/results/cluster_ours.csv

DDQN with a 64×64 network, one environment for each collector, asynchronous. `--updates 0` measures
collecting alone: chunks are taken in and stored, policies are sent with every order, and nothing
is learned. (Above 0: so many updates per transition, which two cores cannot carry for eight
collectors; the ratio is held, so the collectors wait.)
"""

import argparse
import csv
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import understudy as us

sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
)
from sleepy import Sleepy, bare_step_seconds


class Row(NamedTuple):
    collectors: int
    transitions_per_second: float
    share_of_ideal: float
    """Of `collectors` environments that sleep exactly as long as they were told."""
    share_of_linear: float
    """Of `collectors` times what one collector gave in the first row."""
    bare_step_us: float
    overhead_us: float
    cpu_us: float
    """Of the collector's process, per transition: it bounds how many collectors the cores carry."""
    learner_cpu_us: float
    """Of this process, per transition."""


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(collectors: int, options: argparse.Namespace) -> tuple[float, float, float, float]:
    """Transitions per second, CPU seconds per transition of a collector and of the learner, seconds
    of a bare step."""
    learns = options.updates > 0
    config = us.DDQNConfig(
        hidden_sizes=(64, 64),
        start_steps=0,
        min_buffer_size=1_000 if learns else 10_000_000,
        buffer_size=100_000 if learns else 10_000_000,
        updates_per_step=options.updates or 1.0,
    )
    cluster = us.Cluster(
        collectors=collectors,
        collector_chunk_steps=options.chunk_steps,
        cpus_each=options.cpus_each,
    )
    sleep = options.sleep
    agent = us.DDQN(lambda: Sleepy(sleep), config, cluster=cluster)
    trainer: Any = agent.trainer
    # As many at once as will collect: a sleep ends late on a busy machine.
    ray = trainer.collectors.supervisor.ray
    bare = ray.remote(num_cpus=options.cpus_each)(bare_step_seconds)
    bares = ray.get([bare.remote(sleep) for _ in range(collectors)])
    pause = int(options.warm_up * collectors / sleep)
    trainer.advance(max(pause, 4 * collectors * options.chunk_steps))
    processes = trainer.collectors.supervisor.call_all("pid")
    began, before = time.perf_counter(), trainer.steps
    used = [cpu_seconds(process) for process in [*processes, os.getpid()]]
    while time.perf_counter() - began < options.seconds:
        trainer.advance(collectors * options.chunk_steps)
    seconds, steps = time.perf_counter() - began, trainer.steps - before
    now = [cpu_seconds(process) for process in [*processes, os.getpid()]]
    spent = [b - a for a, b in zip(used, now, strict=True)]
    agent.close()
    return steps / seconds, sum(spent[:-1]) / steps, spent[-1] / steps, sum(bares) / collectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collectors", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=10.0, help="measured, per row")
    parser.add_argument("--warm-up", type=float, default=4.0, help="seconds before that, per row")
    parser.add_argument("--chunk-steps", type=int, default=200, help="transitions per delivery")
    parser.add_argument("--sleep", type=float, default=0.002, help="seconds that a step sleeps")
    parser.add_argument("--updates", type=float, default=0.0, help="per transition")
    parser.add_argument("--cpus-each", type=float, default=0.2, help="promised by Ray")
    parser.add_argument("--csv", type=Path, help="where the rows are written")
    options = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load before the start {os.getloadavg()[0]:.2f}")
    rows: list[Row] = []
    for collectors in options.collectors:
        found, cpu, learner_cpu, bare = measure(collectors, options)
        alone = rows[0].transitions_per_second / rows[0].collectors if rows else found / collectors
        shares = found / collectors * options.sleep, found / collectors / alone
        costs = bare, collectors / found - bare, cpu, learner_cpu
        rows.append(Row(collectors, found, *shares, *(1e6 * cost for cost in costs)))
        print("  ".join(f"{name} {value:.6g}" for name, value in rows[-1]._asdict().items()))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Row._fields)
            writer.writerows([f"{value:.6g}" for value in row] for row in rows)


if __name__ == "__main__":
    main()
