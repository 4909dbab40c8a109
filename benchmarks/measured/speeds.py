"""Speeds and times on the CPU and on an H200."""

from functools import cache

from measured.files import WORDS, cell, column, exists, median, minus, number, ratios, rows, table

NAMES_OF_PEERS = {"ddqn": "dqn"}  # what the other libraries call an algorithm
CONTESTS = ("sac", "td3", "ddpg", "ddqn", "a2c", "ppo")
LIBRARIES = {"sbx": "SBX", "sb3": "Stable-Baselines3", "cleanrl": "CleanRL"}
SESSIONS = ("speed_cpu", "speed_cpu_ppo")  # files; a contest belongs to the first one that has it


@cache
def rates(contestant: str, files: tuple[str, ...] = SESSIONS) -> tuple[float, ...]:
    """Return steps per second, one number per round; empty if there is no such contestant."""
    for session in filter(exists, files):
        own = [row for row in rows(session) if row["contestant"] == contestant]
        if own:
            own.sort(key=lambda row: int(row["round"]))
            return tuple(int(row["steps"]) / float(row["seconds"]) for row in own)
    return ()


def _fastest(algorithm: str, library: str, files: tuple[str, ...] = SESSIONS) -> tuple[float, ...]:
    """Return the speeds of a library with its faster setting of threads; empty if it has none."""
    name = algorithm if library == "understudy" else NAMES_OF_PEERS.get(algorithm, algorithm)
    names = (f"{library}-{name}", f"{library}-{name}-1thread")
    return max(filter(None, (rates(one, files) for one in names)), key=median, default=())


def _speeds_of(
    algorithm: str, library: str, files: tuple[str, ...] = SESSIONS
) -> tuple[float, ...]:
    found = _fastest(algorithm, library, files)
    if not found:
        raise KeyError(f"no file has the speed of {algorithm} of {library}")
    return found


def _ratios(algorithm: str, library: str, files: tuple[str, ...] = SESSIONS) -> list[float]:
    own, other = (_speeds_of(algorithm, name, files) for name in ("understudy", library))
    return ratios(own, other)


def rounds() -> str:
    return WORDS[len(_speeds_of("sac", "understudy"))]


def median_speed(algorithm: str, library: str = "understudy") -> str:
    """Write steps per second, the median of the rounds."""
    return f"{median(_speeds_of(algorithm, library)):,.0f}"


def median_ratio(algorithm: str, library: str) -> str:
    """Write Understudy's speed divided by the other's in the same round, the median."""
    return f"{median(_ratios(algorithm, library)):.2f}"


def ratio_range(algorithm: str, library: str) -> str:
    """Write the smallest and the largest of these ratios."""
    found = _ratios(algorithm, library)
    return f"{min(found):.2f}–{max(found):.2f}"


def against(algorithm: str, library: str) -> str:
    """Write the speed of another library, and the ratios; nothing if it has no such algorithm."""
    if not _fastest(algorithm, library):
        return ""
    ratio = f"{median_ratio(algorithm, library)}×, {ratio_range(algorithm, library)}"
    return f"{median_speed(algorithm, library)} ({ratio})"


def on_slow_cores(algorithm: str, library: str) -> str:
    """Write the median of the ratios and their range, in the run on slow cores."""
    found = _ratios(algorithm, library, ("speed_cpu_slow",))
    return f"{median(found):.2f} ({min(found):.2f}–{max(found):.2f})"


def table_of_speeds() -> str:
    """Write a row per measured algorithm and a column per measured library."""
    measured = [name for name in CONTESTS if _fastest(name, "understudy")]
    others = [one for one in LIBRARIES if any(_fastest(name, one) for name in measured)]
    body = [
        [name.upper(), median_speed(name), *(against(name, one) for one in others)]
        for name in measured
    ]
    return table(["steps/s", "Understudy", *(LIBRARIES[one] for one in others)], body)


def between_algorithms(first: str, second: str) -> str:
    """Write the speed of one algorithm divided by that of another, the median of the rounds."""
    pairs = ratios(_speeds_of(first, "understudy"), _speeds_of(second, "understudy"))
    return f"{median(pairs):.1f}"


def sac_gflops() -> str:
    """Write the rate of SAC's update."""
    return cell("speed_cpu.md", "SAC update reaches (0.59 GFLOP each)", 1).split(":")[0]


def sac_share_of_numpy() -> str:
    """Write the rate of SAC's update divided by that of NumPy's matrix product."""
    text = cell("speed_cpu.md", "SAC update reaches (0.59 GFLOP each)", 1)
    return text.split(": ")[1].split("%")[0] + " %"


def replay_megabytes() -> str:
    """Write the size of a million HalfCheetah transitions."""
    size = cell("speed_cpu.md", "HalfCheetah-v5", 2).split()[0].replace(",", "")
    return f"{int(size) / 1e6:.0f} MB"


def prioritized_cost(algorithm: str, measure: str) -> str:
    """Write the time of a step with prioritized replay divided by that with uniform replay."""
    uniform, prioritized = (
        column("replay_cpu", "seconds", algorithm=algorithm, measure=measure, replay=kind)
        for kind in ("uniform", "prioritised")  # the spelling of the file
    )
    return f"{median(ratios(prioritized, uniform)):.2f}"


def checkpoint_cost(row: str, machine: str) -> str:
    """Write a cell of the table of checkpoints; the machine is `cpu` or `h200`."""
    text = cell("saving.md", row, {"cpu": 1, "h200": 2}[machine])
    share = text.removesuffix(" %")
    return text if share == text or float(share) < 0.1 else f"{float(share):.1f} %"


def whole_run_seconds(env: str, library: str) -> str:
    """Write the seconds of a whole training, the median of the rounds."""
    return f"{median(_whole_runs(env, library)):.0f}"


def whole_run_ratio(env: str, library: str) -> str:
    """Write another library's time divided by Understudy's, the median of the rounds."""
    ratio = median(ratios(_whole_runs(env, library), _whole_runs(env, "understudy")))
    return f"{ratio:.2f}×" if ratio < 4 else f"{ratio:.1f}×"


def whole_run_against(env: str, library: str) -> str:
    return f"{whole_run_seconds(env, library)} ({whole_run_ratio(env, library)})"


def whole_run_rounds() -> str:
    return WORDS[len(_whole_runs("HalfCheetah-v5", "understudy"))]


def _whole_runs(env: str, library: str) -> list[float]:
    return column("whole_runs_cpu", "seconds", env=env, library=library)


def on_h200(measure: str) -> str:
    """Write a measure of the H200, the median of its repeats."""
    return f"{median(column('accelerator_nvidia_h200', 'value', measure=measure)):,.0f}"


def action_time(policy: str, call: str, percentile: str) -> str:
    """Write µs of one action, the median over the rounds of `median_us` or `p99_us`."""
    return f"{median(column('latency_cpu', percentile, policy=policy, call=call)):.0f}"


def action_row(policy: str, call: str) -> str:
    """Write the two cells of a call: the median and the 99th percentile."""
    return f"{action_time(policy, call, 'median_us')} | {action_time(policy, call, 'p99_us')}"


def chunk_speed(seeds: str, workers: str, chunk_steps: str) -> str:
    """Write steps per second of all seeds with chunks of a length, the median of the slices."""
    where = {"seeds": seeds, "workers": workers, "chunk_steps": chunk_steps}
    return f"{median(column('chunks', 'steps_per_second', **where)):,.0f}"


def commit_ratio(case: str, reference: str) -> str:
    """Write the speed divided by that of an earlier commit: of the medians, and its range."""
    where = {"case": case, "reference": reference}
    before = column("two_commits_cpu", "reference_seconds", **where)
    after = column("two_commits_cpu", "seconds", **where)
    found = ratios(before, after)
    ratio = median(before) / median(after)
    return f"{ratio:.2f} ({min(found):.2f} … {max(found):.2f})"


def envpool_row(contestant: str) -> str:
    """Write the cells of a contestant: stepping alone, and SAC."""
    cells = []
    for what in ("stepping", "training"):
        found = column("envpool_cpu", "transitions_per_second", what=what, contestant=contestant)
        cells.append(f"{median(found):,.0f} ({min(found):,.0f} … {max(found):,.0f})")
    return " | ".join(cells)


def policy_message(widths: str) -> str:
    """Write the cells of a policy that is sent: kB, and µs to put it and to read it."""
    size, put, read = (
        column("cluster_costs", name, message=widths)[0] for name in ("bytes", "put_us", "call_us")
    )
    return f"{size / 1e3:,.0f} | {put:,.0f} | {read:,.0f}"


def delivery(message: str, steps: str) -> str:
    """Write the cells of a delivery: bytes of a step, µs of the call and of a step."""
    size, call = (
        column("cluster_costs", name, message=message)[0] for name in ("bytes", "call_us")
    )
    return f"{size / int(steps):,.0f} | {call:,.0f} | {call / int(steps):,.0f}"


SLEEP_US = 2_000  # of a step of the environment in the benchmark of collectors


def collectors_row(collectors: str) -> str:
    """Write the row of the table of collectors: this library, then RLlib."""
    cells = [collectors]
    for name in ("cluster_ours", "cluster_rllib"):
        (found,) = [row for row in rows(name) if row["collectors"] == collectors]
        beyond = float(found["bare_step_us"]) + float(found["overhead_us"]) - SLEEP_US
        cells += [
            number(float(found["transitions_per_second"]), 0),
            f"{float(found['share_of_linear']):.0%}".replace("%", " %"),
            number(beyond, 0),
            number(float(found["cpu_us"]), 0),
        ]
    return "| " + " | ".join(cells) + " |"


def storing_cost() -> str:
    """Write the smallest and the largest CPU time of the learner per step."""
    found = column("cluster_ours", "learner_cpu_us")
    return minus(f"{min(found):.0f} to {max(found):.0f}")
