"""The result of a sweep: outcomes, best first, as a table, a CSV file and a command."""

import csv
import io
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from understudy.runs.files import write_whole
from understudy.sweep.space import Settings, spell_value

FINISHED, PRUNED, DIVERGED, FAILED = "finished", "pruned", "diverged", "failed"


@final
@dataclass(frozen=True)
class Outcome:
    """The returns of one setting, over its repeats."""

    settings: Settings
    seed: int
    """The seed of its first repeat; the others follow."""
    returns: np.ndarray  # of the last evaluation, [repeats, episodes]
    steps: list[int] = field(default_factory=list)
    """Steps at which it was evaluated during training."""
    curve: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    """The mean of each of these evaluations, [repeats, evaluations]."""
    state: str = FINISHED

    @property
    def mean(self) -> float:
        return float(self.returns.mean()) if self.returns.size else float("nan")

    @property
    def std(self) -> float:
        """The standard deviation over all episodes of all repeats."""
        return float(self.returns.std()) if self.returns.size else float("nan")


@final
@dataclass(frozen=True)
class SweepResult:
    """All outcomes, sorted by the mean over repeats; settings that did not finish come last."""

    algorithm: str
    env: str
    train_steps: int
    vary: dict[str, Any]
    outcomes: list[Outcome]
    flags: Settings = field(default_factory=dict)
    """Other settings that differ from the environment's preset."""
    env_args: Settings = field(default_factory=dict)
    """The keyword arguments of the environment."""

    def __post_init__(self) -> None:
        def sort_key(outcome: Outcome) -> tuple[int, float]:
            order = (FINISHED, PRUNED, DIVERGED, FAILED).index(outcome.state)
            return order, np.inf if np.isnan(outcome.mean) else -outcome.mean

        object.__setattr__(self, "outcomes", sorted(self.outcomes, key=sort_key))

    @property
    def best(self) -> Outcome:
        return self.outcomes[0]

    def rows(self) -> list[dict[str, Any]]:
        """Return rank, settings, mean, std, first seed, repeats and state of every outcome."""
        return [
            {
                "rank": rank,
                **{name: spell_value(value) for name, value in outcome.settings.items()},
                "mean": outcome.mean,
                "std": outcome.std,
                "seed": outcome.seed,
                "repeats": len(outcome.returns),
                "state": outcome.state,
            }
            for rank, outcome in enumerate(self.outcomes, start=1)
        ]

    def table(self) -> str:
        """Return the rows as text for a terminal."""
        names = ["rank", *self.vary, "mean", "std"]
        cells = [names]
        for row in self.rows():
            shown = [f"{row[n]:.1f}" if n in ("mean", "std") else str(row[n]) for n in names]
            cells.append([*shown, "" if row["state"] == FINISHED else row["state"]])
        widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
        lines = []
        for row in cells:
            numbers = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*numbers, *row[len(names) :]]).rstrip())
        return "\n".join(lines)

    def write_csv(self, path: Path) -> Path:
        """Write the rows; a reader never sees a part of the file."""
        text = io.StringIO()
        rows = self.rows()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return write_whole(path, text.getvalue())

    def command(self, outcome: Outcome | None = None) -> str:
        """Return the `understudy train` command that trains a setting (default: the best one)
        from the same seeds."""
        outcome = outcome or self.best
        words = ["understudy", "train", self.algorithm, self.env, "--steps", str(self.train_steps)]
        words += ["--seed", str(outcome.seed)]
        if len(outcome.returns) > 1:
            words += ["--seeds", str(len(outcome.returns))]
        for name, value in self.env_args.items():
            values = value if isinstance(value, list | tuple) else [value]
            words += ["--env-arg", f"{name}={','.join(map(spell_value, values))}"]
        for name, value in (self.flags | outcome.settings).items():
            words += [f"--{name.replace('_', '-')}", _flag(value)]
        return shlex.join(words)


def _flag(value: Any) -> str:
    """Write a value as a flag of `understudy train` takes it."""
    return spell_value(value).replace("x", ",") if isinstance(value, tuple) else spell_value(value)
