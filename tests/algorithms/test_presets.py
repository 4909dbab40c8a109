"""Presets: each makes a config, serves all versions of its environment, and has a source."""

import dataclasses
import re
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest

import understudy as us
from understudy.algorithms import available
from understudy.envs.native import NATIVE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "presets.md"
CONFIGS = {name: algorithm.config_class for name, algorithm in available().items()}
PRESETS = [(name, env) for name, config in CONFIGS.items() for env in config.presets]
WALKERS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "Swimmer")
MUJOCO = (*WALKERS, "Reacher", "InvertedPendulum", "InvertedDoublePendulum")

# Presets for all games of a kind -> some of them.
FAMILIES = {
    "atari": ("atari:Pong", "atari:SpaceInvaders"),
    "MinAtar": ("MinAtar/Breakout-v1", "MinAtar/Seaquest-v0", "jax:MinAtar-Breakout-v1"),
    "brax": ("brax:ant", "brax:halfcheetah"),
    "playground": ("playground:CartpoleBalance", "playground:G1JoystickFlatTerrain"),
}
WITH_FAMILIES = [
    *(
        (name, kind)
        for name in ("a2c", "ddqn", "mpo", "ppo", "pqn", "sac")
        for kind in ("atari", "MinAtar")
    ),
    ("ppo", "brax"),
    ("reppo", "brax"),
    ("reppo", "playground"),
]

presets = pytest.mark.parametrize(("name", "env"), PRESETS)
tasks = pytest.mark.parametrize(("name", "env"), [p for p in PRESETS if p[1] not in FAMILIES])


@presets
def test_a_preset_makes_a_config(name, env):
    config_class = CONFIGS[name]
    fields = {field.name for field in dataclasses.fields(config_class)}
    assert set(config_class.presets[env]) <= fields
    made, used = config_class.preset(env), config_class.preset_name(env)
    assert used == env
    for field, value in config_class.presets[env].items():
        assert getattr(made, field) == value


@tasks
def test_its_environment_exists(name, env):
    assert env in gymnasium.registry or env in NATIVE


@tasks
def test_it_serves_other_versions_and_the_native_environment(name, env):
    config_class = CONFIGS[name]
    stem, _, version = env.rpartition("-v")
    other = f"{stem}-v{int(version) + 7}"
    for name in (other, f"jax:{env}"):
        assert config_class.preset_name(name) == config_class.preset_name(env)
        assert config_class.preset(name) == config_class.preset(env)


@pytest.mark.parametrize(
    ("name", "family", "game"),
    [(name, kind, game) for name, kind in WITH_FAMILIES for game in FAMILIES[kind]],
)
def test_a_family_has_one_for_all_its_games(name, family, game):
    config_class = CONFIGS[name]
    config, used = config_class.preset(game), config_class.preset_name(game)
    assert (config, used) == (config_class(**config_class.presets[family]), family)
    # A screen shows no motion; MinAtar's boards have a plane for what moved where.
    assert config.frame_stack == (4 if family == "atari" else 1)


def small_agent(name, env):
    """An agent by its preset, but with a small replay; and the preset's name."""
    config, used = CONFIGS[name].preset(env), CONFIGS[name].preset_name(env)
    fields = {field.name for field in dataclasses.fields(config)}
    small = dict(batch_size=8, buffer_size=1_000, start_steps=40, min_buffer_size=40)
    small |= dict(horizon=5) if name == "ppo" else {}
    small = {field: size for field, size in small.items() if field in fields}
    return getattr(us, name.upper())(env, dataclasses.replace(config, **small)), used


@pytest.mark.atari
@pytest.mark.parametrize("name", ["a2c", "mpo", "ppo", "sac"])
def test_the_preset_of_atari_makes_an_agent(name):
    agent, used = small_agent(name, "atari:Pong")
    assert used == "atari" and agent.spec.observation.shape == (4, 84, 84)
    agent.close()


@pytest.mark.agents
@pytest.mark.parametrize(
    "name", ["a2c", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mpo", "ppo", "sac"))]
)
def test_the_preset_of_minatar_trains(name):
    agent, used = small_agent(name, "jax:MinAtar-Breakout-v1")
    before = jax.tree.leaves(agent.get_weights())
    summary = agent.train(320, progress=False, run=us.RunConfig(evaluation_episodes=1))
    after = jax.tree.leaves(agent.get_weights())
    assert used == "MinAtar" and not summary.diverged
    # One for 5 steps in 8 environments (PPO: 16), or for every fourth step after the first 40.
    assert agent.trainer.position.updates >= (8 if name == "a2c" else 70)
    assert all(np.isfinite(leaf).all() for leaf in after)
    changed = [not np.array_equal(old, new) for old, new in zip(before, after, strict=True)]
    assert all(changed)
    agent.close()


@pytest.mark.parametrize("config_class", CONFIGS.values())
@pytest.mark.parametrize("env", [None, "", "Unheard-v0", "Pend-v1", "Pendulum", "-v5", "v5"])
def test_an_environment_without_a_preset_gets_the_defaults(config_class, env):
    assert (
        config_class.preset_name(env) == "defaults" and config_class.preset(env) == config_class()
    )


@pytest.mark.parametrize(
    "name", sorted(set(CONFIGS) - {"ddqn", "pqn", "reppo"})
)  # no continuous ones, or none
def test_every_mujoco_task_has_one(name):
    assert {f"{task}-v5" for task in MUJOCO} <= CONFIGS[name].presets.keys()


def rows() -> dict[tuple[str, str], str]:
    """(algorithm, environment) -> the cell that says where its preset is from."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].lower() in CONFIGS:
            for env in re.findall(r"[A-Z][\w-]+-v\d|atari|MinAtar|brax|playground", cells[1]):
                assert (cells[0].lower(), env) not in found
                found[cells[0].lower(), env] = cells[2]
    return found


def test_every_preset_names_its_source():
    assert rows().keys() == set(PRESETS)
    for source in rows().values():
        assert source.startswith(("measured here", "literature: "))
