"""Trees of arrays as dicts of NumPy arrays by name, for checkpoints, and back again."""

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from understudy.errors import CheckpointError
from understudy.types import Tree

Named = dict[str, np.ndarray]


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
