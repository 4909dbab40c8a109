"""All of a run's arrays by name, on the host, and back again."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from understudy.buffers import Film, Ring
from understudy.errors import CheckpointError
from understudy.types import Tree

Named = dict[str, np.ndarray]


@dataclass
class Position:
    """How far a run has come. Unbatched: every member is at the same place."""

    iterations: int = 0  # steps of each environment
    updates: int = 0
    horizon: int = 0  # steps in all at the end of the present training: schedules span them
    refilled_from: int = 0  # the iteration at which an empty ring was last begun
    first_training: int = 0  # steps of the first training, by which defaults are chosen
    logged: int = 0  # iterations that the log has told of
    seconds: float = 0.0  # of the run, over all calls of `train`


@final
@dataclass(frozen=True)
class Snapshot:
    """What a run needs in order to go on. The `world` (experience, environments, what acting
    remembers) may be left out: then only what was learned comes back."""

    position: Position
    learner: Named
    world: Named | None

    def groups(self, world: bool = True) -> dict[str, Named]:
        """For a checkpoint, each to a file of its own."""
        learner = {"learner": self.learner}
        return learner | {"world": self.world} if world and self.world is not None else learner


def to_host(leaf: Any) -> np.ndarray:
    """A copy in C order that nobody else writes to."""
    if isinstance(leaf, jax.Array):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if all(device.platform == "cpu" for device in leaf.devices()):
            # NumPy would look at the array in place, and an array that is looked at is no longer
            # given away to the next program, but copied by it, as a whole. (Not `jnp.copy`, which
            # compiles a program for every shape.)
            leaf = jax.device_put(leaf, leaf.sharding, may_alias=False)
        return np.asarray(leaf, order="C")
    return np.array(leaf, order="C")


def name_leaves(tree: Tree) -> Named:
    """Every leaf by its path."""
    named, _ = jax.tree_util.tree_flatten_with_path(tree)
    arrays = {_name(path): to_host(leaf) for path, leaf in named}
    if len(arrays) != len(named):
        raise CheckpointError("two arrays of the state have the same name: nothing was written")
    return arrays


def copy_to_file(arrays: Named, directory: Path) -> Named:
    """A copy of [members, lanes, ...] in a file there that has no name, and is gone with it: what
    lies on a disk may be larger than memory. A full disk is an error here, and not later."""
    copies, begin = {}, 0
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            for name, array in arrays.items():
                if array.ndim < 3:
                    copies[name] = to_host(array)
                    continue
                for lane in np.ndindex(array.shape[:2]):
                    file.write(np.ascontiguousarray(array[lane]).data)
                file.flush()
                copies[name] = np.memmap(file, array.dtype, "r", offset=begin, shape=array.shape)
                begin += array.nbytes
    except OSError as problem:
        raise CheckpointError(
            f"a copy of replay, which a checkpoint is made from, does not go to {directory}: "
            f"{problem.strerror}"
        ) from problem
    return copies


def put_back(template: Tree, arrays: Named) -> Tree:
    """A tree like `template` (shapes and dtypes) with the stored values; never a part of one."""
    named, structure = jax.tree_util.tree_flatten_with_path(template)
    expected = {_name(path): jax.eval_shape(_plain, leaf) for path, leaf in named}
    differences = [f"{name} is missing" for name in expected if name not in arrays]
    differences += [f"{name} is unknown" for name in arrays if name not in expected]
    for name in expected.keys() & arrays.keys():
        want, got = expected[name], arrays[name]
        if (tuple(want.shape), want.dtype) != (got.shape, got.dtype):
            differences.append(
                f"{name} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
            )
    if differences:
        shown = "; ".join(sorted(differences)[:5])
        more = f" and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise CheckpointError(f"the checkpoint does not fit this agent: {shown}{more}")
    leaves = [_typed(leaf, arrays[_name(path)]) for path, leaf in named]
    return jax.tree.unflatten(structure, leaves)


def name_ring(ring: Ring | Film) -> Named:
    """A ring without the slots that were never written to: most of it, early in a run."""
    slots = ring.storage.reward.shape[2]
    used = min(int(jnp.max(jnp.maximum(ring.cursor, ring.stored))) + 1, slots)
    arrays = name_leaves(ring)
    return {
        name: array[:, :, :used] if name.startswith("storage.") else array
        for name, array in arrays.items()
    }


def put_ring_back(template: Ring | Film, arrays: Named) -> Any:
    """`template` is an empty ring, which is given up."""
    whole = dict(arrays)
    for name, leaf in name_shapes(template).items():
        part = arrays.get(name)
        if part is None or not name.startswith("storage.") or part.ndim < 3:
            continue
        if part.shape[2] < leaf.shape[2] and part.shape[:2] == leaf.shape[:2]:
            whole[name] = np.zeros((*leaf.shape[:3], *part.shape[3:]), part.dtype)
            whole[name][:, :, : part.shape[2]] = part
    return put_back(template, whole)


def name_shapes(tree: Tree) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def part_of(arrays: Named, prefix: str) -> Named:
    """The arrays whose names begin with `prefix.`, under the rest of their names."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)
    }


def under(prefix: str, arrays: Named) -> Named:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _plain(leaf: Any) -> Any:
    """A random key as the numbers it is made of; everything else as it is."""
    leaf = jnp.asarray(leaf)
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _typed(like: Any, array: np.ndarray) -> jax.Array:
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        numbers = jax.device_put(array, may_alias=False)
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(like))
    return jax.device_put(array, may_alias=False)
