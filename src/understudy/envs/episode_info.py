"""What environments report in `info`: the mean of each number over an episode, and success.

Free of JAX: environment workers import it.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

MOST_KEYS = 64  # of a run
LONGEST_KEY = 100
SUCCESS = ("success", "is_success")  # the first one that is there counts
# Wrappers add these. The library counts returns, lengths and ends of episodes itself.
NOT_COLLECTED = frozenset(
    {"episode", "final_info", "final_obs", "final_observation", "terminal_observation",
     "TimeLimit.truncated"}
)  # fmt: skip
_NUMBERS = frozenset(
    kind
    for kind in (bool, int, float, *np.sctypeDict.values())
    if issubclass(kind, bool | int | float | np.floating | np.integer | np.bool_)
    and not issubclass(kind, np.timedelta64)
)

_log = logging.getLogger("understudy.envs")


class EpisodeInfo(NamedTuple):
    """What an environment has reported over one episode."""

    means: dict[str, float]
    success: bool | None = None  # the last value; None if success was not reported


@final
class InfoTally:
    """Adds up the numbers in `info` over the open episode of each environment."""

    def __init__(self, rows: int, first_row: int = 0):
        """Results have the numbers of rows among all environments: the first is `first_row`."""
        self._first_row = first_row
        # By row and key: the sum, the number of values and the last one.
        self._open: list[dict[Any, list[float]]] = [{} for _ in range(rows)]
        self.ended: dict[int, EpisodeInfo] = {}

    def begin(self, row: int) -> None:
        """Begin a new episode."""
        self._open[row] = {}

    def end(self, row: int, cut: bool = False) -> None:
        """Add what the open episode has reported to those that `ended`, unless it was cut."""
        if self._open[row] and not cut:
            self.ended[self._first_row + row] = _describe_episode(self._open[row])

    def take(self) -> dict[int, EpisodeInfo]:
        """Return what the episodes have reported that ended since the last call, by row."""
        taken, self.ended = self.ended, {}
        return taken

    def read_open(self) -> dict[int, EpisodeInfo]:
        """Return what the open episodes have reported so far, by row."""
        rows = enumerate(self._open, self._first_row)
        return {row: _describe_episode(entries) for row, entries in rows if entries}

    def add(self, row: int, info: Any) -> None:
        """Add one step. Values that are no finite numbers are left out."""
        if not isinstance(info, dict):
            return
        entries = self._open[row]
        for key, value in info.items():
            if type(value) in _NUMBERS:
                try:
                    number = float(value)
                except OverflowError:  # a very large int
                    continue
                if number - number == 0.0:  # False for NaN and infinities
                    entry = entries.get(key)
                    if entry is None:
                        # One more than a run has, so that the run can tell that there are more.
                        if len(entries) > MOST_KEYS or not _is_good(key):
                            continue
                        entry = entries[key] = [0.0, 0, 0.0]
                    entry[0] += number
                    entry[1] += 1
                    entry[2] = number


def _describe_episode(entries: dict[Any, list[float]]) -> EpisodeInfo:
    flags = [bool(entries[name][2]) for name in SUCCESS if name in entries]
    means = {
        key: total / count
        for key, (total, count, _) in entries.items()
        if key not in SUCCESS and math.isfinite(total)
    }
    return EpisodeInfo(means, flags[0] if flags else None)


def _is_good(key: Any) -> bool:
    """Whether a key can name a column of the log."""
    is_name = isinstance(key, str) and 0 < len(key) <= LONGEST_KEY and key.isprintable()
    return is_name and key not in NOT_COLLECTED


def split_rows(infos: Any, rows: np.ndarray) -> dict[int, Any]:
    """Return the info of each row that is marked in `rows` [M] bool. A vector environment gives one
    dict of arrays [M], with masks under `_key`, or one dict (or None) for each row."""
    marked = np.flatnonzero(rows).tolist()
    if not isinstance(infos, dict):
        of_rows = infos if isinstance(infos, np.ndarray | list | tuple) else ()
        return {row: of_rows[row] for row in marked if row < len(of_rows)}
    split: dict[int, dict[Any, Any]] = {row: {} for row in marked}
    for key, values in infos.items():
        is_mask = str(key)[:1] == "_" and str(key)[1:] in infos
        if is_mask or not isinstance(values, np.ndarray) or values.shape != rows.shape:
            continue
        mask = np.asarray(infos.get(f"_{key}", True))
        present = rows & mask if mask.dtype == np.bool_ and mask.shape in ((), rows.shape) else rows
        for row in np.flatnonzero(present).tolist():
            split[row][key] = values[row]
    return split


def describe(
    episodes: Sequence[Sequence[EpisodeInfo | None]],
) -> tuple[list[float], dict[str, float]]:
    """Return the success rate of each seed, and the mean over seeds of each number. A rate is NaN
    if no episode of the seed reports success."""
    rates, by_seed = [], []
    for of_seed in episodes:
        known = [episode for episode in of_seed if episode is not None]
        flags = [episode.success for episode in known if episode.success is not None]
        rates.append(float(np.mean(flags)) if flags else math.nan)
        by_seed.append(_means(episode.means for episode in known))
    return rates, _means(by_seed)


def _means(several: Any) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for means in several:
        for key, value in means.items():
            values.setdefault(key, []).append(value)
    return {key: float(np.mean(known)) for key, known in values.items()}


@final
class KeyLimit:
    """Selects the first keys that a run meets, and warns once of more."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._warned = False

    def select(self, means: dict[str, float]) -> dict[str, float]:
        """Return the means of the selected keys."""
        if means.keys() <= self._keys:
            return means
        for key in means:
            if len(self._keys) < MOST_KEYS:
                self._keys.add(key)
        selected = {key: mean for key, mean in means.items() if key in self._keys}
        if len(selected) < len(means) and not self._warned:
            self._warned = True
            _log.warning(
                "the environment's info has more than %d numbers: the first %d are logged",
                MOST_KEYS, MOST_KEYS,
            )  # fmt: skip
        return selected
