"""Replay that other processes store, as the learner sees it."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

from understudy.buffers.base import Buffer, Hyper
from understudy.types import Chunk, Key, Spec


@final
@dataclass(frozen=True)
class RemoteReplayBuffer(Buffer):
    """Stores nothing: chunks are sent to the gradient workers, which sample."""

    external: ClassVar[bool] = True

    spec: Spec

    def init(self) -> tuple[()]:
        return ()

    def add(self, state: Any, chunk: Chunk) -> Any:
        return state

    def sample(self, state: Any, key: Key, hyper: Hyper) -> tuple[Any, None]:
        raise AssertionError("the gradient workers sample, not the learner")
