"""The interface between a run and what it advances."""

import abc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from understudy.runner import Description
from understudy.runs.callbacks import Episode
from understudy.runs.checkpoint import Arrays
from understudy.runs.csv_log import LogRow

Capture = Callable[[bool], tuple[Mapping[str, Arrays], Mapping[str, Any]]]


class Trainable(abc.ABC):
    """An object that a run advances, logs, evaluates and saves. Abstract; the final ones are
    `agent.training.TrainableAgent` and `qd.run.TrainableRepertoire`."""

    unit: ClassVar[str]
    """The unit of `count`, a key of `UNITS`."""
    batch: int
    """Growth of `count` in one iteration: the environments, or the policies of a generation."""
    position: Any
    """The counters in checkpoints; `logged` (iterations) and `seconds` among them."""
    capture: Capture
    """Returns the arrays and the manifest of a checkpoint, with or without the experience."""
    chunk: int
    """Growth of `count` after which callbacks may be called."""
    draw: Callable[[Path, str], object]
    """Draws pictures of the run into its directory, under a title."""
    ended: list[LogRow]
    """A line for `episodes.csv` for each episode that the last row counts."""
    describe_policy: Callable[[], Description] | None = None
    """Describes the policy for a file of its own, or raises ConfigError if that is impossible. None
    if there is no single policy."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """How far it has come: steps per seed, or evaluations."""

    @abc.abstractmethod
    def advance(self, iterations: int) -> None:
        """Advance by one iteration or more, at most by so many."""

    @abc.abstractmethod
    def block_until_ready(self) -> None:
        """Wait until the device has done what it was given."""

    def new_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call."""
        return []

    @abc.abstractmethod
    def interrupt(self) -> None:
        """Make `advance` return soon. A signal handler calls this."""

    @abc.abstractmethod
    def metrics(self, seconds: float) -> LogRow:
        """Return a row with the metrics since the last call; `seconds` were spent advancing."""

    @abc.abstractmethod
    def counters(self) -> LogRow:
        """Return the counts at which a row is logged."""

    @abc.abstractmethod
    def evaluate(self) -> LogRow:
        """Play episodes, and return their part of a row."""

    @abc.abstractmethod
    def memory_settings(self) -> dict[str, int]:
        """The settings that decide how much memory is needed."""
