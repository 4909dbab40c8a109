"""The interface of a buffer: a frozen definition, and a pytree of arrays that callers hold.

No method keeps arrays, so a caller may donate a state to the program that replaces it. Functions
are written for one seed; a state outside programs has an axis of seeds in front.
"""

import abc
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from understudy.buffers import sum_tree
from understudy.buffers.sum_tree import SumTree
from understudy.state_dict import StateDict, add_prefix, load_state_dict, state_dict
from understudy.types import Chunk, Key, Scalar, Spec, Tree

SMALLEST_ERROR = 1e-6  # added to errors, so that every step can be sampled again
Indices = Int32[Array, " batch"]
Hyper = Mapping[str, Array]  # hyper-parameters: gamma, reward_scale, importance_exponent


class Priorities(NamedTuple):
    """How often each slot is sampled. Priorities are stored raised to their exponent."""

    tree: SumTree  # leaf lane · slots + slot; 0 where there is nothing to sample
    largest: Scalar  # that was ever given; a new step gets it


class Buffer(abc.ABC):
    """What is stored and how batches are formed. Abstract; the final ones are beside this file."""

    fed: ClassVar[bool] = False
    """Whether the host samples (`draw`), and programs are fed with what it sampled."""
    spec: Spec
    num_slots: int  # of each lane: a chunk holds fewer steps

    @abc.abstractmethod
    def init(self) -> Any:
        """An empty buffer."""

    @abc.abstractmethod
    def add(self, state: Any, chunk: Chunk) -> Any:
        """Append the steps of a chunk to their lanes."""

    @abc.abstractmethod
    def sample(self, state: Any, key: Key, hyper: Hyper) -> tuple[Any, Indices | None]:
        """A batch, and where its rows lie, if they have priorities to be updated. Termination
        becomes a discount here, with the γ of `hyper`."""

    def get_priorities(self, state: Any) -> Priorities | None:
        """The only part of a state that updates change; None where there is none."""
        return None

    def with_priorities(self, state: Any, priorities: Priorities | None) -> Any:
        """The same steps with other priorities."""
        return state if priorities is None else state._replace(priorities=priorities)

    def update_priorities(
        self,
        state: Any,
        indices: Indices | None,
        errors: Float[Array, " rows"],
        weight: Float[Array, " rows"],
        accepted: Bool[Array, ""],
    ) -> Priorities | None:
        """The priorities that follow from the errors of a sampled batch. Nothing changes unless
        the update was `accepted`."""
        return None

    @property
    def nbytes(self) -> int:
        """Bytes that `init` allocates."""
        shapes = jax.eval_shape(self.init)
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes))

    def state_dict(self, state: Any) -> StateDict:
        """Copies of all arrays, [seeds, ...], by name."""
        return state_dict(state)

    def load_state_dict(self, empty: Any, arrays: StateDict) -> Any:
        """The state that `state_dict` was given; `empty` is what `init` makes, and is given up."""
        return load_state_dict(empty, arrays)


def revise(
    priorities: Priorities,
    indices: Indices,
    error: Float[Array, " batch"],
    exponent: float,
    accepted: Bool[Array, ""],
) -> Priorities:
    """Give sampled rows the priority of their new errors; nothing changes unless `accepted`."""
    tree, largest = priorities
    priority = (jnp.abs(error) + SMALLEST_ERROR) ** exponent
    nowhere = jnp.iinfo(jnp.int32).max
    tree = sum_tree.write(tree, jnp.where(accepted, indices, nowhere), priority)
    return Priorities(tree, jnp.where(accepted, jnp.maximum(largest, jnp.max(priority)), largest))


def used_slots_state_dict(state: Any) -> StateDict:
    """The arrays of a state with `storage` [seeds, lanes, slots, ...], without the slots that were
    never written to: most of them, early in a run."""
    slots = state.storage.reward.shape[2]
    used = min(int(jnp.max(jnp.maximum(state.cursor, state.stored))) + 1, slots)
    arrays = state_dict(state)
    return {
        name: array[:, :, :used] if name.startswith("storage.") else array
        for name, array in arrays.items()
    }


def load_used_slots(empty: Tree, arrays: StateDict) -> Any:
    """The opposite. `empty` is given up. Lanes that have wrapped around are refused where they have
    another number of slots: their oldest steps would lie in the wrong place."""
    whole = dict(arrays)
    cursor, stored = (arrays.get(name, np.zeros(0)) for name in ("cursor", "stored"))
    wrapped = not np.array_equal(cursor, stored)
    for name, leaf in add_prefix("storage", empty.storage._asdict()).items():
        part = arrays.get(name, np.zeros(0))
        shorter = part.ndim > 2 and part.shape[2] < leaf.shape[2]
        if shorter and part.shape[:2] == leaf.shape[:2] and not wrapped:
            whole[name] = np.zeros((*leaf.shape[:3], *part.shape[3:]), part.dtype)
            whole[name][:, :, : part.shape[2]] = part
    return load_state_dict(empty, whole)


def lanes_of(chunk: Chunk) -> Int32[Array, " lanes"]:
    """The lane of each column of a chunk."""
    first = 0 if chunk.first_lane is None else chunk.first_lane
    return first + jnp.arange(chunk.valid.shape[1], dtype=jnp.int32)


def own_lanes(chunk: Chunk, values: Array) -> Array:
    """Of values [lanes, ...] those of the lanes of a chunk."""
    if chunk.first_lane is None:
        return values
    return jax.lax.dynamic_slice_in_dim(values, chunk.first_lane, chunk.valid.shape[1])


def put_lanes(chunk: Chunk, values: Array, new: Array) -> Array:
    """Values [lanes, ...] with new ones in the lanes of a chunk."""
    if chunk.first_lane is None:
        return new
    return jax.lax.dynamic_update_slice_in_dim(values, new, chunk.first_lane, 0)
