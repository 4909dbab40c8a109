import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.training import sharding_host
from understudy.errors import ConfigError
from understudy.training import devices

pytestmark = pytest.mark.agents

HERE = Path(__file__).parent


def environment(virtual_devices):
    flags = os.environ.get("XLA_FLAGS", "").split()
    flags.append(f"--xla_force_host_platform_device_count={virtual_devices}")
    return os.environ | {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}


@pytest.mark.processes
@pytest.mark.parametrize(
    "chosen", ["not slow", pytest.param("slow", marks=pytest.mark.slow)], ids=["few", "all others"]
)
def test_eight_devices(chosen):
    """The number of devices is fixed when JAX starts, so the cases have a process of their own. It
    stays in this process group: what ends the test run from a terminal ends it as well."""
    cases = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen]
    done = subprocess.run(
        [*cases, str(HERE / "sharding_cases.py")],
        env=environment(8),
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5_000:]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_learn_what_one_does(tmp_path):
    files, port = [tmp_path / f"{index}.npz" for index in range(2)], str(free_port())
    script = [sys.executable, str(HERE / "sharding_host.py")]
    hosts = [
        subprocess.Popen([*script, str(index), port, str(file)], env=environment(2))
        for index, file in enumerate(files)
    ]
    alone = list(sharding_host.results(1))
    assert [host.wait(300) for host in hosts] == [0, 0]
    for file in files:
        with np.load(file) as together:
            for array, name in zip(alone, together, strict=True):
                np.testing.assert_allclose(together[name], array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("coordinator", "index", "problem"),
    [
        ("127.0.0.1:1", 2, "2 hosts have indices 0 to 1, got 2"),
        ("somewhere", 0, "is a host:port, got 'somewhere'"),
        ("127.0.0.1:1", 1, "no process answers at 127.0.0.1:1: start host 0 there first"),
        ("127.0.0.1:1", 0, "host 0 cannot join 127.0.0.1:1: .* before any JAX calls"),
    ],
)
def test_hosts_that_cannot_join_are_told_why(coordinator, index, problem, monkeypatch):
    monkeypatch.setattr(devices, "SECONDS_TO_JOIN", 0)
    devices.find_device("cpu")  # JAX has started
    with pytest.raises(ConfigError, match=problem):
        devices.join_hosts(coordinator, 2, index)
