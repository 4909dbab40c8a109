"""What happens when an environment fails. Free of JAX: environment workers import it."""

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, final

import numpy as np

from understudy.envs.episode_info import EpisodeInfo
from understudy.errors import ConfigError, EnvironmentError

LIMIT = 1e15  # numbers are clipped to ±LIMIT: float32 can hold the sum of 10⁸ of their squares
TRIES = 3  # to begin one episode
WINDOW = 1_000  # episodes over which failures are counted
LONGEST_TIMEOUT = 1e6  # seconds

_log = logging.getLogger("understudy.envs")


@final
@dataclass(frozen=True)
class Guard:
    """How many failures of its environments a run tolerates."""

    step_timeout: float = 60.0
    """Seconds a worker process has for one step of its environments; then it is replaced. An
    environment in the run's own process cannot be interrupted."""
    most_rebuilds: int = 3
    """Failures survived within 1,000 episodes of all environments together."""
    non_finite: str = "error"
    """What a NaN or an infinity in an observation or a reward does: "error" ends the run, "drop"
    ends the episode and forgets the step."""

    def __post_init__(self) -> None:
        problems = []
        timeout, most = self.step_timeout, self.most_rebuilds
        if not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST_TIMEOUT:
            problems.append(
                f"step_timeout must be above 0 and at most {LONGEST_TIMEOUT:,.0f} seconds, "
                f"got {timeout!r}"
            )
        if not isinstance(most, int) or most < 0:
            problems.append(f"most_rebuilds must be a whole number from 0 on, got {most!r}")
        if self.non_finite not in ("error", "drop"):
            problems.append(f'non_finite must be "error" or "drop", got {self.non_finite!r}')
        if problems:
            raise ConfigError("; ".join(problems))


DEFAULT_GUARD = Guard()


class FaultKind(StrEnum):
    REBUILT = "rebuilds"
    RESTARTED = "worker_restarts"
    DROPPED = "dropped_episodes"
    CLIPPED = "clipped_values"


class Fault(NamedTuple):
    """A failure that the run survived."""

    kind: FaultKind
    message: str  # begins with the environment
    trace: str = ""
    cut_rows: tuple[int, ...] = ()  # the rows whose open episodes it ended
    count: int = 1


class Report(NamedTuple):
    """What a block of environments reports beside its steps."""

    faults: list[Fault]
    infos: dict[int, EpisodeInfo]  # of episodes that ended, by row


class Abnormal(NamedTuple):
    """Numbers that are not finite or, if all are finite, lie beyond ±LIMIT."""

    finite: bool
    count: int
    index: tuple[int, ...]  # of the first one
    value: Any


def find_abnormal(values: np.ndarray) -> Abnormal | None:
    """Return the numbers of `values` that must be clipped or refused; None if all are in order."""
    if values.dtype == np.float16:  # LIMIT is beyond its range
        values = values.astype(np.float32)
    if values.dtype.kind != "f" or (np.abs(values) <= LIMIT).all():
        return None
    wrong = ~np.isfinite(values)
    finite = not wrong.any()
    if finite:
        wrong = np.abs(values) > LIMIT
    index = tuple(np.argwhere(wrong)[0].tolist())
    return Abnormal(finite, int(wrong.sum()), index, values[index])


@final
class FaultCounter:
    """Count and log survived faults; raise an error when there are too many."""

    def __init__(self, guard: Guard):
        self._guard = guard
        self.counts: dict[str, int] = {kind.value: 0 for kind in FaultKind}
        self.episodes = 0  # begun so far, in all environments
        self._failures: deque[tuple[int, str]] = deque()  # when and how, of the latest episodes

    def record(self, faults: Iterable[Fault]) -> list[int]:
        """Count these faults; returns the rows whose open episodes were cut."""
        cut: list[int] = []
        for fault in faults:
            known = self.counts[fault.kind] > 0
            self.counts[fault.kind] += fault.count
            cut += fault.cut_rows
            text = f"{fault.message}\n{fault.trace}".strip()
            if fault.kind in (FaultKind.REBUILT, FaultKind.RESTARTED):
                _log.warning("%s", text)
                self._count_failure(text)
            elif not known:
                _log.warning("%s (counted from now on, without another warning)", text)
        return cut

    def _count_failure(self, text: str) -> None:
        failures, most = self._failures, self._guard.most_rebuilds
        failures.append((self.episodes, text))
        while failures[0][0] <= self.episodes - WINDOW:
            failures.popleft()
        if len(failures) > most:
            times = "once" if len(failures) == 1 else f"{len(failures)} times"
            raise EnvironmentError(
                f"environments failed {times} within {WINDOW:,} episodes, more than "
                f"most_rebuilds={most}. The first time:\n{failures[0][1]}"
            )
