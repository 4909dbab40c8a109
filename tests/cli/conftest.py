"""Commands run in this process, with settings so small that nothing takes long."""

import contextlib
import io
import signal

import gymnasium
import numpy as np
import pytest

from understudy import cli

SMALL = {"batch_size": 16, "buffer_size": 512, "start_steps": 20, "min_buffer_size": 20}
TINY = [
    "--quiet",
    "--hidden-sizes=8",
    "--evaluation-episodes=2",
    *(f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()),
]


class Ringing(gymnasium.Env):
    """A walk on a line of 30 steps. After `steps_to_go` steps of all of them, a signal comes."""

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    steps_to_go, signal = -1, signal.SIGINT

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.place = 0, self.np_random.normal(size=1).astype(np.float32)
        return self.place, {}

    def step(self, action):
        Ringing.steps_to_go -= 1
        if Ringing.steps_to_go == 0:
            signal.raise_signal(Ringing.signal)
        self.time += 1
        self.place = self.place + action
        return self.place, -float(abs(self.place[0])), False, self.time == 30, {}


@pytest.fixture
def ringing():
    gymnasium.register("Ringing-v0", Ringing)
    yield Ringing
    Ringing.steps_to_go, Ringing.signal = -1, signal.SIGINT
    del gymnasium.registry["Ringing-v0"]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(*arguments):
    """A command in this process: (exit code, standard output, error stream)."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = exit.code
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="session")
def command():
    return call


@pytest.fixture
def run():
    return call


@pytest.fixture
def tiny():
    """Flags of a quick `understudy train`."""
    return TINY


@pytest.fixture
def refused(tmp_path):
    """The single line with which a command is refused; nothing must have been started."""

    def refuse(*arguments):
        before = sorted(tmp_path.rglob("*"))
        code, out, err = call(*arguments)
        assert code == 2, (code, out, err)
        assert out == "" and err.count("\n") == 1 and err.startswith("understudy: error: "), err
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return refuse


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run of two seeds on the device loop: its directory, and what was said."""
    directory = tmp_path_factory.mktemp("cli") / "run"
    words = f"train td3 jax:Pendulum-v1 --steps 60 --seeds 2 --run {directory}".split()
    code, out, err = call(*words, *TINY)
    assert code == 0, err
    return directory, out
