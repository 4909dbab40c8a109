"""An episode as a film: mp4 or gif."""

import contextlib
import importlib
import math
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from understudy.envs.make import gymnasium_factory
from understudy.errors import ConfigError, EnvironmentError

GIF_FRAMES_PER_SECOND = 25  # viewers slow down what is faster


def record_episode(
    act: Callable[[Any], Any], env_id: str, out: Path | str, seed: int = 0, max_steps: int = 1000
) -> float:
    """Plays one episode with `act(observation) -> action`, films it into `out` (.mp4 or .gif)
    and returns its return. A native environment is played by its Gymnasium twin."""
    out = Path(out)
    if out.suffix.lower() not in (".mp4", ".gif"):
        raise ConfigError(f"{out}: a video ends in .mp4 or .gif")
    for package in ("imageio", "imageio_ffmpeg"):
        _need(package)
    env = _make(env_id)
    try:
        observation, _ = env.reset(seed=seed)
        first = _frame(env, env_id)  # what cannot be drawn is known before a file is begun
        total = 0.0
        with _film(out, int(env.metadata.get("render_fps") or 30)) as add:
            add(first)
            for _ in range(max_steps):
                observation, reward, terminated, truncated, _ = env.step(act(observation))
                total += float(reward)
                add(_frame(env, env_id))
                if terminated or truncated:
                    break
        return total
    finally:
        with contextlib.suppress(Exception):  # a viewer that never opened may fail to close
            env.close()


def _make(env_id: str) -> gymnasium.Env:
    name = env_id.removeprefix("jax:")
    if name != env_id and name not in gymnasium.registry:
        raise EnvironmentError(f"{env_id} cannot be drawn: Gymnasium has no {name}")
    gymnasium_factory(name)  # refuses an unknown id with the nearest one
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters is whether a frame comes out
            return gymnasium.make(name, render_mode="rgb_array", disable_env_checker=True)
    except Exception as error:
        raise _cannot_draw(env_id, error) from error


def _frame(env: gymnasium.Env, env_id: str) -> np.ndarray:
    """What is to be seen: [height, width, 3], both even, as H.264 needs them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn = np.asarray(env.render())
        if drawn.ndim != 3 or drawn.shape[2] != 3:
            raise TypeError(f"render() gave no picture in mode rgb_array ({drawn.dtype})")
    except Exception as error:
        raise _cannot_draw(env_id, error) from error
    height, width = (side - side % 2 for side in drawn.shape[:2])
    return drawn[:height, :width].astype(np.uint8)


def _cannot_draw(env_id: str, error: Exception) -> EnvironmentError:
    """Gymnasium's own words say which package is missing and how to install it."""
    entry_point = str(gymnasium.spec(env_id.removeprefix("jax:")).entry_point)
    hint = "; without a screen, set MUJOCO_GL=egl" if "mujoco" in entry_point else ""
    words = " ".join(str(error).split())
    return EnvironmentError(f"{env_id} cannot be drawn: {type(error).__name__}: {words}{hint}")


@contextlib.contextmanager
def _film(out: Path, fps: int) -> Iterator[Callable[[np.ndarray], Any]]:
    """Takes frames; the file appears, whole, when all of them are in."""
    imageio = _need("imageio.v2")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.stem}.tmp{out.suffix.lower()}")
    try:
        if out.suffix.lower() == ".mp4":
            settings = {"codec": "libx264", "pixelformat": "yuv420p", "macro_block_size": 2}
            writer, stride = imageio.get_writer(temporary, format="FFMPEG", fps=fps, **settings), 1
        else:
            stride = math.ceil(fps / GIF_FRAMES_PER_SECOND)
            milliseconds = 1000 * stride / fps
            writer = imageio.get_writer(temporary, mode="I", duration=milliseconds, loop=0)
        # `closing`, because its own `with` leaves ffmpeg running after an error.
        with contextlib.closing(writer), warnings.catch_warnings():
            # JAX warns of any fork. This one makes way for ffmpeg at once.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            taken = 0

            def add(frame: np.ndarray) -> None:
                nonlocal taken
                if taken % stride == 0:
                    writer.append_data(frame)
                taken += 1

            yield add
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)


def _need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f'a video needs {module.split(".")[0]}: pip install "understudy[video]"'
        ) from error
