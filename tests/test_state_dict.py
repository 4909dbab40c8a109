"""All of a tree's arrays by name, and back: every leaf or none."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.state_dict import load_state_dict, state_dict
from understudy.types import CheckpointError


class Pair(NamedTuple):
    left: object
    right: object


def a_tree(scale=1.0):
    return {
        "weights": [jnp.arange(6.0).reshape(2, 3) * scale, jnp.float32(0.1 * scale)],
        "moments": Pair(left={"count": jnp.int32(7)}, right=(jnp.zeros((0, 4)),)),
        "key": jnp.array([1, 2**32 - 1], jnp.uint32),
        "nothing": None,
    }


def test_a_nested_tree_comes_back():
    back = load_state_dict(a_tree(scale=0.0), state_dict(a_tree()))
    assert jax.tree.structure(back) == jax.tree.structure(a_tree())
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(a_tree()), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_a_typed_random_key_comes_back():
    key = jax.random.split(jax.random.key(3), 2)
    template = {"key": jax.random.split(jax.random.key(0), 2)}
    back = load_state_dict(template, state_dict({"key": key}))
    np.testing.assert_array_equal(jax.random.bits(back["key"][1]), jax.random.bits(key[1]))


def test_a_copy_does_not_change_with_its_original():
    original = np.zeros(3, np.float32)
    named = state_dict({"x": original})
    original[:] = 1.0
    assert named["x"].sum() == 0.0


def test_all_differences_are_listed():
    arrays = {"a": np.zeros(3, "f4"), "b": np.zeros(2, "f4"), "old": np.zeros(1, "f4")}
    template = {"a": jnp.zeros((3, 1)), "b": jnp.zeros(2, jnp.int32), "new": jnp.zeros(())}
    with pytest.raises(CheckpointError) as error:
        load_state_dict(template, arrays)
    for difference in (
        "a is float32[3], not float32[3, 1]",
        "b is float32[2], not int32[2]",
        "new is missing",
        "old is unknown",
    ):
        assert difference in str(error.value)


def test_many_differences_are_counted():
    template = {f"layer{i}": jnp.zeros(1) for i in range(12)}
    with pytest.raises(CheckpointError, match="and 7 more"):
        load_state_dict(template, {})


def test_two_leaves_never_share_a_name():
    with pytest.raises(CheckpointError, match="same name"):
        state_dict({"a.b": jnp.zeros(1), "a": {"b": jnp.ones(1)}})
