"""Checkpoint files that were damaged, cut off, forged, or in the writing when the power went."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.faults.checkpoint_cases import LEARNER, assert_holds, names, save
from understudy.errors import CheckpointError
from understudy.runs import checkpoint


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path / "checkpoint", algorithm="sac")


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.fault(27, "a damaged checkpoint: the previous one is loaded, with a message")
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
        manifest["sha256"] = checkpoint.checksum(manifest)
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
        manifest["sha256"] = checkpoint.checksum(manifest)
        path.write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError, match="which files belong to it"):
            checkpoint.read(saved)
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


@pytest.mark.processes
@pytest.mark.fault(24, "killed at 200 points of saving: every restart loads")
def test_killed_while_saving_every_restart_loads(tmp_path):
    script = Path(__file__).parent / "kill_loop.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "200"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200 of 200" in done.stdout
