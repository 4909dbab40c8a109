import subprocess
import sys

import numpy as np
import pytest

from understudy.runs.csv_log import CsvLog, read_csv


def test_rows_come_back(tmp_path):
    path = tmp_path / "run" / "progress.csv"
    with CsvLog(path) as log:
        log.append({"time/total_steps": 100, "rollout/ep_rew_mean": -1.5})
        log.append({"time/total_steps": 200, "rollout/ep_rew_mean": 2.25})
    assert path.read_text() == "time/total_steps,rollout/ep_rew_mean\n100,-1.5\n200,2.25\n"
    columns = read_csv(path)
    assert list(columns) == ["time/total_steps", "rollout/ep_rew_mean"]
    np.testing.assert_array_equal(columns["rollout/ep_rew_mean"], [-1.5, 2.25])


def test_columns_grow_and_gaps_stay_empty(tmp_path):
    path = tmp_path / "progress.csv"
    with CsvLog(path) as log:
        log.append({"a": 1})
        log.append({"b": 2.5, "a": 2})
        log.append({"b": 3.5})
        log.append({"a": 4, "c": None})
    assert path.read_text() == "a,b,c\n1,,\n2,2.5,\n,3.5,\n4,,\n"
    np.testing.assert_array_equal(read_csv(path)["b"], [np.nan, 2.5, 3.5, np.nan])
    assert [p.name for p in tmp_path.iterdir()] == ["progress.csv"]


def test_numbers_keep_their_precision(tmp_path):
    path = tmp_path / "progress.csv"
    values = [np.float32(0.1), 0.1 + 0.2, np.array(1e-30), float("inf"), float("nan")]
    with CsvLog(path) as log:
        for value in values:
            log.append({"x": value})
    assert path.read_text().splitlines()[1] == "0.1"
    back = read_csv(path)["x"]
    assert np.float32(back[0]) == np.float32(0.1)
    np.testing.assert_array_equal(back[1:], [0.1 + 0.2, 1e-30, np.inf, np.nan])


def test_lists_become_a_column_for_each_seed(tmp_path):
    path = tmp_path / "progress.csv"
    with CsvLog(path) as log:
        log.append({"eval/mean_reward": 2.0, "eval/mean_reward_per_seed": [1.0, np.float32(3.0)]})
    columns = read_csv(path)
    assert list(columns) == ["eval/mean_reward", "eval/mean_reward/seed0", "eval/mean_reward/seed1"]
    assert columns["eval/mean_reward/seed1"] == [3.0]


def test_text_with_commas_and_line_ends(tmp_path):
    path = tmp_path / "progress.csv"
    with CsvLog(path) as log:
        log.append({"note": 'a, "b"\nc', "x": 1})
        log.append({"note": "plain", "y": 2})
    assert read_csv(path)["note"].tolist() == ['a, "b"\nc', "plain"]


def test_an_existing_log_is_continued(tmp_path):
    path = tmp_path / "progress.csv"
    for step in (1, 2):
        with CsvLog(path) as log:
            log.append({"step": step})
    with CsvLog(path) as log:
        log.append({"step": 3, "new": 9})
    assert path.read_text() == "step,new\n1,\n2,\n3,9\n"


def test_a_row_cut_by_a_crash_is_dropped_and_the_log_goes_on(tmp_path):
    path = tmp_path / "progress.csv"
    path.write_text("step,value\n1,10\n2,2")  # was going to be 2,20
    assert read_csv(path)["value"].tolist() == [10.0]
    with CsvLog(path) as log:
        log.append({"step": 2, "value": 20})
    assert path.read_text() == "step,value\n1,10\n2,20\n"


@pytest.mark.processes
def test_a_killed_process_loses_no_row(tmp_path):
    path = tmp_path / "progress.csv"
    code = f"""
import os
from understudy.runs.csv_log import CsvLog
log = CsvLog({str(path)!r})
for step in range(50):
    log.append({{"step": step, f"column{{step // 20}}": step}})
os._exit(1)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1, result.stderr
    columns = read_csv(path)
    np.testing.assert_array_equal(columns["step"], np.arange(50))
    assert list(columns) == ["step", "column0", "column1", "column2"]


def test_a_failed_rewrite_leaves_the_old_log_whole(tmp_path, monkeypatch):
    path = tmp_path / "progress.csv"
    log = CsvLog(path)
    log.append({"a": 1})

    def full_disk(source, target):
        raise OSError("no space left on device")

    monkeypatch.setattr("understudy.runs.files.os.replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        log.append({"a": 2, "b": 2})
    assert path.read_text() == "a\n1\n"
    monkeypatch.undo()
    log.append({"a": 2, "b": 2})  # the disk has room again: nothing was lost but the refused row
    log.close()
    assert path.read_text() == "a,b\n1,\n2,2\n"


def steps_of(path):
    return read_csv(path)["time/total_steps"].tolist()


def test_rewinding_drops_what_will_be_logged_again(tmp_path):
    path = tmp_path / "progress.csv"
    with CsvLog(path) as log:
        for step in (10, 20, 30, 1e3):
            log.append({"time/total_steps": step, "x": -step})
        log.append({"x": 7})  # a row that belongs to no step stays
        log.rewind(20)
        np.testing.assert_array_equal(steps_of(path), [10, 20, np.nan])
        log.append({"time/total_steps": 25, "x": 1, "new": 2})
    np.testing.assert_array_equal(steps_of(path), [10, 20, np.nan, 25])
    assert read_csv(path)["x"].tolist() == [-10, -20, 7, 1]
    with CsvLog(path) as log:
        log.rewind(0.5)
    assert read_csv(path)["x"].tolist() == [7.0]
    assert [p.name for p in tmp_path.iterdir()] == ["progress.csv"]


def test_rewinding_nothing_touches_nothing(tmp_path, monkeypatch):
    path = tmp_path / "progress.csv"
    with CsvLog(path) as log:
        log.rewind(5)
        log.append({"step": 9})
        log.rewind(5)  # has no steps to go by
        log.append({"step": 9, "time/total_steps": 5})
        monkeypatch.setattr("understudy.runs.files.os.replace", None)
        log.rewind(5)
    assert path.read_text() == "step,time/total_steps\n9,\n9,5\n"


def test_a_failed_rewind_leaves_the_log_whole(tmp_path, monkeypatch):
    path = tmp_path / "progress.csv"

    def full_disk(source, target):
        raise OSError("no space left on device")

    with CsvLog(path) as log:
        for step in (1, 2):
            log.append({"time/total_steps": step})
        with monkeypatch.context() as patch:
            patch.setattr("understudy.runs.files.os.replace", full_disk)
            with pytest.raises(OSError, match="no space"):
                log.rewind(1)
        log.append({"time/total_steps": 3})
    assert steps_of(path) == [1, 2, 3]


def test_an_empty_file_has_no_columns(tmp_path):
    path = tmp_path / "progress.csv"
    CsvLog(path).close()
    assert read_csv(path) == {}
