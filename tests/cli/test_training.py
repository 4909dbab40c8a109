"""The first lines of a run."""

import pytest

from understudy.training import replay_placement as keeping

pytestmark = pytest.mark.agents


@pytest.mark.parametrize("storage", ["device", "host"])
def test_a_large_replay_is_announced(run, tiny, monkeypatch, storage):
    monkeypatch.setattr(keeping, "LARGE", 0)
    words = ("--steps", 5, "--replay-storage", storage)
    code, out, err = run("train", "sac", "Pendulum-v1", *words, *tiny)
    assert code == 0 and err == ""
    where = {"device": "in memory", "host": "in host memory"}[storage]
    assert out.splitlines()[2] == f"replay          512 steps of 3 float32, 0.0 GiB {where}"
