"""Record an episode as a video: mp4 or gif."""

import contextlib
import importlib
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, final

import gymnasium
import numpy as np

from understudy.envs.arguments import refuse_env_args
from understudy.envs.atari_games import AtariSettings
from understudy.envs.gymnasium_envs import NO_ARGS, Stacked
from understudy.envs.make import gymnasium_factory
from understudy.errors import ConfigError, EnvironmentError, import_extra
from understudy.runs.files import fresh_directory, remove

GIF_FRAMES_PER_SECOND = 25  # viewers slow down what is faster
PIXELS_PER_CELL = 32  # of games that are ten cells wide
COLORS = (
    *((80, 160, 255), (255, 255, 255), (120, 120, 120), (255, 120, 80), (120, 220, 120)),
    *((255, 220, 80), (200, 120, 255), (80, 220, 220), (255, 120, 200), (160, 120, 80)),
)


def record_episode(
    act: Callable[..., Any],
    env_id: str,
    out: Path | str,
    seed: int = 0,
    max_steps: int = 5_000,
    frames: int = 1,
    env_args: Mapping[str, Any] = NO_ARGS,
) -> float:
    """Play one episode with `act(observation) -> action`, record it to `out` (.mp4 or .gif), and
    return its return. For a native environment the same environment of Gymnasium is played.

    A recurrent `act(observation, memory)` returns the action and the next memory. The observation
    is the last `frames` images. `env_args` are the keyword arguments of the environment."""
    out = Path(out)
    if out.suffix.lower() not in (".mp4", ".gif"):
        raise ConfigError(f"{out}: a video ends in .mp4 or .gif")
    for package in ("imageio", "imageio_ffmpeg"):
        import_extra(package, "video", f"a video needs {package}")
    env = _make(env_id, env_args)
    env = Stacked(env, frames) if frames > 1 else env
    rewards: list[float] = []

    def play() -> Iterator[np.ndarray]:
        observation, _ = env.reset(seed=seed)
        yield _frame(env, env_id)
        memory = ()
        for _ in range(max_steps):
            answer = act(observation, *memory)
            action, *memory = answer if isinstance(answer, tuple) else (answer,)
            observation, reward, terminated, truncated, _ = env.step(action)
            rewards.append(float(reward))
            yield _frame(env, env_id)
            if terminated or truncated:
                return

    try:
        _write(out, int(env.metadata.get("render_fps") or 30), play())
        return sum(rewards, 0.0)
    finally:
        with contextlib.suppress(Exception):  # a viewer that never opened may fail to close
            env.close()


def _make(env_id: str, args: Mapping[str, Any]) -> gymnasium.Env:
    """Make an environment that can be drawn."""
    name, keep = env_id, None
    if env_id.startswith(("jax:", "gymnax:", "envpool:", "brax:")):
        name, keep = _gymnasium_name(env_id)
        args = {key: value for key, value in args.items() if key != "num_threads"}  # EnvPool's
        refuse_env_args(env_id, args, "an episode is drawn by Gymnasium, which has others")
    factory = gymnasium_factory(name, args)  # refuses an unknown name with the nearest one
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it only matters whether there is a frame
            if isinstance(factory, AtariSettings):
                env = factory.for_evaluation()()
                env.unwrapped.render_mode = "rgb_array"
                env.metadata = env.metadata | {"render_fps": 60 // factory.frame_skip}
            elif name.startswith("MinAtar/"):
                env = _Colored(factory())
            else:
                drawn = {**args, "render_mode": "rgb_array"}
                own = getattr(factory, "func", factory)  # the class of "module:Class"
                make = partial(gymnasium.make, name, disable_env_checker=True)
                env = (own if isinstance(own, type) else make)(**drawn)
    except Exception as error:
        raise _cannot_draw(env_id, error) from error
    if keep is None:
        return env
    return gymnasium.wrappers.TransformObservation(env, lambda seen: seen[[*keep]], None)


def _gymnasium_name(env_id: str) -> tuple[str, tuple[int, ...] | None]:
    """The name of the same environment in Gymnasium, and the entries of its observation that the
    native one shows (None for all)."""
    name = env_id.partition(":")[2]
    native = importlib.import_module("understudy.envs.native").NATIVE  # imports JAX
    keep = getattr(native[name](), "keep", None) if name in native else None
    known = name.replace("-P-v", "-v") if keep else name.replace("MinAtar-", "MinAtar/")
    if known not in gymnasium.registry and "/" not in known:
        raise EnvironmentError(f"{env_id} cannot be drawn: Gymnasium has no {known}")
    return known, keep


@final
class _Colored(gymnasium.Wrapper):
    """Draws the planes of a game of MinAtar, because its own drawing needs another package."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.metadata = {"render_fps": 10}

    def render(self) -> Any:
        planes = self.env.unwrapped.game.state()  # type: ignore[attr-defined]
        picture = np.zeros((*planes.shape[:2], 3), np.uint8)
        for plane, color in zip(np.moveaxis(planes, -1, 0), COLORS, strict=False):
            picture[plane] = color
        return picture.repeat(PIXELS_PER_CELL, axis=0).repeat(PIXELS_PER_CELL, axis=1)


def _frame(env: gymnasium.Env, env_id: str) -> np.ndarray:
    """Draw the environment: [height, width, 3], both even, as H.264 needs them."""
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
    """Gymnasium's message says which package is missing and how to install it."""
    known = gymnasium.registry.get(env_id)
    simulated = known is not None and "mujoco" in str(known.entry_point)
    hint = "; without a screen, set MUJOCO_GL=egl" if simulated else ""
    words = " ".join(str(error).split())
    return EnvironmentError(f"{env_id} cannot be drawn: {type(error).__name__}: {words}{hint}")


def _write(out: Path, fps: int, frames: Iterator[np.ndarray]) -> None:
    """Write the video. The file appears when all frames are written."""
    first = next(frames)  # refuses what cannot be drawn before a file is begun
    imageio = importlib.import_module("imageio.v2")
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = fresh_directory(out)  # ffmpeg needs a name with the right ending
    temporary = aside / f"film{out.suffix.lower()}"
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
            # JAX warns of any fork; this one is replaced by ffmpeg at once.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            for frame in itertools.islice(itertools.chain([first], frames), 0, None, stride):
                writer.append_data(frame)
        os.replace(temporary, out)
    finally:
        remove(aside)
