"""What the preparation does to a game, on one made up for the purpose; then the real ones."""

import importlib.util
import pickle
import subprocess
import sys
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import pytest

from understudy.envs import AtariSettings, EpisodeSeeds, atari, check, resolve, stack_frames
from understudy.envs.atari_games import SIDE, Atari
from understudy.types import ArraySpec, ConfigError, Discrete, EnvironmentError

NOOP, FIRE, RIGHT = range(3)


class Game(gymnasium.Env):
    """Every frame shows its number and pays it; a life is lost every 10th frame, 3 in all."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self):
        self.games, self.actions = 0, []

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE", "RIGHT"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.games, self.actions = self.games + 1, []
        return self._screen(), {"lives": 3}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.actions.append(int(action))
        frame = len(self.actions)
        # Odd frames are dark on the left, even ones on the right: sprites that flicker.
        return self._screen(), float(frame), frame >= 30, False, {"lives": 3 - frame // 10}

    def _screen(self) -> np.ndarray:
        frame = len(self.actions)
        screen = np.zeros((SIDE, SIDE), np.uint8)
        half = SIDE // 2
        screen[:, half if frame % 2 else 0 :][:, :half] = frame
        return screen


def played(**settings: Any) -> tuple[Game, Atari]:
    game = Game()
    return game, Atari(game, AtariSettings("Made up", **settings))


def ends(screen: np.ndarray) -> tuple[int, int]:
    return int(screen[0, 0]), int(screen[0, -1])


def test_an_action_lasts_four_frames_and_the_last_two_are_seen():
    game, env = played(noops=0, clip_rewards=False)
    screen, _ = env.reset(seed=0)
    assert ends(screen) == (0, 0)
    screen, points, terminated, truncated, _ = env.step(RIGHT)
    assert game.actions == [RIGHT] * 4
    assert ends(screen) == (4, 3)
    assert (points, terminated, truncated) == (1 + 2 + 3 + 4, False, False)


def test_rewards_become_their_sign_in_training_and_stay_points_in_evaluation():
    settings = AtariSettings("Made up", life_loss=True, noops=0)
    for chosen, reward in ((settings, 1.0), (settings.for_evaluation(), 10.0)):
        env = Atari(Game(), chosen)
        env.reset(seed=0)
        assert env.step(RIGHT)[1] == reward
    assert settings.for_evaluation() == AtariSettings("Made up", noops=0, clip_rewards=False)


def test_up_to_thirty_frames_of_nothing_come_first():
    counts = []
    for seed in range(60):
        game, env = played(noops=5)
        env.reset(seed=seed)
        assert set(game.actions) <= {NOOP}
        counts.append(len(game.actions))
        env.reset(seed=seed)
        assert len(game.actions) == counts[-1]
    assert set(counts) == {1, 2, 3, 4, 5}


def test_a_game_that_ends_while_nothing_is_done_begins_again():
    for seed in range(10):
        game, env = played(noops=200)
        env.reset(seed=seed)
        assert len(game.actions) < 30
        assert not env.step(RIGHT)[2] or len(game.actions) == 30


def test_a_lost_life_ends_the_episode_and_not_the_game():
    game, env = played(noops=0, life_loss=True)
    env.reset(seed=0)
    lengths = []
    for _ in range(3):
        steps, over = 0, False
        while not over:
            *_, over, truncated, _ = env.step(RIGHT)
            steps += 1
        lengths.append((steps, len(game.actions)))
        assert not truncated and game.games == 1
        if len(lengths) < 3:
            env.reset(seed=1)
            assert game.games == 1 and game.actions[-4:] == [NOOP] * 4
    # Lives end in frames 10, 20 and 30; each but the first begins with 4 frames of nothing.
    assert lengths == [(3, 10), (2, 20), (2, 30)]
    env.reset(seed=1)
    assert (game.games, game.actions) == (2, [])


def test_a_reset_in_the_middle_of_a_life_is_a_new_game():
    game, env = played(noops=0, life_loss=True)
    env.reset(seed=0)
    for _ in range(3):
        env.step(RIGHT)
    env.reset(seed=0)  # after a lost life
    env.reset(seed=0)
    assert (game.games, game.actions) == (2, [])


def test_lives_are_of_no_matter_unless_asked_for():
    game, env = played(noops=0)
    env.reset(seed=0)
    flags = [env.step(RIGHT)[2] for _ in range(8)]
    assert flags == [False] * 7 + [True] and len(game.actions) == 30


def test_fire_is_pressed_where_asked_for():
    game, env = played(noops=0, fire_at_reset=True, life_loss=True)
    env.reset(seed=0)
    assert game.actions == [FIRE] * 4
    while not env.step(RIGHT)[2]:
        pass
    env.reset(seed=0)
    assert game.actions[10:] == [NOOP] * 4 + [FIRE] * 4


@pytest.mark.parametrize("shape", [(210, 160), (250, 160)])
def test_pixels_are_the_mean_over_the_area_they_cover(shape):
    class Screen(Game):
        observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

        def _screen(self) -> np.ndarray:
            return np.random.default_rng(0).integers(0, 256, shape, np.uint8)

    game = Screen()
    shown, _ = Atari(game, AtariSettings("Made up", noops=0)).reset(seed=0)
    screen = game._screen().tolist()

    def shares(cell: int, length: int) -> list[tuple[int, Fraction]]:
        """Pixels under a cell, and how much of the cell is theirs."""
        low, high = Fraction(cell * length, SIDE), Fraction((cell + 1) * length, SIDE)
        parts = [(at, min(high, at + 1) - max(low, at)) for at in range(int(low), -int(-high // 1))]
        return [(at, part / (high - low)) for at, part in parts]

    for row, column in [(0, 0), (1, 2), (40, 41), (83, 83), (83, 0), (17, 60)]:
        exact = sum(
            down * across * screen[y][x]
            for y, down in shares(row, shape[0])
            for x, across in shares(column, shape[1])
        )
        assert shown[row, column] == round(exact)
    assert shown.shape == (SIDE, SIDE) and shown.dtype == np.uint8


def test_all_wrong_settings_are_named_together():
    with pytest.raises(ConfigError, match=r"noops .*-1; frame_skip .*0; repeat_.* got 1\.5"):
        atari("Pong", noops=-1, frame_skip=0, repeat_action_probability=1.5)


@pytest.mark.atari
@pytest.mark.parametrize("env", ["atari:Pong", atari("Breakout", life_loss=True, noops=5)])
def test_real_games_replay_bit_for_bit(env):
    report = check(env, steps=150)
    assert report.ok, report
    assert any("bit for bit" in str(finding) for finding in report.findings)


@pytest.mark.atari
def test_a_game_by_name():
    source = stack_frames(resolve("atari:Pong"), 4)
    assert source.name == "atari:Pong"
    assert source.spec.observation == ArraySpec((4, SIDE, SIDE), "uint8", frames=4)
    assert source.spec.action == Discrete(6)


@pytest.mark.atari
@pytest.mark.processes
def test_evaluation_plays_whole_games_for_points():
    source = resolve(pickle.loads(pickle.dumps(atari("Pong", life_loss=True))))
    training = source.make_host(1, EpisodeSeeds(0))
    evaluation = source.make_host(1, EpisodeSeeds(0).for_evaluation(), workers=1)
    assert training.rows.environments[0].settings == atari("Pong", life_loss=True)
    assert evaluation.spec == training.spec
    for envs in (training, evaluation):
        assert envs.reset().any()
        envs.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("atari:Pogn", r'^no Atari game "Pogn"; did you mean "atari:Pong"'),
        ("ALE/Pogn-v5", r'^no environment "ALE/Pogn-v5"; did you mean "ALE/Pong-v5"'),
        ("ALE/Pong-v4", r'^no environment "ALE/Pong-v4"; "atari:Pong" is this game as the papers'),
        ("PongDeterministic-v4", r'^no environment "PongDet.*"; "atari:Pong" is this game as the'),
    ],
)
def test_games_that_do_not_exist(name, message):
    with pytest.raises(EnvironmentError, match=message):
        resolve(name)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("atari:Pong", "ale_py", "atari"),
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("PongNoFrameskip-v4", "ale_py", "atari"),
        ("MinAtar/Breakout-v1", "minatar", "minatar"),
    ],
)
def test_missing_packages_name_their_extra(monkeypatch, name, package, extra):
    real = importlib.util.find_spec

    def not_found(known, *rest):
        return None if known == package else real(known, *rest)

    monkeypatch.setattr("importlib.util.find_spec", not_found)
    monkeypatch.delitem(gymnasium.registry, name, raising=False)
    hint = '; "atari:Pong" is this game .*' if "Pong" in name and ":" not in name else ""
    line = rf'^"{name}" needs .* missing: pip install "understudy\[{extra}\]"{hint}$'
    with pytest.raises(EnvironmentError, match=line) as caught:
        resolve(name)
    assert "\n" not in str(caught.value)


@pytest.mark.atari
@pytest.mark.parametrize(
    ("name", "game"),
    [("ALE/Pong-v5", "Pong"), ("PongNoFrameskip-v4", "Pong"), ("ALE/Breakout-v5", "Breakout")],
)
def test_raw_frames_can_be_had_and_are_answered_with_a_hint(caplog, name, game):
    source = resolve(name)
    assert source.spec.observation == ArraySpec((210, 160, 3), "uint8")
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f'"{name}" shows raw frames; "atari:{game}" is this game as the papers')
    assert "\n" not in line
    caplog.clear()
    resolve(f"atari:{game}")
    assert not caplog.records


def test_without_the_package_the_settings_say_so_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(EnvironmentError, match=r'pip install "understudy\[atari\]"$'):
        resolve(atari("Pong"))


@pytest.mark.atari
@pytest.mark.processes
def test_workers_do_not_load_jax_for_it():
    code = (
        "import sys, understudy.envs.gymnasium_envs; from understudy.envs import atari, Stacked;"
        "env = Stacked(atari('Pong')(), 2); env.reset(seed=0); env.step(0);"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=300)
