"""What one transition costs RLlib on `Sleepy`, beside the time that the environment sleeps.

RLlib lives in an environment of its own, so that its versions are its own:

    python3 -m venv rllib && rllib/bin/pip install "ray[rllib]==2.60.0" torch==2.13.0 gymnasium
    rllib/bin/python benchmarks/cluster/rllib.py --csv benchmarks/results/cluster_rllib.csv

IMPALA on the new API stack: acting costs it as little CPU as PPO and APPO and 8 % less than DQN
(the four that were tried), and its sampling is asynchronous: every runner has its next request in
hand before it has answered the last. The calls are those of IMPALA's own
`training_step`; the episodes are fetched into this process. Nothing learns and no weights are sent,
which is in RLlib's favour.
"""

import argparse
import csv
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import gymnasium
import ray
import torch
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.tune.registry import register_env
from sleepy import Sleepy, bare_step_seconds

REQUESTS_IN_FLIGHT = 2  # one that runs and one that waits: a runner is never idle
POLL_SECONDS = 0.02  # IMPALA's own is 0, which would keep one core busy asking


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
    """Of the runner's process, per transition: it bounds how many runners the cores carry."""


class Arrival(NamedTuple):
    runner: int
    at: float
    cpu_seconds: float
    transitions: int


def start_runners(collectors: int, options: argparse.Namespace) -> EnvRunnerGroup:
    register_env("sleepy", lambda _, seconds=options.sleep: Sleepy(seconds))
    config = (
        IMPALAConfig()
        .environment("sleepy")
        .env_runners(
            num_env_runners=collectors,
            num_envs_per_env_runner=1,
            rollout_fragment_length=options.chunk_steps,
            max_requests_in_flight_per_env_runner=REQUESTS_IN_FLIGHT,
        )
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
    )
    return EnvRunnerGroup(config=config, local_env_runner=False)


def sample(group: EnvRunnerGroup, processes: dict[int, int], seconds: float) -> Iterator[Arrival]:
    """What the runners deliver for so long; their requests stay in flight when it ends."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        ready = group.foreach_env_runner_async_fetch_ready(
            func="sample_get_state_and_metrics",
            tag="sample",
            timeout_seconds=POLL_SECONDS,
            return_actor_ids=True,
        )
        for runner, (episodes, _, _) in ready:
            transitions = sum(len(episode) for episode in ray.get(episodes))
            now, cpu = time.perf_counter(), cpu_seconds(processes[runner])
            yield Arrival(runner, now, cpu, transitions)


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summarize(arrivals: list[Arrival], collectors: int) -> tuple[float, float]:
    """Transitions per second, and CPU seconds per transition."""
    # Each runner's count runs from its first to its last arrival: over the bare window, a
    # fragment more or less at its ends would be some percent.
    rate = cpu = 0.0
    for runner in range(1, collectors + 1):
        own = [arrival for arrival in arrivals if arrival.runner == runner]
        if len(own) < 2:
            raise SystemExit(f"runner {runner} delivered {len(own)} fragments: give more --seconds")
        transitions = sum(arrival.transitions for arrival in own[1:])
        rate += transitions / (own[-1].at - own[0].at)
        cpu += (own[-1].cpu_seconds - own[0].cpu_seconds) / transitions / collectors
    return rate, cpu


def measure(collectors: int, options: argparse.Namespace) -> tuple[float, float, float]:
    """Transitions per second, CPU seconds per transition, seconds of a bare step."""
    group, sleep = start_runners(collectors, options), options.sleep
    # In the runners, all at once, as they will sample: a sleep ends late on a busy machine.
    bare = group.foreach_env_runner(lambda _: bare_step_seconds(sleep))
    processes = dict(group.foreach_env_runner(lambda runner: (runner.worker_index, os.getpid())))
    list(sample(group, processes, options.warm_up))
    arrivals = list(sample(group, processes, options.seconds))
    group.stop()
    return *summarize(arrivals, collectors), sum(bare) / len(bare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collectors", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=10.0, help="measured, per row")
    parser.add_argument("--warm-up", type=float, default=4.0, help="seconds before that, per row")
    parser.add_argument("--chunk-steps", type=int, default=200, help="transitions per delivery")
    parser.add_argument("--sleep", type=float, default=0.002, help="seconds that a step sleeps")
    parser.add_argument("--csv", type=Path, help="where the rows are written")
    options = parser.parse_args()
    print(f"ray {ray.__version__}, torch {torch.__version__}, gymnasium {gymnasium.__version__}")
    print(f"{len(os.sched_getaffinity(0))} cores, load before the start {os.getloadavg()[0]:.2f}")
    cpus = max(options.collectors) + 2  # promised to Ray, so that all runners are placed
    ray.init(num_cpus=cpus, object_store_memory=200_000_000, include_dashboard=False)
    rows: list[Row] = []
    for collectors in options.collectors:
        found, cpu, bare = measure(collectors, options)
        alone = rows[0].transitions_per_second / rows[0].collectors if rows else found / collectors
        shares = found / collectors * options.sleep, found / collectors / alone
        costs = bare, collectors / found - bare, cpu
        rows.append(Row(collectors, found, *shares, *(1e6 * cost for cost in costs)))
        print("  ".join(f"{name} {value:.6g}" for name, value in rows[-1]._asdict().items()))
    ray.shutdown()
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Row._fields)
            writer.writerows([f"{value:.6g}" for value in row] for row in rows)


if __name__ == "__main__":
    main()
