import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import jax
import pytest

from understudy.cli import doctor


def test_it_shows_what_is_installed(run):
    code, out, err = run("doctor")
    assert code == 0 and err == ""
    assert f"jax {metadata.version('jax')}" in out
    assert "devices        cpu: " in out
    assert str(jax.config.jax_compilation_cache_dir) in out
    assert "mujoco" in out and "warning" not in out


def test_as_json(run):
    code, out, _ = run("doctor", "--json")
    found = json.loads(out)
    assert code == 0 and found["versions"]["jax"] == metadata.version("jax")
    assert found["matmul_precision"] and found["warnings"] == []


def test_what_is_missing_is_named(monkeypatch, run):
    monkeypatch.setitem(doctor.DISTRIBUTIONS, "brax", "there-is-no-such-distribution")
    _, out, _ = run("doctor")
    assert "not installed  " in out and "brax" in out.split("not installed")[1]


def test_every_extra_is_known_and_part_of_all():
    """`all` leaves out those that need certain hardware or systems, an account or a server."""
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    whole = set(re.findall(r"\w+", extras["all"][0])) - {"understudy"}
    assert whole == extras.keys() - {"all", "dev", "docs", "cuda", "envpool", "wandb", "mlflow"}
    assert set(doctor.EXTRAS) == extras.keys() - {"all", "dev", "docs"}


class Gpu:
    platform, device_kind = "gpu", "A Card"


@pytest.mark.parametrize(("precision", "warned"), [(None, True), ("highest", False)])
def test_tf32_is_warned_of(monkeypatch, run, precision, warned):
    monkeypatch.setattr(jax, "devices", lambda: [Gpu()])
    with jax.default_matmul_precision(precision):
        _, out, _ = run("doctor")
    assert ("TF32" in out) == warned and "gpu: A Card" in out


def test_the_size_of_the_cache_is_counted(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "a").write_bytes(bytes(10))
    (tmp_path / "in" / "b").write_bytes(bytes(5))
    assert doctor.directory_size(tmp_path) == 15
    assert doctor.directory_size(tmp_path / "nowhere") == 0
