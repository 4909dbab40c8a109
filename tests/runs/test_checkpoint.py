"""A checkpoint comes back bit for bit, or says why not; and the old one outlives every mishap."""

import os
import pickle
import shutil

import numpy as np
import pytest

from tests.faults.checkpoint_cases import LEARNER, arrays, assert_holds, assert_same, names, save
from understudy.errors import CheckpointError
from understudy.runs import checkpoint

DTYPES = ("float16", "float32", "int8", "uint8", "int16", "int32", "uint32", "bool")


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path / "checkpoint", algorithm="sac")


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


def test_arrays_come_back_bit_for_bit(saved):
    assert checkpoint.read(saved).manifest["algorithm"] == "sac"
    assert_holds(saved, 1.0)
    assert names(saved.parent) == ["checkpoint"]  # nothing is left beside it
    assert names(saved) == ["checkpoint.json", LEARNER, "world.safetensors"]


def test_the_files_are_what_safetensors_reads(saved):
    from safetensors import safe_open

    with safe_open(saved / LEARNER, "np") as file:
        assert_same({name: file.get_tensor(name) for name in file.keys()}, arrays())  # noqa: SIM118


def test_large_arrays_stay_in_their_file(tmp_path, monkeypatch):
    """Replay may be larger than memory. The file may go, and is not written to."""
    given = {"odd": np.ones(3, bool), "seen": np.arange(60, dtype=np.uint8).reshape(3, 20)}
    given |= {"a": np.arange(40.0), "zero": np.zeros((0, 9))}
    place = checkpoint.write(tmp_path / "a", {"learner": given}, {})
    before = (place / LEARNER).read_bytes()
    monkeypatch.setattr(checkpoint, "LARGEST_READ", 50)
    found = checkpoint.read(place).groups["learner"]
    assert {name for name, array in found.items() if isinstance(array, np.memmap)} == {"a", "seen"}
    assert_same(found, given)
    found["seen"][:] = 0
    assert (place / LEARNER).read_bytes() == before
    shutil.rmtree(place)
    np.testing.assert_array_equal(found["a"], given["a"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(tmp_path, dtype):
    given = {"x": np.array([[0, 1], [1, 0], [3, 100]]).astype(dtype), "one": np.ones((), dtype)}
    checkpoint.write(tmp_path / "c", {"learner": given}, {})
    assert_same(checkpoint.read(tmp_path / "c").groups["learner"], given)


@pytest.mark.parametrize("given", [np.ones(2, np.complex64), np.array(["a", None], object)])
def test_a_dtype_that_could_not_be_read_again_is_not_written(tmp_path, given):
    with pytest.raises(CheckpointError, match=f"odd is {given.dtype}"):
        checkpoint.write(tmp_path / "c", {"world": {"odd": given}}, {})
    assert names(tmp_path) == []


def test_extreme_floats_keep_their_bits(tmp_path):
    tiny = np.array([np.finfo(np.float32).tiny / 2, -0.0, np.finfo(np.float32).max, 0.1], "f4")
    checkpoint.write(tmp_path / "c", {"learner": {"x": tiny}}, {})
    assert_same(checkpoint.read(tmp_path / "c").groups["learner"], {"x": tiny})


def test_views_are_stored_as_they_look(tmp_path):
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    views = {"transposed": array.T, "strided": array[:, ::2], "reversed": array[::-1]}
    checkpoint.write(tmp_path / "c", {"learner": views}, {})
    assert_same(checkpoint.read(tmp_path / "c").groups["learner"], views)


def test_a_run_directory_leads_to_its_newest_checkpoint(tmp_path):
    for steps in (9_000, 11_000, 10_000):
        save(checkpoint.place_of(tmp_path, steps), scale=steps)
    assert_holds(tmp_path, 11_000)
    checkpoint.prune(tmp_path, keep=2)
    assert names(tmp_path / "checkpoints") == ["000000010000", "000000011000"]


@pytest.mark.parametrize("place", [0, 100, -1])
def test_one_damaged_byte_is_noticed(saved, place):
    file = saved / LEARNER
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged.*checksum"):
        checkpoint.read(saved)


@pytest.mark.parametrize("file", [LEARNER, checkpoint.MANIFEST])
@pytest.mark.parametrize("kept", [0, 20])
def test_a_truncated_file_is_noticed(saved, file, kept):
    (saved / file).write_bytes((saved / file).read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"damaged|cannot be read"):
        checkpoint.read(saved)


def test_a_missing_file_is_named(saved, tmp_path):
    (saved / LEARNER).unlink()
    with pytest.raises(CheckpointError, match=LEARNER):
        checkpoint.read(saved)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*nowhere"):
        checkpoint.read_newest(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["[]", "3", '"sac"', "null", '{"format": "one"}'])
def test_a_manifest_that_is_something_else(saved, text):
    (saved / checkpoint.MANIFEST).write_text(text)
    with pytest.raises(CheckpointError):
        checkpoint.read(saved)


def test_a_new_checkpoint_replaces_the_old(saved):
    save(saved, 2.0, algorithm="td3")
    assert checkpoint.read(saved).manifest["algorithm"] == "td3"
    assert_holds(saved, 2.0)
    assert names(saved.parent) == ["checkpoint"]


@pytest.mark.parametrize("number", [1, 2])
def test_dying_between_the_renames_leaves_a_valid_checkpoint(saved, rename_fails, number):
    rename_fails(number)
    with pytest.raises(OSError, match="power"):
        save(saved, 2.0)
    assert_holds(saved, 1.0)
    assert len(names(saved.parent)) == 1  # no temporary directory

    save(saved, 3.0)  # and the next save tidies up
    assert_holds(saved, 3.0)
    assert names(saved.parent) == ["checkpoint"]


def test_dying_twice_in_a_row_leaves_a_valid_checkpoint(saved, rename_fails):
    """After the first mishap only the one that stepped aside is left: it must stay there until
    the next one is in place."""
    os.replace(saved, saved.with_name(".checkpoint.previous"))
    rename_fails(1)
    with pytest.raises(OSError, match="power"):
        save(saved, 2.0)
    assert_holds(saved, 1.0)


def test_a_full_disk_leaves_the_old_one(saved, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(saved, 2.0)
    assert_holds(saved, 1.0)
    assert names(saved.parent) == ["checkpoint"]


def test_other_peoples_directories_are_not_overwritten(tmp_path):
    place = tmp_path / "thesis"
    place.mkdir()
    (place / "chapter1.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="something else"):
        save(place)
    assert (place / "chapter1.tex").read_text() == "years of work"
    assert names(tmp_path) == ["thesis"]


def test_a_file_in_the_place_is_not_overwritten(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(CheckpointError):
        save(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"
    assert names(tmp_path) == ["notes"]


def test_an_empty_directory_may_be_used(tmp_path):
    (tmp_path / "new").mkdir()
    save(tmp_path / "new")
    assert checkpoint.read(tmp_path / "new").manifest["format"] == checkpoint.FORMAT


def test_nothing_is_pickled(tmp_path, monkeypatch):
    for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_, **__: pytest.fail("pickle was used"))
    save(tmp_path / "c", env="Pendulum-v1")
    assert_holds(tmp_path / "c", 1.0)
