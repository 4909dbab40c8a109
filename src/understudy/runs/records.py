"""What a run leaves behind: its log, its learning curve and its checkpoints, in one directory."""

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, final

import numpy as np

from understudy.runs.csv_log import CsvLog, read_csv
from understudy.runs.run import Facts

LOG, CURVE, ABOUT = "progress.csv", "learning_curve.png", "run.json"
NEWEST, BEST = "checkpoint", "best"


@final
class Records:
    """An observer that keeps a run directory up to date.

    Checkpoints are written at each evaluation: `checkpoint`, the newest, and `best`, the best by
    evaluation.
    """

    def __init__(
        self,
        directory: Path,
        about: dict[str, Any],
        title: str,
        save: Callable[[Path], Any],
    ):
        self._directory, self._about, self._title, self._save = directory, about, title, save

    def __enter__(self) -> "Records":
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / ABOUT).write_text(json.dumps(self._about, indent=2))
        self._log = CsvLog(self._directory / LOG)
        # A run that is continued here must not replace its best by something worse.
        scores = read_csv(self._directory / LOG).get("eval/mean_reward", np.array([]))
        self._best = max([float("-inf"), *scores[np.isfinite(scores)].tolist()])
        return self

    def __call__(self, facts: Facts) -> None:
        self._log.append(facts)
        score = facts.get("eval/mean_reward")
        if score is None:
            return
        self._save(self._directory / NEWEST)
        if score > self._best:
            self._best = score
            self._save(self._directory / BEST)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Matplotlib takes half a second to import: only when there is something to draw.
        from understudy.runs.plots import learning_curve

        self._log.close()
        learning_curve(self._directory, self._directory / CURVE, self._title)
