import re
import subprocess
import sys
from typing import ClassVar

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest

from understudy.errors import ConfigError, EnvironmentError
from understudy.reports.video import record_episode

LENGTH = 6


class Lamp(gymnasium.Env):
    """Gets brighter with every step; drawn without any package, in an odd size."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 50}
    observation_space = gymnasium.spaces.Box(0.0, 1e3, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, render_mode=None, picture="frame"):
        self.render_mode, self.picture = render_mode, picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.start = 0, float(self.np_random.integers(100))
        return np.float32([self.start]), {}

    def step(self, action):
        self.time += 1
        return np.float32([self.start]), float(action), self.time >= LENGTH, False, {}

    def render(self):
        if self.picture == "broken":
            raise RuntimeError("no\nscreen")
        if self.picture == "nothing":
            return None
        return np.full((65, 81, 3), 30 * self.time, np.uint8)


@pytest.fixture(autouse=True)
def lamps(monkeypatch):
    for name, picture in [("Lamp", "frame"), ("Dark", "nothing"), ("Broken", "broken")]:
        settings = gymnasium.envs.registration.EnvSpec(
            f"{name}-v0", entry_point=Lamp, kwargs={"picture": picture}
        )
        monkeypatch.setitem(gymnasium.registry, f"{name}-v0", settings)


def watched(path):
    """The mean brightness of each frame, and what the film is, in ffmpeg's words."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24"]
    played = subprocess.run([*command, "-fps_mode", "passthrough", "-"], capture_output=True)
    frames = np.frombuffer(played.stdout, np.uint8).reshape(-1, 64 * 80 * 3)
    about = re.search(r"Stream #0:0.*Video: (.*)", played.stderr.decode()).group(1)
    return frames.mean(axis=1).tolist(), about


@pytest.mark.processes
@pytest.mark.parametrize("name", ["film.mp4", "film.MP4"])
def test_an_episode_becomes_a_film(tmp_path, name):
    seen = []
    out = tmp_path / "deep" / name

    def act(observation):
        seen.append(float(observation[0]))
        return 2

    assert record_episode(act, "Lamp-v0", out, seed=3) == 2.0 * LENGTH
    assert len(seen) == LENGTH and seen[0] == float(np.random.default_rng(3).integers(100))
    brightness, about = watched(out)
    for word in ("h264", "yuv420p", "80x64", "50 fps"):
        assert word in about
    wanted = [30.0 * time for time in range(LENGTH + 1)]
    np.testing.assert_allclose(brightness, wanted, atol=6)
    assert [path.name for path in out.parent.iterdir()] == [name]


@pytest.mark.processes
def test_a_gif_leaves_out_what_viewers_would_slow_down(tmp_path):
    out = tmp_path / "film.gif"
    record_episode(lambda observation: 1, "Lamp-v0", out)
    brightness, about = watched(out)
    assert brightness == [0.0, 60.0, 120.0, 180.0]  # 50 frames a second, every second one
    assert "25 fps" in about


@pytest.mark.processes
def test_max_steps_ends_the_film(tmp_path):
    out = tmp_path / "film.gif"
    assert record_episode(lambda observation: 1, "Lamp-v0", out, max_steps=2) == 2.0
    assert watched(out)[0] == [0.0, 60.0]


def test_a_native_environment_is_played_by_its_twin(tmp_path, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Pendulum-v1", gymnasium.spec("Lamp-v0"))
    for prefix in ("jax", "gymnax", "envpool"):
        name = f"{prefix}:Pendulum-v1"
        assert record_episode(lambda observation: 1, name, tmp_path / "film.gif") == LENGTH
    args = {"num_threads": 2}
    record_episode(lambda observation: 1, name, tmp_path / "film.gif", env_args=args)
    with pytest.raises(EnvironmentError, match="does not take env_args gravity=1: an episode is"):
        record_episode(lambda observation: 1, name, tmp_path / "o.gif", env_args={"gravity": 1})


def test_arguments_of_the_environment_are_used(tmp_path):
    with pytest.raises(EnvironmentError, match=r"cannot be drawn: TypeError: .*'foo'"):
        record_episode(lambda observation: 1, "Lamp-v0", tmp_path / "o.gif", env_args={"foo": 1})


def test_an_agent_that_remembers_is_given_its_memory(tmp_path):
    def act(observation, memory=0):
        return memory, memory + 1

    reward = record_episode(act, "Lamp-v0", tmp_path / "film.gif")
    assert reward == sum(range(LENGTH))


def test_hidden_entries_are_hidden_from_the_twin_too(tmp_path):
    pytest.importorskip("pygame")
    seen = []

    def act(observation):
        seen.append(observation)
        return 0

    record_episode(act, "jax:CartPole-P-v1", tmp_path / "film.gif", seed=5, max_steps=1)
    whole, _ = gymnasium.make("CartPole-v1").reset(seed=5)
    np.testing.assert_array_equal(seen[0], whole[[0, 2]])


@pytest.mark.processes
@pytest.mark.parametrize(
    ("env", "shape"),
    [
        pytest.param("atari:Pong", (2, 84, 84), marks=pytest.mark.atari),
        ("jax:MinAtar-Breakout-v1", (2, 10, 10, 4)),
    ],
)
def test_games_are_filmed_as_they_are_seen(tmp_path, env, shape):
    pytest.importorskip("ale_py" if "atari" in env else "minatar")
    seen = []

    def act(observation):
        seen.append(observation)
        return 1

    record_episode(act, env, tmp_path / "film.mp4", max_steps=5, frames=2)
    assert [observation.shape for observation in seen] == [shape] * 5
    assert not (seen[0][1] != seen[1][0]).any()  # the older frame of the next stack
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", tmp_path / "film.mp4"]
    about = subprocess.run(command, capture_output=True).stderr.decode()
    assert ("160x210, " if "atari" in env else "320x320, ") in about
    assert ("15 fps" if "atari" in env else "10 fps") in about


@pytest.mark.parametrize(
    ("env", "out", "kind", "problem"),
    [
        ("Lamp-v0", "film.avi", ConfigError, r"film\.avi: a video ends in \.mp4 or \.gif"),
        ("Lmp-v0", "film.gif", EnvironmentError, 'no environment "Lmp-v0"; did you mean'),
        ("Dark-v0", "film.gif", EnvironmentError, "Dark-v0 cannot be drawn: .* no picture"),
        ("Broken-v0", "film.gif", EnvironmentError, "drawn: RuntimeError: no screen$"),
        ("jax:PointNavigation-v0", "film.gif", EnvironmentError, "Gymnasium has no PointNav"),
        (
            "brax:ant",
            "film.gif",
            EnvironmentError,
            "brax:ant cannot be drawn: Gymnasium has no ant",
        ),
        ("gymnax:Pong-misc", "film.gif", EnvironmentError, "Gymnasium has no Pong-misc"),
    ],
)
def test_what_cannot_be_filmed_is_said_in_one_line(tmp_path, env, out, kind, problem):
    with pytest.raises(kind, match=problem) as caught:
        record_episode(lambda observation: 1, env, tmp_path / out)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_without_pygame_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(EnvironmentError, match=r'pip install "gymnasium\[classic.control\]"'):
        record_episode(lambda observation: 0, "CartPole-v1", tmp_path / "film.mp4")


def test_a_simulator_without_a_screen_gets_a_hint(tmp_path, monkeypatch):
    entry = "gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv"
    monkeypatch.setattr(gymnasium.spec("Broken-v0"), "entry_point", entry)
    monkeypatch.setattr(
        "understudy.reports.video.gymnasium.make", lambda *_, **__: Lamp(None, "broken")
    )
    with pytest.raises(EnvironmentError, match=r"no screen; without a screen, set MUJOCO_GL=egl"):
        record_episode(lambda observation: 0, "Broken-v0", tmp_path / "film.mp4")


@pytest.mark.parametrize("package", ["imageio", "imageio_ffmpeg"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf'{package}: pip install "understudy\[video\]"'):
        record_episode(lambda observation: 0, "Lamp-v0", tmp_path / "film.mp4")


@pytest.mark.processes
def test_a_film_that_breaks_off_leaves_the_old_one(tmp_path):
    out = tmp_path / "film.mp4"
    out.write_bytes(b"the old one")
    with pytest.raises(ZeroDivisionError):
        record_episode(lambda observation: 1 // 0, "Lamp-v0", out)
    assert out.read_bytes() == b"the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]
