"""The protocol of an emitter: ask it for policies, evaluate them, tell it that it was done."""

import abc
from typing import Any

from understudy.buffers import ReplayState
from understudy.qd.repertoire import Repertoire
from understudy.types import Key, Tree


class Emitter(abc.ABC):
    """Makes a part of each generation. Pure functions: what changes is in its state."""

    size: int  # policies that it gives when asked

    def init(self, key: Key) -> Any:
        """What it carries from generation to generation."""
        return ()

    @abc.abstractmethod
    def ask(
        self, state: Any, repertoire: Repertoire, experience: ReplayState | None, key: Key
    ) -> Tree:
        """Policies to evaluate, [size, ...]. The repertoire is not empty."""

    def tell(self, state: Any, experience: ReplayState | None) -> Any:
        """The state after a generation was evaluated, all of it: `experience` holds its steps."""
        return state
