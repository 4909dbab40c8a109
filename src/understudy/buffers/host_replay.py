"""Frame replay in the host's memory, or in a file, for what does not fit the device.

The arrays are NumPy's and are changed in place. They mean what they mean in `frame_replay`. Only
what was sampled goes to the device, each frame of a sequence once, and becomes a batch there
(`to_batch`). All that can be sampled is equally likely: there are no priorities.
"""

import os
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, final

import jax
import numpy as np

from understudy.buffers.base import Buffer, Hyper, trim_storage
from understudy.buffers.frame_batch import FrameSample, to_batch
from understudy.buffers.frame_replay import TRIES, FrameReplayBuffer, FrameReplayState
from understudy.errors import CheckpointError, ConfigError
from understudy.state_dict import StateDict, add_prefix, copy_to_file, to_host
from understudy.types import Batch, Chunk, Key, Spec

LARGEST_SAMPLE = 2**26  # bytes that go to the device at once, unless one update needs more


@final
@dataclass(frozen=True)
class HostReplayBuffer(Buffer):
    """Frame replay of several seeds, whose lanes lie side by side: in RAM or, given a directory, in
    a file there that has no name. Nothing stays behind, however the process ends."""

    external: ClassVar[bool] = True

    frames: FrameReplayBuffer  # of one seed
    num_seeds: int
    seed: int  # of the first of them
    directory: Path | None = None

    @property
    def spec(self) -> Spec:
        return self.frames.spec

    @property
    def num_slots(self) -> int:
        return self.frames.num_slots

    @property
    def nbytes(self) -> int:
        return self.num_seeds * self.frames.nbytes

    def init(self) -> FrameReplayState:
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self.num_seeds, *x.shape), x.dtype),
            jax.eval_shape(self.frames.init),
        )
        if self.directory is not None:
            return _in_file(shapes, self.directory)
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)

    def add(self, state: FrameReplayState, chunk: Chunk) -> FrameReplayState:
        """Append the steps of a chunk of NumPy arrays [seeds, time, lanes, ...], in place."""
        seeds, time, columns = chunk.valid.shape
        assert time < self.num_slots, "a chunk does not fit a lane"
        first = 0 if chunk.first_lane is None else int(np.ravel(chunk.first_lane)[0])
        lane = first + np.arange(columns) + self.frames.lanes * np.arange(seeds)[:, None]
        joined = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), state)  # views of all lanes
        for t in range(time):
            rows = (chunk.steps, chunk.valid, chunk.recurrent_state)
            row = jax.tree.map(lambda x, t=t: x[:, t].reshape(-1, *x.shape[3:]), rows)
            self._add_step(joined, lane.reshape(-1), *row)
        return state

    def _add_step(
        self, state: FrameReplayState, lanes: np.ndarray, step: Any, valid: Any, recurrent: Any
    ) -> None:
        """One step of these lanes; see `FrameReplayBuffer.plan_step`."""
        counters = (state.cursor, state.stored, state.age)
        own = (counter[lanes] for counter in counters)
        places, rows, start, moved = self.frames.plan_step(own, step, valid)
        for place, slot in enumerate(places):
            row = np.flatnonzero(slot < self.num_slots)
            at = (lanes[row], slot[row])
            for store, new in zip(state.storage, rows, strict=True):
                if place < len(new):
                    store[at] = new[place][row]
        if self.frames.sequences is not None:
            row = np.flatnonzero(start < state.recurrent_state.shape[1])
            state.recurrent_state[lanes[row], start[row]] = recurrent[row]
        for counter, new in zip(counters, moved, strict=True):
            counter[lanes] = new

    def sample_updates(
        self, state: FrameReplayState, first: int, count: int
    ) -> tuple[FrameSample, int]:
        """Sample for updates number `first` to `first + count - 1`, [seeds, updates, ...], or for
        the first of them, if all are too many bytes; also return for how many. Seed i of a run of
        seed s samples what a run of seed s + i would. No state of a generator is needed."""
        samples = [self._sample_update(state, first)]
        most = max(1, LARGEST_SAMPLE // sum(x.nbytes for x in jax.tree.leaves(samples)))
        count = min(count, most)
        samples += [
            self._sample_update(state, update) for update in range(first + 1, first + count)
        ]
        return jax.tree.map(partial(_stack, axis=1), *samples), count

    def _sample_update(self, state: FrameReplayState, update: int) -> FrameSample:
        frames, samples = self.frames, []
        size, tries = frames.batch_size, TRIES if frames.sequences is None else 1
        for seed in range(self.num_seeds):
            own = jax.tree.map(lambda x, seed=seed: x[seed], state)
            random = np.random.default_rng([self.seed + seed, update])
            total = int(frames.choices(own)[1].sum())
            nth = random.integers(max(total, 1), size=(size, tries))
            weight = np.full(size, total > 0, np.float32)
            samples.append(frames.gather(own, *frames.locate(own, nth), weight))
        return jax.tree.map(partial(_stack, axis=0), *samples)

    def sample(self, state: FrameSample, key: Key, hyper: Hyper) -> tuple[Batch, None]:
        """Make the batch of what the host has sampled for one update."""
        return to_batch(state, hyper), None

    def state_dict(self, state: FrameReplayState) -> StateDict:
        """Copy arrays [seeds, lanes, ...], without the slots that were never written to: in memory,
        or in another file, if they are in a file."""
        views = trim_storage(self._arrays(state))
        if self.directory is not None:
            return copy_to_file(views, self.directory)
        return {name: to_host(array) for name, array in views.items()}

    def load_state_dict(self, empty: FrameReplayState, arrays: StateDict) -> FrameReplayState:
        parts = {}
        for name, array in self._arrays(empty).items():
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
        return empty

    def _arrays(self, state: FrameReplayState) -> StateDict:
        arrays = add_prefix("storage", state.storage._asdict()) | state._asdict()
        arrays = {name: x for name, x in arrays.items() if isinstance(x, np.ndarray)}
        # Positions that have wrapped around mean nothing with another number of slots.
        return arrays | {"slots": np.array(self.num_slots)}


def is_of_host(arrays: StateDict) -> bool:
    """Whether these are the arrays of a `HostReplayBuffer`."""
    return "slots" in arrays


def _stack(*arrays: np.ndarray, axis: int) -> np.ndarray:
    """Stack arrays; a single one is not copied."""
    return np.expand_dims(arrays[0], axis) if len(arrays) == 1 else np.stack(arrays, axis)


def _in_file(shapes: FrameReplayState, directory: Path) -> FrameReplayState:
    """Arrays of zeros, one after the other in one file without a name."""
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes)]
    begins = [sum(sizes[:place]) for place in range(len(sizes))]
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            # Allocate all of it now: if the disk is full later, the process ends without a message.
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
