"""The interface of a buffer: a frozen definition, and a pytree of arrays that callers hold.

No method keeps arrays, so a caller may donate a state to the program that replaces it. Functions
are written for one seed; a state outside programs has an axis of seeds in front.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from understudy.buffers import sum_tree
from understudy.buffers.sum_tree import SumTree
from understudy.state_dict import StateDict, add_prefix, load_state_dict, state_dict
from understudy.types import ArraySpec, Chunk, Key, Scalar, Spec, Step

SMALLEST_ERROR = 1e-6  # added to errors, so that every step can be sampled again
NOWHERE = np.iinfo(np.int32).max  # an index that does not exist: writes to it are dropped
Indices = Int32[Array, " batch"]
Hyper = Mapping[str, Array]  # hyper-parameters: gamma, reward_scale, importance_exponent


class Priorities(NamedTuple):
    """How often each slot is sampled. Priorities are stored raised to their exponent."""

    tree: SumTree  # leaf lane · slots + slot; 0 where there is nothing to sample
    largest: Scalar  # that was ever given; a new step gets it


class Buffer(abc.ABC):
    """What is stored and how batches are formed. Abstract; the final ones are beside this file."""

    external: ClassVar[bool] = False
    """Whether steps are stored outside the learner's programs, which receive sampled ones."""
    spec: Spec
    num_slots: int  # of each lane: a chunk holds fewer steps
    priority_exponent: float | None = None  # None: uniform sampling

    @abc.abstractmethod
    def init(self) -> Any:
        """Make an empty buffer."""

    @abc.abstractmethod
    def add(self, state: Any, chunk: Chunk) -> Any:
        """Append the steps of a chunk to their lanes."""

    @abc.abstractmethod
    def sample(self, state: Any, key: Key, hyper: Hyper) -> tuple[Any, Indices | None]:
        """Sample a batch; also return where its rows lie, if they have priorities to be updated.
        Termination becomes a discount here, with the γ of `hyper`."""

    def newest(self, state: Any) -> Chunk:
        """All steps in the order in which they were added. Rollouts only."""
        raise NotImplementedError

    def get_priorities(self, state: Any) -> Priorities | None:
        """The only part of a state that updates change; None where there is none."""
        return getattr(state, "priorities", None)

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
        """Compute the priorities that follow from the errors of a sampled batch. Nothing changes
        unless the update was `accepted`."""
        priorities, exponent = self.get_priorities(state), self.priority_exponent
        if priorities is None or exponent is None or indices is None:
            return None
        tree, largest = priorities
        errors = self.errors_by_place(errors, weight)
        priority = (jnp.abs(errors) + SMALLEST_ERROR) ** exponent
        tree = sum_tree.write(tree, jnp.where(accepted, indices, NOWHERE), priority)
        raised = jnp.maximum(largest, jnp.max(priority))
        return Priorities(tree, jnp.where(accepted, raised, largest))

    def errors_by_place(self, errors: Array, weight: Array) -> Array:
        """One error for each place that was sampled, of those of the rows of a batch."""
        return errors

    def init_priorities(self, places: int) -> Priorities | None:
        """Priorities of so many places, none of which can be sampled yet; None: uniform."""
        if self.priority_exponent is None:
            return None
        return Priorities(sum_tree.create(places), jnp.float32(1.0))

    @property
    def nbytes(self) -> int:
        """Bytes that `init` allocates."""
        shapes = jax.eval_shape(self.init)
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))

    def state_dict(self, state: Any) -> StateDict:
        """Copy all arrays [seeds, ...] by name, without the slots that were never written to."""
        return trim_storage(state_dict(state))

    def load_state_dict(self, empty: Any, arrays: StateDict) -> Any:
        """Make the state that `state_dict` was given; `empty` is a result of `init`, and is given
        up. Lanes that have wrapped around must have the same number of slots: elsewhere their
        oldest steps would lie in the wrong place, and stacks would lack frames."""
        whole = dict(arrays)
        cursor, stored = (arrays.get(name, np.zeros(0)) for name in ("cursor", "stored"))
        in_order = hasattr(empty, "stored") and np.array_equal(cursor, stored)
        # Frames before the first slot are needed unless an episode begins there.
        if in_order and not arrays.get("storage.age", np.zeros((1, 1, 1)))[:, :, 0].any():
            for name, leaf in add_prefix("storage", empty.storage._asdict()).items():
                part = arrays.get(name, np.zeros(0))
                alike = part.ndim == leaf.ndim and part.shape[:2] == leaf.shape[:2]
                if alike and part.shape[2] < leaf.shape[2]:
                    whole[name] = np.zeros((*leaf.shape[:3], *part.shape[3:]), part.dtype)
                    whole[name][:, :, : part.shape[2]] = part
        return load_state_dict(empty, whole)


def renew_priorities(old: Priorities | None, fresh: Array, gone: Array) -> Priorities | None:
    """Give fresh places the largest priority, and those that can no longer be sampled none."""
    if old is None:
        return None
    tree, largest = old
    value = jnp.concatenate([jnp.full(fresh.shape, largest), jnp.zeros(gone.shape)])
    return Priorities(sum_tree.write(tree, jnp.concatenate([fresh, gone]), value), largest)


def trim_storage(arrays: StateDict) -> StateDict:
    """Leave out the slots of `storage` [seeds, lanes, slots, ...] that were never written to: most
    of them, early in a run. A buffer that does not count stored steps is left as it is."""
    if "stored" not in arrays:
        return arrays
    used = int(np.max(np.maximum(arrays["cursor"], arrays["stored"]))) + 1
    return {
        name: array[:, :, :used] if name.startswith("storage.") else array
        for name, array in arrays.items()
    }


def init_storage(spec: Spec, *axes: int) -> Step:
    """Zeros [*axes, ...] for steps as they happened."""

    def zeros(array: ArraySpec) -> Array:
        return jnp.zeros((*axes, *array.shape), array.dtype)

    flag = ArraySpec((), "bool")
    parts = (spec.observation, spec.action.stored, ArraySpec(()), flag, flag, spec.observation)
    return Step(*map(zeros, parts))


def lanes_of(chunk: Chunk) -> Int32[Array, " lanes"]:
    """The lane of each column of a chunk, or of one row of it."""
    first = 0 if chunk.first_lane is None else chunk.first_lane
    return first + jnp.arange(chunk.valid.shape[-1], dtype=jnp.int32)


def get_lanes(chunk: Chunk, values: Array) -> Array:
    """Of values [lanes, ...] those of the lanes of a chunk."""
    if chunk.first_lane is None:
        return values
    return jax.lax.dynamic_slice_in_dim(values, chunk.first_lane, chunk.valid.shape[-1])


def set_lanes(chunk: Chunk, values: Array, new: Array) -> Array:
    """Values [lanes, ...] with new ones in the lanes of a chunk."""
    if chunk.first_lane is None:
        return new
    return jax.lax.dynamic_update_slice_in_dim(values, new, chunk.first_lane, 0)


def write_rows(store: Array, place: Sequence[Array], rows: Any) -> Array:
    """Write rows to places (lane, slot) that differ; slots that do not exist are dropped.

    The write must stay a scatter. XLA turns one of a single row into a dynamic-update-slice, folds
    that into the gathers of a `sample` that follows, and then copies the whole storage in order to
    keep its old and its new version. So a single row is written twice, once to no slot."""
    (lane, slot), rows = place, rows.reshape(-1, *store.shape[2:]).astype(store.dtype)
    if len(rows) == 1:
        nowhere = jnp.int32(store.shape[1])
        lane, slot = jnp.zeros(2, jnp.int32) + lane, jnp.stack([slot[0], nowhere + 1])
        rows = jnp.broadcast_to(rows, (2, *rows.shape[1:]))
    return store.at[lane, slot].set(rows, mode="drop", unique_indices=True)
