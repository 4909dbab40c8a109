"""The interface of emitters: ask for policies, evaluate them, tell that they were evaluated."""

import abc
from typing import Any

from understudy.buffers import ReplayState
from understudy.qd.repertoire import Repertoire
from understudy.types import Key, Tree


class Emitter(abc.ABC):
    """Makes a part of each generation. Abstract. Its methods are pure functions of its state."""

    size: int  # policies per generation

    def init(self, key: Key) -> Any:
        """Return the state before the first generation."""
        return ()

    @abc.abstractmethod
    def ask(
        self, state: Any, repertoire: Repertoire, experience: ReplayState | None, key: Key
    ) -> Tree:
        """Return policies to evaluate, [size, ...]. The repertoire is not empty."""

    def tell(self, state: Any, experience: ReplayState | None) -> Any:
        """Return the state after a generation, whose steps are in the `experience`."""
        return state
