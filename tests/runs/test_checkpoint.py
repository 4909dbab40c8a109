"""A checkpoint comes back bit for bit, or says why not; and the old one outlives every mishap."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from understudy.errors import CheckpointError
from understudy.runs import checkpoint

DTYPES = ("float16", "float32", "int8", "uint8", "int16", "int32", "uint32", "bool")


LEARNER = "learner.safetensors"


def arrays(scale=1.0):
    return {
        "weights.0": np.arange(6, dtype=np.float32).reshape(2, 3) * np.float32(scale),
        "weights.1": np.float32(0.1 * scale) * np.ones((), np.float32),
        "count": np.array(7, np.int32),
        "nothing": np.zeros((0, 4), np.float32),
        "key": np.array([1, 2**32 - 1], np.uint32),
    }


def save(place, scale=1.0, **manifest):
    groups = {"learner": arrays(scale), "world": {"ring": np.full(5, scale)}}
    return checkpoint.write(place, groups, manifest)


def names(directory):
    return sorted(entry.name for entry in directory.iterdir())


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        assert got[name].tobytes() == array.tobytes(), name


def assert_holds(place, scale):
    stored = checkpoint.read_newest(place)
    assert_same(stored.groups["learner"], arrays(scale))
    assert_same(stored.groups["world"], {"ring": np.full(5, scale)})


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


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.fault(27, "a damaged checkpoint: the one before it is taken, and that is said")
@pytest.mark.parametrize("file", [LEARNER, "world.safetensors", checkpoint.MANIFEST])
@pytest.mark.parametrize("how", ["flip", "cut", "miss"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, caplog, file, how):
    for steps in (1, 2):
        save(checkpoint.place_of(tmp_path, steps), scale=steps)
    path = checkpoint.place_of(tmp_path, 2) / file
    if how == "flip":
        damage(path)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    elif file != checkpoint.MANIFEST:  # without a manifest it is no checkpoint at all
        path.unlink()
    else:
        path.write_text("")
    assert_holds(tmp_path, 1)
    assert "going on from" in caplog.text and str(path) in caplog.text
    damage(checkpoint.place_of(tmp_path, 1) / LEARNER)
    with pytest.raises(CheckpointError, match=r"000000000002.*; .*000000000001"):
        checkpoint.read_newest(tmp_path)


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


@pytest.mark.fault(29, "a newer format is refused")
@pytest.mark.parametrize(("change", "age"), [(1, "newer"), (-1, "older")])
def test_another_format_is_refused(saved, change, age):
    manifest = json.loads((saved / checkpoint.MANIFEST).read_text())
    assert manifest["format"] == checkpoint.FORMAT
    manifest["format"] += change
    (saved / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=f"{age} than this version's"):
        checkpoint.read(saved)


@pytest.mark.fault(21, "non-finite weights are never written")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_weights_are_never_written(saved, value, dtype):
    bad = {"learner": {"actor.weight": np.array([1.0, value], dtype)}}
    with pytest.raises(CheckpointError, match=r"actor\.weight is not finite"):
        checkpoint.write(saved, bad, {})
    assert_holds(saved, 1.0)
    assert names(saved.parent) == ["checkpoint"]


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


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch exploded",))


def with_header(header):
    return len(header).to_bytes(8, "little") + header


MALICIOUS = {
    "pickle": pickle.dumps(Bomb()),
    "200 MB header": with_header(b"{") + b" " * 100,
    "header beyond the file": (200 * 2**20).to_bytes(8, "little") + b"{}",
    "object array": with_header(b'{"x":{"dtype":"O","shape":[1],"data_offsets":[0,8]}}') + bytes(8),
    "offsets beyond": with_header(b'{"x":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'),
    "zip": b"PK\x03\x04" + bytes(60),
    "npy": b"\x93NUMPY" + bytes(60),
}


@pytest.mark.fault(28, "a malicious file: an error, and nothing is executed")
@pytest.mark.parametrize("kind", MALICIOUS)
@pytest.mark.parametrize("signed", [False, True], ids=["as it is", "with a true checksum"])
def test_malicious_files_are_refused(saved, tmp_path, monkeypatch, kind, signed):
    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_, **__: pytest.fail("pickle was used"))
    monkeypatch.chdir(tmp_path)
    data = MALICIOUS[kind]
    (saved / LEARNER).write_bytes(data)
    if signed:
        manifest = json.loads((saved / checkpoint.MANIFEST).read_text())
        digest = hashlib.sha256(data).hexdigest()
        manifest["files"][LEARNER] = {"bytes": len(data), "sha256": digest}
        manifest["sha256"] = checkpoint._digest(manifest)
        (saved / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.read(saved)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.fault(28, "a manifest that is a pickle, too large, or names other files")
@pytest.mark.parametrize("kind", ["pickle", "huge", "deep", "elsewhere"])
def test_a_malicious_manifest_is_refused_or_harmless(saved, tmp_path, kind):
    path = saved / checkpoint.MANIFEST
    if kind == "elsewhere":  # a name that leads out of the directory is never opened
        manifest = json.loads(path.read_text())
        manifest["files"]["../../secret"] = {"bytes": 1, "sha256": ""}
        manifest["sha256"] = checkpoint._digest(manifest)
        path.write_text(json.dumps(manifest))
        assert_holds(saved, 1.0)
        return
    path.write_bytes(
        {
            "pickle": pickle.dumps(Bomb()),
            "huge": b"[" + b"0," * checkpoint.LARGEST_MANIFEST,
            "deep": b"[" * 200_000,
        }[kind]
    )
    with pytest.raises(CheckpointError, match=r"cannot be read|too large"):
        checkpoint.read(saved)


def test_nothing_is_pickled(tmp_path, monkeypatch):
    for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_, **__: pytest.fail("pickle was used"))
    save(tmp_path / "c", env="Pendulum-v1")
    assert_holds(tmp_path / "c", 1.0)


@pytest.mark.fault(24, "killed at 200 random instants while saving: every restart loads")
def test_killed_while_saving_every_restart_loads(tmp_path):
    script = Path(__file__).parent / "kill_loop.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "200"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200 of 200" in done.stdout
