"""Returns of trained agents.

A run is the name of a learning file without `.csv` (`learning_sac_Pendulum-v1`), of a row of the
evidence queue (`proof/sac_HalfCheetah-v5`), or rows of before_after.csv
(`before_after/after/sac/Pendulum-v1`).
"""

import statistics
from functools import cache

from measured import files
from measured.files import column, in_words, number, rows

BEFORE_AFTER = "before_after"
Scores = dict[int, float]  # mean return of the last policy, by seed


def of_commit(version: str, algorithm: str, env: str) -> str:
    """Return the name of rows of before_after.csv."""
    return f"{BEFORE_AFTER}/{version}/{algorithm}/{env}"


def exists(run: str) -> bool:
    name = BEFORE_AFTER if run.startswith(BEFORE_AFTER) else run
    return files.exists(name) and bool(final_rows(run))


@cache
def final_rows(run: str) -> tuple[files.Row, ...]:
    """Return a row per seed, of the last policy."""
    name, *rest = run.split("/")
    if name != BEFORE_AFTER:
        return tuple(row for row in rows(run) if row["kind"] == "final")
    wanted = dict(zip(("version", "algorithm", "env"), rest, strict=True))
    return tuple(row for row in rows(name) if wanted.items() <= row.items())


def final_returns(run: str) -> Scores:
    """Return the score of each seed's last policy."""
    found = {int(row["seed"]): float(row["mean_return"]) for row in final_rows(run)}
    if not found:
        raise KeyError(f"{run} has no final evaluation")
    return found


def final_steps(run: str) -> int:
    (steps,) = {int(row["steps"]) for row in final_rows(run)}
    return steps


def mean(run: str, digits: str | None = None) -> str:
    """Average over the seeds."""
    return number(statistics.fmean(final_returns(run).values()), digits)


def mean_and_range(run: str, digits: str | None = None) -> str:
    """Write the mean, and the smallest and the largest seed in brackets."""
    return f"{mean(run, digits)} ({smallest(run, digits)} … {largest(run, digits)})"


def smallest(run: str, digits: str | None = None) -> str:
    return number(min(final_returns(run).values()), digits)


def largest(run: str, digits: str | None = None) -> str:
    return number(max(final_returns(run).values()), digits)


def each_seed(run: str, digits: str | None = None) -> str:
    """Write the score of every seed, in the order of the seeds."""
    return in_words(number(score, digits) for _, score in sorted(final_returns(run).items()))


def seeds(run: str) -> str:
    """Write the seeds as a range."""
    found = sorted(final_returns(run))
    if found != list(range(found[0], found[-1] + 1)):
        raise ValueError(f"{run} has the seeds {found}, expected a range without gaps")
    return f"{found[0]}–{found[-1]}" if len(found) > 1 else str(found[0])


def number_of_seeds(run: str) -> str:
    return files.WORDS[len(final_returns(run))]


def steps(run: str) -> str:
    """Write the number of steps in thousands or millions."""
    count = final_steps(run)
    return f"{count // 1_000_000}M" if count % 1_000_000 == 0 else f"{round(count / 1_000)}k"


def steps_in_full(run: str) -> str:
    return f"{final_steps(run):,}"


def steps_and_mean(run: str) -> str:
    return f"{steps(run)}: {mean(run)}"


def steps_and_range(run: str) -> str:
    """Write the steps, the mean, and the smallest and the largest seed."""
    return f"{steps(run)}: {mean_and_range(run)}"


def at_steps(run: str, wanted: str, digits: str | None = None) -> str:
    """Write the evaluations during training at the steps next to `wanted`: mean, and the smallest
    and the largest seed if there are several."""
    found = _near(run, int(wanted))
    mean = number(statistics.fmean(found), digits)
    if len(found) == 1:
        return mean
    return f"{mean} ({number(min(found), digits)} … {number(max(found), digits)})"


def seconds(run: str) -> str:
    """Write the seconds up to the last policy's evaluation."""
    (value,) = {float(row["wall_seconds"]) for row in final_rows(run)}
    return number(value, 0)


def near_steps(run: str, wanted: str, digits: str | None = None) -> str:
    """Write the range of the seeds' evaluations during training at the steps next to `wanted`."""
    found = _near(run, int(wanted))
    return f"{number(min(found), digits)} and {number(max(found), digits)}"


def _near(run: str, wanted: int) -> list[float]:
    """Return the evaluations during training at the steps next to `wanted`."""
    training = [row for row in rows(run) if row["kind"] == "training"]
    nearest = min({int(row["steps"]) for row in training}, key=lambda at: abs(at - wanted))
    return [float(row["mean_return"]) for row in training if int(row["steps"]) == nearest]


def pong(steps_taken: str) -> str:
    """Write the mean return on Pong after a number of agent steps."""
    (value,) = column("pong_ddqn_progress", "eval/mean_reward", **{"time/total_steps": steps_taken})
    return number(value)


def pong_speeds() -> str:
    """Write the lowest and the highest speed at the evaluations, in whole hundreds."""
    evaluations = [row for row in rows("pong_ddqn_progress") if row["eval/mean_reward"]]
    found = [float(row["time/fps"]) for row in evaluations]
    return f"{round(min(found), -2):,.0f} to {round(max(found), -2):,.0f}"


def chunk_returns(chunk_steps: str) -> str:
    """Write the median and the range of the seeds trained with chunks of a length."""
    found = column("chunk_learning", "mean_return", chunk_steps=chunk_steps)
    return f"{files.median(found):,.0f} ({min(found):,.0f} … {max(found):,.0f})"
