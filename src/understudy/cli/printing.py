"""Results in words, as the commands print them."""

from collections.abc import Sequence
from typing import Any

from understudy.agent import Agent
from understudy.agent.illumination import Illumination
from understudy.runs.progress import compact


def name_run(trained: Agent | Illumination) -> str:
    """What is trained, and on which environment."""
    env = trained.env_title if isinstance(trained, Agent) else trained.env_name
    return f"{trained.name} on {env}"


def name_seeds(trained: Agent | Illumination) -> str:
    """The seeds, where there are several."""
    if isinstance(trained, Agent) and trained.num_seeds > 1:
        return f", seeds {trained.seed}–{trained.seed + trained.num_seeds - 1}"
    return ""


def progress_of(trained: Agent | Illumination) -> tuple[int, str]:
    """How much is done, and what is counted."""
    if isinstance(trained, Agent):
        return trained.steps, "steps"
    return trained.evaluations, "evaluations"


def describe_returns(result: dict[str, Any], agent: Agent) -> str:
    """An evaluation in one line."""
    several = agent.num_seeds > 1
    episodes = len(result["returns"][0] if several else result["returns"])
    low, high = map(compact, result["ci95"])
    over = f"{episodes} episode{'s' * (episodes > 1)}{' per seed' * several}"
    units = f"{agent.num_seeds} seeds" if several else "episodes"
    return (
        f"return over {over}: mean {compact(result['mean'])} (95 % interval {low} … {high}), "
        f"standard deviation {compact(result['std'])}, IQM of the {units} {compact(result['iqm'])}"
    )


def describe_infos(result: dict[str, Any]) -> list[str]:
    """What the environment has reported in an evaluation, in lines; none if that is nothing."""
    lines = []
    if "success_rate" in result:
        lines.append(f"success rate {result['success_rate']:.1%}")
    if numbers := result.get("info"):
        means = ", ".join(f"{name} {mean:.4g}" for name, mean in numbers.items())
        lines.append(f"means of info: {means}")
    return lines


def describe_metrics(metrics: dict[str, float], offset: float | None = None) -> str:
    """The metrics of a repertoire in one line."""
    above = "" if offset is None else f" above {compact(offset)}"
    return (
        f"QD-score {compact(metrics['qd_score'])}{above}, coverage {metrics['coverage']:.1%}, "
        f"best fitness {compact(metrics['max_fitness'])}"
    )


def spell_behavior(descriptor: Sequence[float]) -> str:
    """A behavior as `--at` takes it."""
    return ",".join(f"{number:.3g}" for number in descriptor)


def at_best(found: Illumination) -> str:
    """The flag that chooses the fittest policy; empty where the repertoire is."""
    repertoire = found.repertoire
    if not len(repertoire):
        return ""
    return f" --at {spell_behavior(repertoire.descriptors[repertoire.fitness.argmax()].tolist())}"
