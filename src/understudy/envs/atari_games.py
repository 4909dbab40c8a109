"""Atari games with the observations and rewards of the papers.

Free of JAX: environment workers import it.

The game runs at its own 60 frames a second; the agent acts every fourth of them. Sprites flicker
(a console could not draw them all in one frame), so what it sees is the maximum over the last two,
in gray and 84 × 84 pixels. Rewards are clipped to their sign, so that one learning rate does for
all games; evaluation counts game points.
"""

import importlib
import math
import re
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np

from understudy.envs.names import missing_package
from understudy.errors import ConfigError

SIDE = 84  # pixels, of the square that the agent sees
_NOOP = 0
_RAW_ID = re.compile(r"(?:ALE/(\w+)|(\w+)(?:NoFrameskip|Deterministic))-v\d+")


def hint_at_adapter(name: str) -> str:
    """Return the end of a message about an id under which Gymnasium shows raw frames of a game, as
    "ALE/Pong-v5" or "PongNoFrameskip-v4"; "" for other names and for unknown games."""
    found = _RAW_ID.fullmatch(name)
    game = (found[1] or found[2]) if found else ""
    games_are_known = any(known in gymnasium.registry for known in (name, "ALE/Pong-v5"))
    if not game or (games_are_known and f"ALE/{game}-v5" not in gymnasium.registry):
        return ""
    return (
        f'; "atari:{game}" is this game as the papers prepare it (no-op starts, an action every 4 '
        "frames, gray 84×84 pixels, clipped rewards) and has presets with a frame stack"
    )


@final
@dataclass(frozen=True)
class AtariSettings:
    """How a game is played. Calling it makes the environment: observations are uint8 [84, 84]."""

    game: str
    """As in "ALE/Pong-v5": "Pong", "SpaceInvaders" …"""
    noops: int = 30
    """An episode begins with 1 to so many frames of doing nothing (0: none), so that not all
    games are the same."""
    frame_skip: int = 4
    """How many frames an action lasts. Rewards are summed over them."""
    clip_rewards: bool = True
    """Rewards become -1, 0 or 1. (In training: evaluation counts points.)"""
    life_loss: bool = False
    """A lost life ends the episode while the game goes on. (In training: evaluation plays whole
    games.)"""
    fire_at_reset: bool = False
    """Press FIRE at an episode's start, in games that have the button: some wait for it."""
    repeat_action_probability: float = 0.0
    """Probability that a frame repeats the previous action: 0.25 in Machado et al. (2018)."""

    def __post_init__(self) -> None:
        problems = []
        if self.noops < 0:
            problems.append(f"noops must be at least 0, got {self.noops}")
        if self.frame_skip < 1:
            problems.append(f"frame_skip must be at least 1, got {self.frame_skip}")
        if not 0 <= self.repeat_action_probability < 1:
            problems.append(
                "repeat_action_probability must be at least 0 and below 1, got "
                f"{self.repeat_action_probability}"
            )
        if problems:
            raise ConfigError("; ".join(problems))

    def __call__(self) -> gymnasium.Env:
        try:
            ale = importlib.import_module("ale_py")  # importing it registers the games
        except ImportError as error:
            raise missing_package(f"atari:{self.game}", "understudy[atari]") from error
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # no greeting from each worker
        game = gymnasium.make(
            f"ALE/{self.game}-v5",
            obs_type="grayscale",
            frameskip=1,
            repeat_action_probability=self.repeat_action_probability,
            disable_env_checker=True,
        )
        return Atari(game, self)

    @property
    def most_steps(self) -> int:
        """Actions of an episode: half an hour of play, 108,000 frames."""
        return 108_000 // self.frame_skip

    def for_evaluation(self) -> "AtariSettings":
        """Whole games, in points."""
        return replace(self, clip_rewards=False, life_loss=False)


atari = AtariSettings


class _Played(NamedTuple):
    """The result of an action, or the beginning of a game."""

    screen: np.ndarray
    info: dict[str, Any]
    points: float = 0.0
    terminated: bool = False
    truncated: bool = False
    life_lost: bool = False

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


@final
class Atari(gymnasium.Wrapper):
    """A game of the Arcade Learning Environment (gray, frame by frame), played by `settings`.

    With `life_loss`, a reset after a lost life takes one step of doing nothing and does not use
    its seed: the game goes on.
    """

    def __init__(self, env: gymnasium.Env, settings: AtariSettings):
        super().__init__(env)
        self.settings = settings
        height, width = env.observation_space.low.shape  # type: ignore[attr-defined]
        self._down, self._across = _shares(height, SIDE), _shares(width, SIDE)
        # Of a pixel, in the unit of the shares.
        self._area = np.float32(height * width / math.gcd(height, SIDE) / math.gcd(width, SIDE))
        self.observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
        meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        fire = settings.fire_at_reset and "FIRE" in meanings
        self._fire = meanings.index("FIRE") if fire else None
        self._lives = 0
        self._between_lives = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        played = self._play(_NOOP) if self._between_lives else None
        if played is None or played.over:
            played = self._new_game(seed, options)
        if self._fire is not None:
            played = self._play(self._fire)
            if played.over:
                played = self._new_game()
        self._between_lives = False
        return self._shrink(played.screen), played.info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        played = self._play(action)
        self._between_lives = played.life_lost and not played.over
        clips = self.settings.clip_rewards
        reward = float(np.sign(played.points)) if clips else played.points
        terminated = played.terminated or played.life_lost
        return self._shrink(played.screen), reward, terminated, played.truncated, played.info

    def _new_game(self, seed: int | None = None, options: dict[str, Any] | None = None) -> _Played:
        screen, info = self.env.reset(seed=seed, options=options)
        most = self.settings.noops
        for _ in range(self.np_random.integers(1, most + 1) if most else 0):
            screen, _, terminated, truncated, info = self.env.step(_NOOP)
            if terminated or truncated:
                screen, info = self.env.reset()
        self._lives = info["lives"]
        return _Played(screen, info)

    def _play(self, action: Any) -> _Played:
        """Take one action for `frame_skip` frames, or until the episode's end."""
        screens: deque[np.ndarray] = deque(maxlen=2)
        points, terminated, truncated, life_lost, info = 0.0, False, False, False, {}
        for _ in range(self.settings.frame_skip):
            screen, reward, terminated, truncated, info = self.env.step(action)
            screens.append(screen)
            points += float(reward)
            # Not at 0: some games show it for a while before they are over.
            life_lost = self.settings.life_loss and 0 < info["lives"] < self._lives
            self._lives = info["lives"]
            if terminated or truncated or life_lost:
                break
        screen = np.maximum(screens[0], screens[-1])
        return _Played(screen, info, points, terminated, truncated, life_lost)

    def _shrink(self, screen: np.ndarray) -> np.ndarray:
        """Average the area that each of the 84 × 84 pixels covers."""
        total = _sum(_sum(screen, self._down).T, self._across).T
        return np.rint(total / self._area).astype(np.uint8)


Shares = list[tuple[np.ndarray, np.ndarray]]


def _shares(pixels: int, cells: int) -> Shares:
    """Return which pixels each cell sums, when both divide the same length evenly: pixel j covers
    [j, j + 1) / pixels of it, cell i covers [i, i + 1) / cells, and the weight is their overlap.
    The n-th item is each cell's n-th pixel [cells] with its weight [cells, 1].

    Weights are in the smallest unit in which all are whole numbers. Sums of them times bytes stay
    below 2²⁴, where float32 is exact: no order of addition changes a bit of what the agent sees.
    (Two or three gathers take half the time of a product with a matrix that is nearly all zeros.)
    """
    pixel, cell = (length // math.gcd(pixels, cells) for length in (cells, pixels))
    begins, ends = np.arange(cells) * cell, np.arange(1, cells + 1) * cell
    shares = []
    for nth in range(-(-pixels // cells) + 1):
        index = begins // pixel + nth
        common = np.minimum(ends, (index + 1) * pixel) - np.maximum(begins, index * pixel)
        weight = np.maximum(common, 0).astype(np.float32)[:, None]
        if weight.any():
            shares.append((np.minimum(index, pixels - 1), weight))
    return shares


def _sum(rows: np.ndarray, shares: Shares) -> np.ndarray:
    """[pixels, other] -> [cells, other]"""
    rows = np.ascontiguousarray(rows)
    (index, weight), *others = shares
    total = rows[index] * weight
    for index, weight in others:
        total += rows[index] * weight
    return total
