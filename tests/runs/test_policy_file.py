"""A policy file comes back as it was, or says why not; nothing in it is ever executed."""

import json
import os
import pickle

import numpy as np
import pytest
from safetensors.numpy import save as format_safetensors

from tests.export.policy_cases import KINDS, case, observations
from understudy import runner
from understudy.runner import FORMAT, METADATA, NO_CHECKSUM, Player, checksum_of, read_policy
from understudy.runs.policy_file import save_policy
from understudy.types import CheckpointError


@pytest.fixture
def path(tmp_path):
    return save_policy(tmp_path / "deep" / "policy.safetensors", case("A2C pair").describe())


@pytest.fixture
def no_pickle(monkeypatch):
    def refuse(*_):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)


def rewritten(path, change, seal=True):
    """The file with its JSON changed and, as a forger would, a new checksum."""
    described = read_policy(path)
    stored = {"format": FORMAT, "sha256": NO_CHECKSUM, **described._asdict()}
    arrays = stored.pop("arrays")
    change(stored, arrays)
    data = format_safetensors(arrays, {METADATA: json.dumps(stored)})
    if seal:
        data = data.replace(NO_CHECKSUM.encode(), checksum_of(data).encode(), 1)
    path.write_bytes(data)


@pytest.mark.parametrize("kind", list(KINDS))
def test_it_comes_back_whole(kind, tmp_path):
    described = case(kind).describe()
    path = save_policy(tmp_path / "policy.safetensors", described)
    back = read_policy(path)
    assert back[:-1] == described[:-1]
    assert back.arrays.keys() == described.arrays.keys()
    for name, array in described.arrays.items():
        assert back.arrays[name].dtype == array.dtype and back.arrays[name].shape == array.shape
        np.testing.assert_array_equal(back.arrays[name], array)
    player, seen = runner.load(path), observations(50)
    np.testing.assert_array_equal(player.act(seen), Player(described).act(seen))
    assert list(tmp_path.iterdir()) == [path]


def test_equal_policies_make_equal_files(path, tmp_path):
    again = save_policy(tmp_path / "again", case("A2C pair").describe())
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.fault(27, "a flipped bit anywhere in a policy file: found by its checksum")
def test_one_flipped_bit_anywhere_is_noticed(path, no_pickle):
    whole = path.read_bytes()
    for place in (*range(16), *range(16, len(whole), 7)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"damaged|cut off|newer"):
            read_policy(path)


@pytest.mark.fault(27, "a policy file that is cut off: one line says so")
def test_a_file_that_is_cut_off_or_goes_on_is_noticed(path):
    whole = path.read_bytes()
    for kept in (0, 7, 8, 100, *range(200, len(whole), 211), len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(CheckpointError, match=r"damaged|cut off"):
            runner.load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="checksum"):
        runner.load(path)


@pytest.mark.fault(28, "a policy file that is a pickle, foreign or absurd: refused, nothing runs")
@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"__reduce__": os.system}),
        b"PK\x03\x04" + bytes(100),
        b"\x93NUMPY\x01\x00" + bytes(100),
        (200_000_000).to_bytes(8, "little") + b"{}",
        (2**64 - 1).to_bytes(8, "little") + b"{}",
        (20_000).to_bytes(8, "little") + b"[" * 20_000,
        (2).to_bytes(8, "little") + b"[]",
        format_safetensors({"weight": np.zeros(3, np.float32)}),
        format_safetensors({"weight": np.zeros(3, np.float32)}, {METADATA: "[1]"}),
        format_safetensors({"weight": np.zeros(3, np.float32)}, {METADATA: '{"format": 1e999}'}),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_foreign_files_are_refused(data, tmp_path, no_pickle):
    path = tmp_path / "policy.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"policy\.safetensors.* no policy file"):
        runner.load(path)


@pytest.mark.fault(28, "a policy file that claims a header of 200 MB: refused before it is read")
def test_a_huge_header_is_refused_unread(tmp_path):
    path = tmp_path / "policy.safetensors"
    with path.open("wb") as file:
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(300_000_000)  # all of it would be there
    with pytest.raises(CheckpointError, match="no policy file"):
        runner.load(path)


def test_a_newer_format_is_refused(path):
    rewritten(path, lambda stored, arrays: stored.update(format=FORMAT + 1))
    with pytest.raises(CheckpointError, match=r"newer .* update understudy"):
        runner.load(path)


def test_a_change_without_its_checksum_is_noticed(path):
    rewritten(path, lambda stored, arrays: stored["about"].update(algorithm="sac"), seal=False)
    with pytest.raises(CheckpointError, match="checksum"):
        runner.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda stored, arrays: arrays.pop("actor.encoder.0.weight"),
        lambda stored, arrays: arrays.update({"actor.head.0.bias": np.zeros(9, np.float32)}),
        lambda stored, arrays: stored.pop("nodes"),
        lambda stored, arrays: stored.update(nodes=[]),
        lambda stored, arrays: stored.update(nodes=[["dense"]]),
        lambda stored, arrays: stored.update(nodes=[["__import__", ["observation"], "v0", {}]]),
        lambda stored, arrays: stored.update(nodes=[["tanh", ["observation"], "v0", 3]]),
        lambda stored, arrays: stored.update(action="nowhere"),
        lambda stored, arrays: stored.update(spec={}),
        lambda stored, arrays: stored.update(spec={"observation": [], "action": []}),
        lambda stored, arrays: stored["spec"]["action"].update(shape=[7]),
        lambda stored, arrays: stored["spec"]["observation"].update(shape=[4]),
        lambda stored, arrays: stored["spec"]["observation"].update(dtype="object"),
    ],
)
def test_a_file_that_does_not_fit_together_is_refused(path, change, no_pickle):
    rewritten(path, change)
    with pytest.raises(CheckpointError, match=r"policy\.safetensors does not fit together"):
        runner.load(path)


def test_what_is_not_there_is_named(tmp_path):
    for place, words in ((tmp_path / "nowhere", "cannot be read"), (tmp_path, "is a directory")):
        with pytest.raises(CheckpointError, match=f"{place.name} {words}"):
            runner.load(place)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_the_old_file_outlives_a_write_that_fails(path, monkeypatch, call):
    before = path.read_bytes()

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(CheckpointError, match=r"cannot be written: no space left"):
        save_policy(path, case("TD3").describe())
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
