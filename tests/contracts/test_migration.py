"""docs/migration.md cannot rot: each old setting is answered with its new name."""

import dataclasses
import re
from pathlib import Path

import pytest

import understudy as us
from understudy.cli import main
from understudy.errors import ConfigError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migration.md"
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| ([A-Z0-9, ]+) \|$", re.MULTILINE)
SETTINGS = [
    (kind, old, new)
    for old, new, kinds in ROW.findall(PAGE.read_text(encoding="utf-8"))
    for kind in kinds.split(", ")
]


def test_an_old_setting_of_a_cluster_is_answered_with_the_new_one(capsys):
    with pytest.raises(ConfigError, match="instead of 'fragment' use 'collector_chunk_steps'"):
        us.Cluster(fragment=10)
    with pytest.raises(SystemExit):
        main(["train", "sac", "Pendulum-v1", "--fragment", "10"])
    assert "instead of --fragment use --collector-chunk-steps" in capsys.readouterr().err


def test_there_are_rows():
    assert len(SETTINGS) > 20


@pytest.mark.parametrize(("kind", "old", "new"), SETTINGS)
def test_an_old_setting_is_answered_with_the_new_one(kind, old, new):
    config = getattr(us, f"{kind}Config")
    names = {field.name for field in dataclasses.fields(config)}
    assert new in names and old not in names
    with pytest.raises(ConfigError, match=f"'{new}'") as caught:
        config(**{old: None})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "old", "new"), SETTINGS)
def test_an_old_flag_is_answered_with_the_new_one(kind, old, new, capsys):
    flag, wanted = (f"--{name.replace('_', '-')}" for name in (old, new))
    with pytest.raises(SystemExit) as end:
        main(["train", kind.lower(), "Pendulum-v1", flag, "1"])
    error = capsys.readouterr().err
    assert end.value.code == 2 and wanted in error and error.count("\n") == 1
