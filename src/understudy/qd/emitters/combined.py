"""Several emitters that act as one."""

from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp

from understudy.buffers import ReplayState
from understudy.qd.emitters.base import Emitter
from understudy.qd.repertoire import Repertoire
from understudy.types import Key, Tree


@final
class CombinedEmitter(Emitter):
    """Each emitter makes a part of the generation; all of them learn from the whole."""

    def __init__(self, emitters: Sequence[Emitter]):
        self.emitters = [emitter for emitter in emitters if emitter.size]
        self.size = sum(emitter.size for emitter in self.emitters)

    def init(self, key: Key) -> tuple[Any, ...]:
        keys = jax.random.split(key, len(self.emitters))
        return tuple(emitter.init(key) for emitter, key in zip(self.emitters, keys, strict=True))

    def ask(
        self,
        state: tuple[Any, ...],
        repertoire: Repertoire,
        experience: ReplayState | None,
        key: Key,
    ) -> Tree:
        keys = jax.random.split(key, len(self.emitters))
        parts = [
            emitter.ask(own, repertoire, experience, key)
            for emitter, own, key in zip(self.emitters, state, keys, strict=True)
        ]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    def tell(self, state: tuple[Any, ...], experience: ReplayState | None) -> tuple[Any, ...]:
        return tuple(
            emitter.tell(own, experience) for emitter, own in zip(self.emitters, state, strict=True)
        )
