"""A Ray that is started here, by a stand-in for it."""

import pytest

from understudy.distributed import connect
from understudy.errors import UnderstudyError


class SlowRay:
    """Fails to start so many times."""

    def __init__(self, failures):
        self.failures, self.calls = failures, []

    def is_initialized(self):
        return False

    def init(self, **settings):
        self.calls.append("init")
        if self.failures:
            self.failures -= 1
            raise RuntimeError("The current node timed out during startup.\nMore words.")

    def shutdown(self):
        self.calls.append("shutdown")


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "0")

    def start(failures):
        ray = SlowRay(failures)
        monkeypatch.setattr(connect, "load_ray", lambda: ray)
        connect.connect(None, 1)
        return ray.calls

    return start


def test_a_ray_that_is_slow_to_start_is_waited_for(start, caplog):
    assert start(failures=0) == ["init"]
    assert not caplog.records
    assert start(failures=1) == ["init", "shutdown", "init"]
    [said] = [record.getMessage() for record in caplog.records]
    assert said == (
        "Ray is slow to start here (The current node timed out during startup.): waiting for it"
    )


def test_but_not_for_ever(start):
    with pytest.raises(UnderstudyError, match="Ray cannot be started here: The current node"):
        start(failures=9)
