"""One line, and exit code 2, for each thing that can be wrong."""

import sys

import gymnasium
import numpy as np
import pytest

import understudy
from understudy.cli import playing
from understudy.runs import checkpoint

pytestmark = pytest.mark.agents


class Boundless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


@pytest.fixture(scope="module", autouse=True)
def boundless():
    gymnasium.register("Boundless-v0", Boundless)
    yield
    del gymnasium.registry["Boundless-v0"]


WRONG = {
    "discrete actions": ("train td3 CartPole-v1", "TD3 needs continuous", "Discrete"),
    "unbounded Box": ("train sac Boundless-v0", "bounded action Box", "RescaleAction"),
    "unknown field": ("train sac Pendulum-v1 --gama 0.9", "unknown flag --gama", "'--gamma'"),
    "a field of the other": ("train sac --policy-noise 0.2", "unknown flag --policy-noise"),
    "two problems": (
        "train --gamma 1.01 --batch-size 2000 --buffer-size 1000",
        "gamma must be at most 1, got 1.01",
        "batch_size 2000 is larger than buffer_size 1000",
    ),
    "misspelt env": ("train sac Pendulm-v1", 'no environment "Pendulm-v1"', '"Pendulum-v1"'),
    "old version": ("train td3 HalfCheeta-v5", '"HalfCheetah-v5"'),
    "misspelt native env": ("train sac jax:Pendulm-v1", '"jax:Pendulum-v1"'),
    "no such adapter": ("train sac playground:CheetahRun", "playground"),
    "negative steps": ("train --steps -5", "steps must be at least 1, got -5"),
    "steps in words": ("train --steps abc", "steps must be a whole number", "'abc'"),
    "half a step": ("train --steps 0.5", "steps must be a whole number", "0.5"),
    "endless": ("train --steps inf", "steps", "inf"),
    "no seeds": ("train --seeds 0", "seeds must be at least 1"),
    "seed in words": ("train --seed abc", "seed", "'abc'"),
    "negative seed": ("train --seed -1", "seed", "-1"),
    "endless seed": (f"train --seed {2**70}", "seed"),
    "hidden sizes": ("train --hidden-sizes x", "hidden_sizes", "'x'"),
    "hidden sizes, one": ("train --hidden-sizes 64,x", "hidden_sizes", "'x'"),
    "hidden sizes of 0": ("train --hidden-sizes 0", "hidden_sizes", "at least 1"),
    "activation": ("train --activation rellu", "activation", "'relu'"),
    "a number in words": ("train --learning-rate fast", "learning_rate", "'fast'"),
    "not finite": ("train --learning-rate nan", "learning_rate", "finite"),
    "flag without value": ("train --gamma", "--gamma"),
    "device": ("train --device tpu", "device must be one of", "'tpu'"),
    "device elsewhere": ("train --device gpu", "gpu", "cpu"),
    "unknown command": ("trian", "unknown command 'trian'", "'train'"),
    "unknown algorithm": ("train sacc Pendulum-v1", "no algorithm 'sacc'", "'sac'"),
    "too many words": ("train sac Pendulum-v1 fast", "unknown argument fast"),
    "eval of nothing": ("eval", "RUN"),
    "eval of no run": ("eval nowhere", "no checkpoint in nowhere"),
    "eval without episodes": ("eval nowhere --episodes 0", "--episodes"),
    "an algorithm's name as a value": ("train --run td3 sac --policy-noise 0.2", "--policy-noise"),
    "run and algorithm": ("train --seeds 0 --gamma 2", "gamma must be", "seeds must be"),
    "logger": ("train --logger tensorbord", "unknown logger", "'tensorboard'"),
    "logger that is not installed": ("train --logger wandb", 'pip install "understudy[wandb]"'),
    "no config file": ("train --config my.toml", "my.toml cannot be read"),
    "a config file without a name": ("train --config", "--config"),
    "resume of nothing": ("resume nowhere", "nowhere is no run directory"),
    "resume with flags": ("resume nowhere --stesp 3", "unknown flag --stesp", "'--steps'"),
    "plot of nothing": ("plot nowhere", "nowhere is no run directory"),
    "report of nothing": ("report nowhere", "nowhere is no run directory"),
    "export of nothing": ("export nowhere policy.onnx", "no checkpoint in nowhere"),
    "export to nowhere": ("export nowhere", "FILE"),
    "export of another policy": ("export nowhere policy.onnx --which newest", "--which"),
    "frames of no images": (
        "train ddqn CartPole-v1 --frame-stack 4",
        "frame_stack=4 is for images",
    ),
    "memory in parts": (
        "train a2c CartPole-v1 --memory gru --minibatches 2",
        "minibatches must be",
    ),
    "memory apart": ("train sac --memory gru --share-encoder false", "needs share_encoder"),
    "memory": ("train sac --memory grru", "one of gru, lstm", "'gru'"),
    "shifts of no images": ("train sac --random-shift 4", "random_shift is for images"),
    "normalized images": (
        "train ddqn jax:MinAtar-Breakout-v1 --normalize-observations true",
        "normalize_observations is for vectors",
    ),
    "misspelt game": ("train ddqn atari:Pongg", 'no Atari game "Pongg"', '"atari:Pong"'),
    "list of what": ("list everything", "everything", "presets"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_answered_in_one_line(refused, case):
    command, *expected = WRONG[case]
    line = refused(*command.split())
    for words in expected:
        assert words in line


def test_a_missing_extra_is_named(refused, monkeypatch):
    """As on a machine without MuJoCo: importing it fails."""
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    line = refused("train", "sac", "HalfCheetah-v5")
    assert '"HalfCheetah-v5"' in line and 'pip install "understudy[mujoco]"' in line


@pytest.mark.parametrize(
    "problem",
    [
        gymnasium.error.DependencyNotInstalled("MuJoCo is not installed, run `pip install mujoco`"),
        ImportError("No module named 'mujoco'"),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_a_missing_extra_however_it_shows(refused, monkeypatch, problem):
    def fail(*arguments):
        raise problem

    monkeypatch.setitem(sys.modules, "mujoco", None)
    monkeypatch.setattr("understudy.envs.make.make_quietly", fail)
    assert 'pip install "understudy[mujoco]"' in refused("train", "sac", "HalfCheetah-v5")


def test_a_run_directory_in_use_is_not_touched(refused, tmp_path, tiny):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    assert "thesis is not empty" in refused("train", "--run", "thesis", *tiny)
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "years of work"


@pytest.mark.parametrize("place", ["notes", "notes/run"])
def test_a_run_directory_that_cannot_be_one(refused, tmp_path, place, tiny):
    (tmp_path / "notes").write_text("mine")
    assert f"{place} cannot be made" in refused("train", "--run", place, *tiny)


@pytest.mark.parametrize(
    "command",
    ["plot {run} -o notes/x.png", "report {run} -o notes/x.html", "export {run} notes/x.onnx",
     "eval {run} --video notes/x.mp4"],
)  # fmt: skip
def test_a_place_that_cannot_be_written(refused, tmp_path, trained, command):
    (tmp_path / "notes").write_text("mine")
    assert "notes" in refused(*command.format(run=trained[0]).split())


@pytest.mark.parametrize("command", ["eval {run} --video x.avi", "export {run} x.pt"])
def test_a_kind_of_file_that_nobody_knows(refused, trained, command):
    assert "x." in refused(*command.format(run=trained[0]).split())


def test_a_run_without_a_name_for_its_environment_is_not_filmed(trained):
    agent = understudy.load(trained[0])
    agent.env_name = None
    with pytest.raises(playing.ConfigError, match="from Python"):
        playing.film(agent, trained[0] / "x.mp4")
    agent.close()


def test_a_damaged_checkpoint(refused, tmp_path):
    (tmp_path / "run").mkdir()
    for text in ("{", "[]", "{}", '{"format": 1}'):
        (tmp_path / "run" / checkpoint.MANIFEST).write_text(text)
        assert "run" in refused("eval", "run")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"total_steps": 5, "run_config": 5}'])
def test_a_damaged_description_of_a_run(refused, tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    assert "run.json is damaged" in refused("resume", ".")


def test_a_checkpoint_is_no_run_to_resume(refused, trained):
    assert "best is no run directory" in refused("resume", trained[0] / "best")


def test_ctrl_c(run, monkeypatch):
    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("understudy.agent.Agent.load", interrupt)
    assert run("eval", "run") == (130, "", "understudy: interrupted\n")
