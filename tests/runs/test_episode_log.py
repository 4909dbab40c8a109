import os

import pytest

from understudy.errors import ConfigError
from understudy.runs.episode_log import COLUMNS, EpisodeLog

HEADER = "step,seed,env,return,length,success,seconds"


def line(step, **more):
    return dict(zip(COLUMNS, (step, 0, 1, -1.5, 10, None, 0.25), strict=True)) | more


def write(path, *steps, after=0, **more):
    with EpisodeLog(path, after) as log:
        log.append([line(step, **more) for step in steps])
    return path.read_text().splitlines()


def test_lines_are_appended(tmp_path):
    path = tmp_path / "episodes.csv"
    assert write(path, 3, 7) == [HEADER, "3,0,1,-1.5,10,,0.25", "7,0,1,-1.5,10,,0.25"]
    assert write(path, after=7) == write(path, after=9)
    assert write(path, 9, after=7)[-1].startswith("9,")


def test_a_resumed_run_leaves_no_line_out_and_has_none_twice(tmp_path):
    path = tmp_path / "episodes.csv"
    write(path, 3, 7, 7, 12)
    assert [row[:2] for row in write(path, 8, after=7)[1:]] == ["3,", "7,", "7,", "8,"]
    assert write(path, after=0) == [HEADER]


def test_new_columns_come_later(tmp_path):
    path = tmp_path / "episodes.csv"
    write(path, 3)
    with EpisodeLog(path, 3) as log:
        log.append([line(4, **{"info/x, y": 0.5})])
        log.append([line(5), line(6, **{"info/b": 2.0})])
    assert path.read_text().splitlines() == [
        f'{HEADER},"info/x, y",info/b',
        "3,0,1,-1.5,10,,0.25,,",
        "4,0,1,-1.5,10,,0.25,0.5,",
        "5,0,1,-1.5,10,,0.25,,",
        "6,0,1,-1.5,10,,0.25,,2.0",
    ]
    assert write(path, after=5)[-1].startswith("5,") and os.listdir(tmp_path) == ["episodes.csv"]


@pytest.mark.parametrize("torn", ["4,0,1", "4,0,1,-1.5,10,,0.25"])
def test_a_line_that_a_crash_has_cut_off(tmp_path, torn):
    path = tmp_path / "episodes.csv"
    write(path, 3)
    with path.open("a") as file:
        file.write(torn)
    assert write(path, 5, after=9)[1:] == ["3,0,1,-1.5,10,,0.25", "5,0,1,-1.5,10,,0.25"]


def test_a_header_that_a_crash_has_cut_off(tmp_path):
    (tmp_path / "episodes.csv").write_text("step,see")
    assert write(tmp_path / "episodes.csv", 1) == [HEADER, "1,0,1,-1.5,10,,0.25"]


def test_a_line_that_was_changed_by_hand_stays(tmp_path):
    path = tmp_path / "episodes.csv"
    write(path, 3, 4)
    path.write_text(path.read_text().replace("3,0,1", "three,0,1"))
    assert len(write(path, after=4)) == 3


def test_another_file_of_that_name_is_left_alone(tmp_path):
    path = tmp_path / "episodes.csv"
    path.write_text("mine\n1\n")
    with pytest.raises(ConfigError, match=r"is no log of episodes: .*log_episodes=False"):
        EpisodeLog(path, 0)
    assert path.read_text() == "mine\n1\n"


def test_a_link_is_refused_also_later(tmp_path):
    path, victim = tmp_path / "episodes.csv", tmp_path / "victim"
    victim.write_text("precious\n")
    with EpisodeLog(path, 0) as log:
        path.unlink()
        path.symlink_to(victim)
        with pytest.raises(ConfigError, match="is a link"):
            log.append([line(4, new=1)])
    assert victim.read_text() == "precious\n"
