"""A film in the host's memory, or in a file, for what does not fit the device.

The arrays are NumPy's and are changed in place; what they mean, and what is drawn from them, is
as in `film`. Only what was drawn goes to the device, each frame of a sequence once, and becomes a
batch there (`to_batch`). All that can be drawn is equally likely: there are no priorities.
"""

import math
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from understudy.buffers import frame_replay as films
from understudy.buffers.frame_batch import Drawn
from understudy.buffers.frame_batch import to_batch as to_batch
from understudy.buffers.frame_replay import Film
from understudy.errors import CheckpointError, ConfigError
from understudy.types import Sequences, Spec, Transition


class HostFilm:
    """Films of several members. In RAM, or, given a directory, in a file there that has no name:
    nothing stays behind, however the process ends."""

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        lanes: int,
        members: int,
        sequences: Sequences | None = None,
        directory: Path | None = None,
    ) -> None:
        self.members, self.lanes = members, lanes
        shapes = jax.eval_shape(partial(films.create, spec, capacity, lanes, sequences=sequences))
        # Members side by side, as so many more lanes.
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((members * lanes, *x.shape[1:]), x.dtype), shapes
        )
        if directory is None:
            self._film: Film = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
        else:
            self._film = _in_file(shapes, directory)

    @property
    def size_in_bytes(self) -> int:
        return sum(array.nbytes for array in jax.tree.leaves(self._film))

    def add(self, step: Transition, valid: np.ndarray, memory: np.ndarray | None = None) -> None:
        """One step of every environment, [members, lanes, ...]; see `film.add`."""
        film, store = self._film, self._film.storage
        flat: Any = jax.tree.map(
            lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), (step, valid, memory)
        )
        step, valid, remembered = flat
        slots, cursor, age = store.reward.shape[1], film.cursor, film.age
        cut = np.flatnonzero(step.last & ~valid & (age > 0))
        lane = np.flatnonzero(valid)
        here, after = cursor[lane], (cursor[lane] + 1) % slots
        for name in ("action", "reward", "terminated", "last"):
            getattr(store, name)[lane, here] = getattr(step, name)[lane]
            getattr(store, name)[lane, after] = 0
        store.frame[lane, here] = films.newest(film, step.observation)[lane]
        store.frame[lane, after] = films.newest(film, step.next_observation)[lane]
        store.step[lane, here], store.step[lane, after] = True, False
        store.age[lane, here], store.age[lane, after] = age[lane], age[lane] + 1
        store.last[cut, (cursor[cut] - 1) % slots] = True
        if film.sequences is not None:
            begins = lane[here % film.sequences.stride == 0]
            kept: Any = film.memory
            kept[begins, cursor[begins] // film.sequences.stride] = remembered[begins]
        advance = valid * (1 + step.last)
        advance[cut] = 1
        film.cursor[:] = (cursor + advance) % slots
        film.stored[:] = np.minimum(film.stored + advance, slots - 1)
        age[lane] += 1
        age[lane[step.last[lane]]] = age[cut] = 0

    def num_stored(self) -> np.ndarray:
        """What `film.num_stored` says of each member."""
        return np.array([films.num_stored(self._of(member)) for member in range(self.members)])

    def sample(self, batch_size: int, n_step: int, *, seed: int, update: int) -> Drawn:
        """What each member draws for an update, [members, batch, ...]: the same whenever it is
        asked for. Member i of seed s draws what a single one of seed s + i would."""
        drawn = [
            _draw(
                self._of(member), batch_size, n_step, np.random.default_rng([seed + member, update])
            )
            for member in range(self.members)
        ]
        return jax.tree.map(lambda *x: x[0][None] if len(x) == 1 else np.stack(x), *drawn)

    def named(self) -> dict[str, np.ndarray]:
        """All of it, [members, lanes, ...], without the slots that were never written to. These
        are views: write them down before anything is added."""
        film = self._film
        used = int(np.max(np.maximum(film.cursor, film.stored))) + 1
        return {
            name: array[:, :, :used] if name.startswith("storage.") else array
            for name, array in self._arrays().items()
        }

    def put_back(self, arrays: dict[str, np.ndarray]) -> None:
        """What `named` gave, into a new film of the same shape."""
        parts = {}
        for name, array in self._arrays().items():
            found = arrays.get(name, np.zeros(0))
            if name.startswith("storage.") and found.ndim > 2:
                array = array[:, :, : found.shape[2]]
            alike = found.shape == array.shape and found.dtype == array.dtype
            if not alike or (name == "slots" and found != array):
                raise CheckpointError(
                    f"the checkpoint's replay does not fit this agent, in {name}: load it with the "
                    "environments, the buffer_size and the network it was saved with"
                )
            parts[name] = (array, found)
        for array, found in parts.values():
            array[...] = found

    def _arrays(self) -> dict[str, np.ndarray]:
        film = self._film
        flat = {f"storage.{name}": array for name, array in film.storage._asdict().items()}
        flat |= {"cursor": film.cursor, "stored": film.stored, "age": film.age}
        if film.memory is not None:
            flat["memory"] = film.memory
        named = {
            name: np.reshape(array, (self.members, self.lanes, *array.shape[1:]))
            for name, array in flat.items()
        }
        # What has gone round means nothing in a film of another length.
        return named | {"slots": np.array(film.storage.reward.shape[1])}

    def _of(self, member: int) -> Film:
        own = slice(member * self.lanes, (member + 1) * self.lanes)
        return jax.tree.map(lambda x: x[own], self._film)


def _draw(film: Film, batch_size: int, n_step: int, random: np.random.Generator) -> Drawn:
    tries = films.TRIES if film.sequences is None else 1
    total = int(films.choices(film)[1].sum())
    nth = random.integers(max(total, 1), size=(batch_size, tries))
    weight = np.full(batch_size, total > 0, np.float32)
    return films.gather(film, *films.locate(film, nth), n_step, weight)


def _in_file(shapes: Film, directory: Path) -> Film:
    """Arrays of zeros, one after the other in one file without a name."""
    sizes = [math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes)]
    begins = [sum(sizes[:place]) for place in range(len(sizes))]
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            # All of it now: a disk that fills up later ends the process without a word.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, sum(sizes))
            else:  # macOS
                file.truncate(sum(sizes))
            arrays = [
                np.asarray(np.memmap(file, x.dtype, "r+", offset=begin, shape=x.shape))
                for x, begin in zip(jax.tree.leaves(shapes), begins, strict=True)
            ]
    except OSError as problem:
        raise ConfigError(
            f"replay needs {sum(sizes) / 2**30:.1f} GiB in {directory}: {problem.strerror}; choose "
            "another directory or a smaller buffer_size"
        ) from problem
    return jax.tree.unflatten(jax.tree.structure(shapes), arrays)
