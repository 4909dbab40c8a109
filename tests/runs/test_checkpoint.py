"""A checkpoint comes back bit for bit, or says why not; and the old one outlives every mishap."""

import json
import os
import pickle
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from understudy.runs import checkpoint
from understudy.types import CheckpointError

DTYPES = ("float16", "float32", "int8", "uint8", "int16", "int32", "uint32", "bool")


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


def names(directory):
    return sorted(entry.name for entry in directory.iterdir())


def assert_same(got, expected):
    got, expected = checkpoint.name_leaves(got), checkpoint.name_leaves(expected)
    assert list(got) == list(expected)
    for name, array in expected.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        np.testing.assert_array_equal(got[name], array)


@pytest.fixture
def saved(tmp_path):
    return checkpoint.save(tmp_path / "checkpoint", a_tree(), {"algorithm": "sac"})


@pytest.fixture
def rename_fails(monkeypatch):
    """Makes `os.rename` raise on its n-th call, as if the writer died there."""
    rename, calls = os.rename, []

    def arm(number):
        def fail(*arguments):
            calls.append(arguments)
            if len(calls) == number:
                raise OSError("the power went out")
            rename(*arguments)

        monkeypatch.setattr(os, "rename", fail)

    yield arm
    assert calls, "nothing was renamed: this test no longer interrupts the writer"


def test_a_nested_tree_comes_back_bit_for_bit(saved):
    stored = checkpoint.load(saved)
    assert stored.manifest["algorithm"] == "sac"
    assert_same(checkpoint.restore(a_tree(scale=0.0), stored.arrays), a_tree())
    assert names(saved.parent) == ["checkpoint"]  # nothing is left beside it
    assert names(saved) == ["checkpoint.json", "state.safetensors"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(tmp_path, dtype):
    tree = {"x": jnp.array([[0, 1], [1, 0], [3, 100]]).astype(dtype), "scalar": jnp.ones((), dtype)}
    checkpoint.save(tmp_path / "c", tree, {})
    assert_same(checkpoint.restore(tree, checkpoint.load(tmp_path / "c").arrays), tree)


def test_a_dtype_that_could_not_be_read_again_is_not_written(tmp_path):
    tree = {"half": jnp.ones(2, jnp.bfloat16)}
    try:
        checkpoint.save(tmp_path / "c", tree, {})
    except CheckpointError as error:
        assert "half" in str(error) and "bfloat16" in str(error)
        return  # refusing is as good as keeping it
    assert_same(checkpoint.restore(tree, checkpoint.load(tmp_path / "c").arrays), tree)


def test_extreme_floats_keep_their_bits(tmp_path):
    tiny = np.array([np.finfo(np.float32).tiny / 2, -0.0, np.finfo(np.float32).max, 0.1], "f4")
    checkpoint.save(tmp_path / "c", {"x": tiny}, {})
    assert checkpoint.load(tmp_path / "c").arrays["x"].tobytes() == tiny.tobytes()


def test_views_are_stored_as_they_look(tmp_path):
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    views = {"transposed": array.T, "strided": array[:, ::2], "reversed": array[::-1]}
    checkpoint.save(tmp_path / "c", views, {})
    arrays = checkpoint.load(tmp_path / "c").arrays
    for name, view in views.items():
        np.testing.assert_array_equal(arrays[name], view)


def test_a_run_directory_leads_to_its_checkpoint(saved):
    assert checkpoint.locate(saved.parent) == saved
    assert checkpoint.load(saved.parent).manifest["algorithm"] == "sac"


@pytest.mark.parametrize("place", [0, 100, -1])
def test_one_damaged_byte_is_noticed(saved, place):
    file = saved / checkpoint.ARRAYS
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged.*checksum"):
        checkpoint.load(saved)


@pytest.mark.parametrize("file", [checkpoint.ARRAYS, checkpoint.MANIFEST])
@pytest.mark.parametrize("kept", [0, 20])
def test_a_truncated_file_is_noticed(saved, file, kept):
    (saved / file).write_bytes((saved / file).read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"damaged|cannot be read"):
        checkpoint.load(saved)


def test_a_missing_file_is_named(saved, tmp_path):
    (saved / checkpoint.ARRAYS).unlink()
    with pytest.raises(CheckpointError, match=checkpoint.ARRAYS):
        checkpoint.load(saved)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*nowhere"):
        checkpoint.load(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["[]", "3", '"sac"', "null", '{"format": "one"}'])
def test_a_manifest_that_is_something_else(saved, text):
    (saved / checkpoint.MANIFEST).write_text(text)
    with pytest.raises(CheckpointError):
        checkpoint.load(saved)


def test_a_newer_format_is_refused(saved):
    manifest = json.loads((saved / checkpoint.MANIFEST).read_text())
    assert manifest["format"] == checkpoint.FORMAT
    manifest["format"] += 1
    (saved / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"newer .* update understudy"):
        checkpoint.load(saved)


def test_all_differences_are_listed():
    arrays = {"a": np.zeros(3, "f4"), "b": np.zeros(2, "f4"), "old": np.zeros(1, "f4")}
    template = {"a": jnp.zeros((3, 1)), "b": jnp.zeros(2, jnp.int32), "new": jnp.zeros(())}
    with pytest.raises(CheckpointError) as error:
        checkpoint.restore(template, arrays)
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
        checkpoint.restore(template, {})


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_arrays_are_never_written(saved, value, dtype):
    before = (saved / checkpoint.ARRAYS).read_bytes()
    tree = {"actor": {"weight": jnp.array([1.0, value], dtype)}}
    with pytest.raises(CheckpointError, match=r"actor\.weight is not finite"):
        checkpoint.save(saved, tree, {})
    assert (saved / checkpoint.ARRAYS).read_bytes() == before
    assert names(saved.parent) == ["checkpoint"]


def test_two_leaves_never_share_a_name(tmp_path):
    tree = {"a.b": jnp.zeros(1), "a": {"b": jnp.ones(1)}}
    try:
        checkpoint.save(tmp_path / "c", tree, {})
    except CheckpointError:
        return  # refusing is as good as keeping both
    assert len(checkpoint.load(tmp_path / "c").arrays) == 2


def test_a_new_checkpoint_replaces_the_old(saved):
    checkpoint.save(saved, a_tree(scale=2.0), {"algorithm": "td3"})
    stored = checkpoint.load(saved)
    assert stored.manifest["algorithm"] == "td3"
    assert_same(checkpoint.restore(a_tree(), stored.arrays), a_tree(scale=2.0))
    assert names(saved.parent) == ["checkpoint"]


@pytest.mark.parametrize("number", [1, 2])
def test_dying_between_the_renames_leaves_a_valid_checkpoint(saved, rename_fails, number):
    rename_fails(number)
    with pytest.raises(OSError, match="power"):
        checkpoint.save(saved, a_tree(scale=2.0), {})
    for place in (saved, saved.parent):  # by its own name and by its run's
        stored = checkpoint.load(place)
        assert_same(checkpoint.restore(a_tree(), stored.arrays), a_tree())
    assert len(names(saved.parent)) == 1  # no temporary directory

    checkpoint.save(saved, a_tree(scale=3.0), {})  # and the next save tidies up
    assert_same(checkpoint.restore(a_tree(), checkpoint.load(saved).arrays), a_tree(scale=3.0))
    assert names(saved.parent) == ["checkpoint"]


def test_dying_twice_in_a_row_leaves_a_valid_checkpoint(saved, rename_fails):
    """After the first mishap only the one that stepped aside is left: it must stay there until
    the next one is in place."""
    os.replace(saved, saved.with_name(".checkpoint.previous"))
    rename_fails(1)
    with pytest.raises(OSError, match="power"):
        checkpoint.save(saved, a_tree(scale=2.0), {})
    stored = checkpoint.load(saved)
    assert_same(checkpoint.restore(a_tree(), stored.arrays), a_tree())


def test_a_full_disk_leaves_the_old_one(saved, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(saved, a_tree(scale=2.0), {})
    assert_same(checkpoint.restore(a_tree(), checkpoint.load(saved).arrays), a_tree())
    assert names(saved.parent) == ["checkpoint"]


def test_other_peoples_directories_are_not_overwritten(tmp_path):
    place = tmp_path / "thesis"
    place.mkdir()
    (place / "chapter1.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="something else"):
        checkpoint.save(place, a_tree(), {})
    assert (place / "chapter1.tex").read_text() == "years of work"
    assert names(tmp_path) == ["thesis"]


def test_a_file_in_the_place_is_not_overwritten(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(CheckpointError):
        checkpoint.save(tmp_path / "notes", a_tree(), {})
    assert (tmp_path / "notes").read_text() == "mine"
    assert names(tmp_path) == ["notes"]


def test_an_empty_directory_may_be_used(tmp_path):
    (tmp_path / "new").mkdir()
    checkpoint.save(tmp_path / "new", a_tree(), {})
    assert checkpoint.load(tmp_path / "new").manifest["format"] == checkpoint.FORMAT


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    def refuse(*arguments, **settings):
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    checkpoint.save(tmp_path / "c", a_tree(), {"env": "Pendulum-v1"})
    stored = checkpoint.load(tmp_path / "c")
    assert_same(checkpoint.restore(a_tree(scale=0.0), stored.arrays), a_tree())
