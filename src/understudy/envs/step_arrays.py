"""The arrays through which steps are exchanged with environments. Free of JAX: environment workers
import it."""

from typing import Any, NamedTuple

import numpy as np


class StepArrays(NamedTuple):
    """The arrays [rows, ...] through which steps are exchanged with environments."""

    action: np.ndarray  # in the environments' own units
    chosen: np.ndarray  # bool: the rows to step, where not all are
    reward: np.ndarray
    terminated: np.ndarray
    last: np.ndarray
    next_observation: np.ndarray
    observation: np.ndarray  # the first of an episode; written only where one begins
    descriptor: np.ndarray | None = None  # NaN where there is none

    @classmethod
    def over(cls, buffer: Any, layout: np.dtype) -> "StepArrays":
        """Views of a block of memory; `layout` has one field of shape [rows, ...] per array."""
        record = np.ndarray((), layout, buffer)
        return cls(*(record[name] for name in layout.names or ()))

    def select(self, rows: slice) -> "StepArrays":
        return StepArrays(*(array[rows] for array in self if array is not None))

    def cut(self, rows: int | slice) -> None:
        """Mark rows as no transitions: their open episodes ended one step earlier."""
        self.reward[rows], self.terminated[rows], self.last[rows] = 0.0, False, True
        self.next_observation[rows] = 0
        if self.descriptor is not None:
            self.descriptor[rows] = np.nan
