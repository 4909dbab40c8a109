"""Scores of several tasks together, in the way of Agarwal et al. (2021).

A score is 0 for actions drawn uniformly and 1 for the reference of its task.
"""

import hashlib
import statistics
from functools import cache

import numpy as np

from measured import returns
from measured.files import column, number, table
from understudy.ops.statistics import iqm, stratified_bootstrap_interval

ALGORITHMS = ("sac", "td3", "ddpg", "mpo")
# CartPole: its largest return. Pendulum: DDPG and TD3 of the SB3 zoo after 20,000 steps.
# HalfCheetah: SAC of SBX after 100,000 steps.
REFERENCES = {"CartPole-v1": 500.0, "Pendulum-v1": -152.0, "HalfCheetah-v5": 6_156.0}
TASKS_OF_PROFILE = ("HalfCheetah-v5", "Pendulum-v1")
# The pictures that profiles.py draws, with the tasks that they show.
PICTURES = {
    "performance_profile.png": TASKS_OF_PROFILE,
    "intervals.png": (*TASKS_OF_PROFILE, "CartPole-v1"),
}
DIGEST = "Scores"  # the name in the metadata of a picture


def runs_on(task: str) -> dict[str, str]:
    """Return the runs on seeds on which no preset was chosen, by algorithm."""
    found = {}
    for name in ("sac", "td3", "ddpg", "mpo", "ddqn", "ppo", "a2c"):
        options = (
            f"learning_{name}_{task}_seeds5to9",
            returns.of_commit("after", name, task),
            f"learning_{name}_{task}" if name == "ppo" else "",  # its seeds are 10–14
        )
        there = [run for run in options if run and returns.exists(run)]
        if there:
            found[name] = there[0]
    return found


def random_return(task: str) -> float:
    return statistics.fmean(column("random_policy", "return", env=task))


def normalized(task: str, algorithm: str) -> np.ndarray:
    """Return the scores of the seeds."""
    scores = np.array(list(returns.final_returns(runs_on(task)[algorithm]).values()))
    zero = random_return(task)
    return (scores - zero) / (REFERENCES[task] - zero)


@cache
def profile_scores(algorithm: str) -> np.ndarray:
    """Return [tasks, seeds] of the performance profile."""
    return np.stack([normalized(task, algorithm) for task in TASKS_OF_PROFILE])


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the share of the scores above each threshold."""
    return (scores.reshape(-1, 1) > thresholds).mean(axis=0)


def profile_band(scores: np.ndarray, thresholds: np.ndarray, resamples: int = 2000) -> np.ndarray:
    """Return the 95 % bootstrap interval [2, thresholds]; seeds are drawn within each task."""
    tasks, seeds = scores.shape
    drawn = np.random.default_rng(0).integers(seeds, size=(resamples, tasks, seeds))
    samples = scores[np.arange(tasks)[None, :, None], drawn]
    shares = np.stack([profile(sample, thresholds) for sample in samples])
    return np.quantile(shares, [0.025, 0.975], axis=0)


def digest(tasks: tuple[str, ...]) -> str:
    """Return a short hash of everything that a picture of these tasks shows."""
    shown = {
        f"{task} {name} {returns.steps(run)}": returns.final_returns(run)
        for task in tasks
        for name, run in runs_on(task).items()
    }
    facts = [shown, [random_return(task) for task in tasks], REFERENCES]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def random_score(task: str) -> str:
    """Write the mean return of actions drawn uniformly."""
    return number(random_return(task))


def reference(task: str) -> str:
    """Write the return that has the normalized score 1."""
    return number(REFERENCES[task], 0)


def table_of_normalized_scores() -> str:
    """Write the interquartile mean of each algorithm's normalized scores, and its interval."""
    body = []
    for name in ALGORITHMS:
        scores = profile_scores(name)
        low, high = stratified_bootstrap_interval(scores, iqm)
        body.append([name.upper(), f"{iqm(scores):.2f}", f"{low:.2f} to {high:.2f}"])
    return table(["", "IQM", "95 % interval"], body)
