"""Tables of returns, with a column per algorithm that has results."""

from collections.abc import Callable, Sequence

from measured import returns
from measured.files import table

ALGORITHMS = ("a2c", "ppo", "pqn", "reppo", "ddqn", "ddpg", "td3", "sac", "mpo")
TASKS = ("CartPole-v1", "Acrobot-v1", "LunarLander-v3", "Pendulum-v1", "MountainCarContinuous-v0",
         "HalfCheetah-v5")  # fmt: skip
UNSEEN = "_seeds5to9"  # the tag of runs on seeds on which no preset was chosen
Cell = Callable[[str], str]  # of an algorithm


def learning() -> str:
    """Write the final returns of the learning files, one row per task."""
    found = [(task, _cells(lambda name, task=task: _learned(name, task))) for task in TASKS]
    cheetah = f"learning_{{}}_HalfCheetah-v5{UNSEEN}"
    unseen = _cells(lambda name: _if_there(returns.mean_and_range, cheetah.format(name)))
    return _with_columns([*found, ("HalfCheetah-v5, seeds 5–9", unseen)])


def _learned(algorithm: str, task: str) -> str:
    """Write mean and steps; the native environment counts where there is no other run."""
    for env in (task, f"jax-{task}"):
        run = f"learning_{algorithm}_{env}"
        if returns.exists(run):
            note = ", native" if env != task else ""
            return f"{returns.mean(run)} ({returns.steps(run)}{note})"
    return ""


def unseen_seeds() -> str:
    """Write the rows "after" of before_after.csv on Gymnasium environments."""
    body = []
    for task in ("CartPole-v1", "Pendulum-v1"):
        runs = {name: returns.of_commit("after", name, task) for name in ALGORITHMS}
        scores = _cells(lambda name, runs=runs: _if_there(returns.mean_and_range, runs[name]))
        steps = _cells(lambda name, runs=runs: _if_there(returns.steps, runs[name]))
        body += [(task, scores), ("steps", steps)]
    return _with_columns(body)


def before_and_after() -> str:
    """Write all rows of before_after.csv."""
    body = []
    for task in ("Pendulum-v1", "CartPole-v1", "jax:Pendulum-P-v1", "jax:CartPole-P-v1",
                 "jax:Recall-v0"):  # fmt: skip
        for name in ("a2c", "ddqn", "ddpg", "td3", "sac", "mpo"):
            before, after = (returns.of_commit(one, name, task) for one in ("before", "after"))
            if returns.exists(after):
                scores = [returns.mean_and_range(run) for run in (before, after)]
                label = f"{name.upper()}, {task}"
                body.append([label, returns.steps_in_full(after), *scores])
    return table(["algorithm, environment", "steps", "before", "after"], body)


def _cells(cell: Cell) -> list[str]:
    return [cell(name) for name in ALGORITHMS]


def _if_there(write: Callable[[str], str], run: str) -> str:
    return write(run) if returns.exists(run) else ""


def _with_columns(body: Sequence[tuple[str, list[str]]]) -> str:
    """Leave out the algorithms without results."""
    used = [place for place in range(len(ALGORITHMS)) if any(cells[place] for _, cells in body)]
    header = ["", *(ALGORITHMS[place].upper() for place in used)]
    return table(header, [[label, *(cells[place] for place in used)] for label, cells in body])
