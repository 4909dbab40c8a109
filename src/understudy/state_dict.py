"""State dicts: trees of arrays as dicts of NumPy arrays by name, for checkpoints."""

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from understudy.errors import CheckpointError
from understudy.types import Tree

StateDict = dict[str, np.ndarray]


def to_host(leaf: Any) -> np.ndarray:
    """Copy an array to the host, in C order."""
    if isinstance(leaf, jax.Array):
        leaf = _key_data(leaf)
        if all(device.platform == "cpu" for device in leaf.devices()):
            # A NumPy view would turn the donation of this array into a copy of all of it. (Not
            # `jnp.copy`, which compiles a program for every shape.)
            leaf = jax.device_put(leaf, leaf.sharding, may_alias=False)
        return np.asarray(leaf, order="C")
    return np.array(leaf, order="C")


def state_dict(tree: Tree) -> StateDict:
    """Copy every leaf of a tree to the host, by its path."""
    leaves, _ = _flatten(tree)
    arrays = {name: to_host(leaf) for name, leaf in leaves}
    if len(arrays) != len(leaves):
        raise CheckpointError("two arrays of the state have the same name: nothing was written")
    return arrays


def load_state_dict(template: Tree, arrays: StateDict) -> Tree:
    """Make a tree like `template` of stored arrays. Names, shapes and dtypes must all agree."""
    leaves, structure = _flatten(template)
    want = {name: _form(jax.eval_shape(_key_data, leaf)) for name, leaf in leaves}
    got = {name: _form(array) for name, array in arrays.items()}
    differences = [f"{name} is missing" for name in want.keys() - got.keys()]
    differences += [f"{name} is unknown" for name in got.keys() - want.keys()]
    wrong = [name for name in want.keys() & got.keys() if got[name] != want[name]]
    differences += [f"{name} is {got[name]}, not {want[name]}" for name in wrong]
    if differences:
        shown = "; ".join(sorted(differences)[:5])
        more = f" and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise CheckpointError(f"the checkpoint does not fit this agent: {shown}{more}")
    loaded = []
    for name, leaf in leaves:
        array = jax.device_put(arrays[name], may_alias=False)
        if _is_key(leaf):
            array = jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
        loaded.append(array)
    return jax.tree.unflatten(structure, loaded)


def copy_to_file(arrays: StateDict, directory: Path) -> StateDict:
    """Copy arrays [seeds, lanes, ...] to an unnamed file, which disappears with the copies.

    Arrays on disk may be larger than memory. A full disk is an error of this call."""
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


def add_prefix(prefix: str, arrays: StateDict) -> StateDict:
    """Put `prefix.` before every name."""
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def select_prefix(arrays: StateDict, prefix: str) -> StateDict:
    """Select the arrays whose names begin with `prefix.`, and remove it from their names."""
    start = f"{prefix}."
    return {name[len(start) :]: x for name, x in arrays.items() if name.startswith(start)}


def _flatten(tree: Tree) -> tuple[list[tuple[str, Any]], Any]:
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    name = jax.tree_util.keystr
    return [(name(path, simple=True, separator="."), leaf) for path, leaf in leaves], structure


def _form(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data(leaf: Any) -> Any:
    """The numbers that a random key is made of; other arrays as they are."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
