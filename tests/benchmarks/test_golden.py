"""The golden comparison: which results are equal, and how it reports the others."""

import json

import golden
import numpy as np
import pytest
from safetensors.numpy import save_file


def arrays(**changed):
    """Two arrays and a column of a log."""
    return {
        "learner/weight": np.array([1.0, -2.0, np.nan], np.float32),
        "world/cursor": np.array([3, 4], np.int32),
        "log/train/loss": np.array([0.5, np.nan]),
    } | {name.replace("__", "/"): value for name, value in changed.items()}


def without(name):
    return {other: array for other, array in arrays().items() if other != name}


def test_equal_arrays_are_equal():
    found = golden.compare(arrays(), arrays())
    assert (found.compared, found.good, found.verdict) == (2, True, "equal")


def test_one_bit_is_a_difference():
    nearly = np.nextafter(np.float32(-2), np.float32(0))
    found = golden.compare(
        arrays(), arrays(learner__weight=np.array([1.0, nearly, np.nan], np.float32))
    )
    assert not found.good
    assert found.verdict == "differs: learner/weight, max abs difference 1.19e-07"


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (np.array([0.0, 1.0]), None),
        (np.array([-0.0, 1.0]), 0.0),  # the same number by other bits
        (np.array([np.nan, 1.0]), np.nan),
        (np.array([0.0, 3.5]), 2.5),
        (np.array([0.0, 1.0], np.float32), "float64[2] became float32[2]"),
        (np.array([[0.0, 1.0]]), "float64[2] became float64[1, 2]"),
    ],
)
def test_differences(other, difference):
    np.testing.assert_equal(golden.difference(np.array([0.0, 1.0]), other), difference)


def test_a_difference_of_random_keys_is_no_number():
    keys = np.array([0, 2**32 - 1], np.uint32)
    assert golden.difference(keys, keys[::-1].copy()) == "other values"


def test_the_verdict_has_the_first_names_and_the_largest_difference():
    many = {f"learner/{number}": np.array([number]) for number in range(5)}
    other = {name: array * 2 for name, array in many.items()}
    found = golden.compare(many, other)  # 0 is 0
    names = "learner/1, learner/2, learner/3 and 1 more"
    assert found.verdict == f"differs: {names}, max abs difference 4"


def test_the_log_is_compared():
    found = golden.compare(arrays(), arrays(log__train__loss=np.array([0.5, 0.25])))
    assert list(found.differing) == ["log/train/loss"] and not found.good


def test_missing_and_extra_arrays_are_named():
    found = golden.compare(arrays(), without("world/cursor") | {"world/place": np.zeros(2)})
    assert (found.compared, found.good) == (1, False)
    assert found.verdict == "missing: world/cursor; extra: world/place"


def test_the_name_map_renames_the_reference():
    new = without("world/cursor") | {"world/place": arrays()["world/cursor"]}
    name_map = [(r"^world/cur", "world/"), (r"/sor$", "/place")]  # one after the other
    found = golden.compare(arrays(), new, name_map)
    assert (found.compared, found.verdict) == (2, "equal")


def test_the_name_map_must_not_lose_an_array():
    with pytest.raises(ValueError, match="two arrays the name x"):
        golden.compare(arrays(), {}, [(r".*/(weight|cursor)$", "x")])


@pytest.mark.parametrize(
    "present", [arrays(world__cursor=np.array([3, 5], np.int32)), without("world/cursor")]
)
def test_a_deviation_with_a_reason_is_allowed(present):
    found = golden.compare(arrays(), present, deviations={r"^world/c": "counts otherwise"})
    assert found.good and found.verdict == "deviates (counts otherwise): world/cursor"


def test_a_reason_excuses_no_other_array():
    present = arrays(world__cursor=np.array([3, 5], np.int32)) | {"learner/bias": np.zeros(1)}
    found = golden.compare(arrays(), present, deviations={r"cursor": "counts otherwise"})
    assert not found.good
    assert found.verdict == "extra: learner/bias; deviates (counts otherwise): world/cursor"


def test_a_result_is_read_without_its_clocks(tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "run").mkdir()
    save_file({"a.b": np.arange(3)}, tmp_path / "saved" / "learner.safetensors")
    manifest = {"run": "x", "position": {"updates": 7, "seconds": 1.5}, "scores": [0.25]}
    (tmp_path / "saved" / "checkpoint.json").write_text(json.dumps(manifest))
    log = "time/total_steps,time/fps,eval/mean_reward\n10,99.5,\n20,98.5,-1.25\n"
    (tmp_path / "run" / "progress.csv").write_text(log)
    found = golden.read(tmp_path)
    assert {name: array.tolist() for name, array in found.items() if "eval" not in name} == {
        "learner/a.b": [0, 1, 2],
        "manifest/position.updates": 7,
        "manifest/scores": [0.25],
        "log/time/total_steps": [10.0, 20.0],
    }
    np.testing.assert_array_equal(found["log/eval/mean_reward"], [np.nan, -1.25])
    assert golden.rows_of(found) == 2


def test_a_kept_result_serves_its_own_definition_only(tmp_path):
    one, other = golden.DEFINITIONS["sac"], golden.DEFINITIONS["td3"]
    assert not golden.is_kept(tmp_path, one)
    (tmp_path / "fingerprint").write_text(golden.fingerprint(one))
    assert golden.is_kept(tmp_path, one) and not golden.is_kept(tmp_path, other)
